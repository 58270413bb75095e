// Package mountinfo reads the kernel's list of mounts, /proc/PID/mountinfo.
//
// What belongs here: the list's text, taken apart. What does not: files, and what a mount
// is good for.
package mountinfo

import (
	"iter"
	"strconv"
	"strings"
)

// Mount is a line of the list (proc(5)).
type Mount struct {
	ID      int
	Root    string // what of the file system is shown at the point
	Point   string
	Type    string // of the file system
	Source  string // as it was given, such as a device or host:/path
	Options string // of the file system, whoever mounted it: "rw,memory"
}

// Parse gives the mounts in the kernel's order: one of the same point as an earlier lies
// above it. A line that is none is left out.
func Parse(text string) iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		for line := range strings.Lines(text) {
			if m, ok := parseLine(strings.TrimSuffix(line, "\n")); ok && !yield(m) {
				return
			}
		}
	}
}

// parseLine takes "id parent device root point options [tags...] - type source options"
// apart. Blanks of other kinds are parts of names: the kernel escapes this one alone.
func parseLine(line string) (m Mount, ok bool) {
	before, after, _ := strings.Cut(line, " - ")
	fields, behind := strings.Split(before, " "), strings.Split(after, " ")
	if len(fields) < 5 || len(behind) < 3 {
		return m, false
	}
	id, err := strconv.Atoi(fields[0])
	if err != nil {
		return m, false
	}
	return Mount{
		ID: id, Root: unescape(fields[3]), Point: unescape(fields[4]),
		Type: behind[0], Source: unescape(behind[1]), Options: behind[2],
	}, true
}

// unescape undoes the kernel's octal escapes of blanks and backslashes.
func unescape(text string) string {
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
