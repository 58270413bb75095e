// Package mountinfo parses the kernel's list of mounts, /proc/PID/mountinfo.
//
// It holds the list's text format only. It opens no files and does not know the use
// of a mount.
package mountinfo

import (
	"iter"
	"strconv"
	"strings"
)

// Mount is a line of the list (proc(5)).
type Mount struct {
	ID      int
	Root    string // the folder of the file system that is mounted at the point
	Point   string
	Type    string // file system type
	Source  string // as given to mount(8), such as a device or host:/path
	Options string // of the file system, the same for all its mounts: "rw,memory"
}

// Parse yields the mounts in the kernel's order: a later mount on the same point lies
// on top of an earlier one. Lines that do not parse are skipped.
func Parse(text string) iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		for line := range strings.Lines(text) {
			if m, ok := parseLine(strings.TrimSuffix(line, "\n")); ok && !yield(m) {
				return
			}
		}
	}
}

// parseLine splits "id parent device root point options [tags...] - type source options".
// Only spaces separate fields, because the kernel escapes a space inside names; other blanks may be part of a name.
func parseLine(line string) (m Mount, ok bool) {
	before, after, _ := strings.Cut(line, " - ")
	fields, behind := strings.Split(before, " "), strings.Split(after, " ")
	if len(fields) < 5 || len(behind) < 3 || fields[4] == "" {
		return m, false
	}
	id, err := strconv.Atoi(fields[0])
	if err != nil {
		return m, false
	}
	return Mount{
		ID: id, Root: Unescape(fields[3]), Point: Unescape(fields[4]),
		Type: behind[0], Source: Unescape(behind[1]), Options: behind[2],
	}, true
}

// Unescape undoes the octal escapes of blanks and backslashes that the kernel writes in this list, and in other lists of paths.
func Unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
