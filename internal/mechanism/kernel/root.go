// Package kernel reads what Linux reports about a host and its processes in /sys
// and /proc, and controls its control groups.
//
// Every reader starts at a Root, so that it works on a recorded tree as well as on
// the live one. Readers keep nothing: a caller that needs a snapshot takes one.
//
// Some files of /proc/PID wait for a lock that a stuck process may hold without end. Only
// these read them: MemoryRollup and AnonymousMappings (smaps), KSMProcess (ksm_stat), and
// Command and RunWith (cmdline). No reader opens maps.
//
// This package turns files and system calls of the kernel into plain values with
// units. It does no caching, does not use libvirt's names, and decides no policy.
package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxFile bounds the bytes that are read from one file. The largest real one, cpuinfo of a
// host with thousands of processors, is some megabytes.
const maxFile = 16 << 20

// Root is where the trees that start with /sys, /proc, /run, /etc/selinux and /usr/share are
// found. The zero value is the live host.
type Root struct {
	dir string
}

// At gives the root of a recorded tree.
func At(dir string) Root { return Root{dir} }

// isLive says whether the root is the running host, which system calls (unlike
// files) always speak of.
func (r Root) isLive() bool { return r.dir == "" || r.dir == "/" }

func (r Root) path(elem ...string) string {
	return filepath.Join(append([]string{"/", r.dir}, elem...)...)
}

// strip takes the root off a path, so that results speak of the host's paths.
func (r Root) strip(path string) string {
	if r.isLive() {
		return path
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, filepath.Clean(r.dir)), "/")
}

// read returns the content of a file. A missing file is fault.NotFound, and so is one
// that disappears with its process or device during the read.
func (r Root) read(elem ...string) (string, error) {
	content, err := r.readHead(maxFile, elem...)
	return string(content), err
}

// readHead is read for the first bytes of a file.
func (r Root) readHead(most int64, elem ...string) ([]byte, error) {
	content, err := readUpTo(r.path(elem...), most)
	return content, readFault(err)
}

// brief is more than the kernel writes into a process's one-line files.
const brief = 1 << 10

// readBrief is read for a file that the kernel returns whole in one call. It reads
// into a buffer of the caller's. It makes three system calls; a general reader, which
// asks for size, readiness and the end, makes twice as many. It is for files that are
// read for every guest again and again.
func (r Root) readBrief(into []byte, elem ...string) (string, error) {
	fd, err := open(r.path(elem...), unix.O_RDONLY)
	if err != nil {
		return "", readFault(err)
	}
	n, err := retryEINTR(func() (int, error) { return unix.Read(fd, into) })
	_ = unix.Close(fd)
	return string(into[:max(n, 0)]), readFault(err)
}

func readFault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH), errors.Is(err, syscall.ENODEV):
		return fault.Wrap(err, fault.NotFound, fault.Host, "the kernel does not offer this")
	case errors.Is(err, fs.ErrPermission):
		return fault.Wrap(err, fault.Denied, fault.Host, "the kernel does not let this process read")
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot read from the kernel")
}

// attr gives an attribute without its blanks, or "" when it cannot be read.
func (r Root) attr(elem ...string) string {
	text, err := r.read(elem...)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// number gives a decimal or 0x attribute, or missing when it cannot be read.
func (r Root) number(missing int, elem ...string) int {
	n, err := strconv.ParseInt(r.attr(elem...), 0, 64)
	if err != nil {
		return missing
	}
	return int(n)
}

// size gives an attribute that counts something, or 0.
func (r Root) size(elem ...string) uint64 {
	n, err := strconv.ParseUint(r.attr(elem...), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// hex gives an attribute that is an identifier in hexadecimal, with or without
// 0x, or 0.
func (r Root) hex(bits int, elem ...string) uint64 {
	n, err := strconv.ParseUint(strings.TrimPrefix(r.attr(elem...), "0x"), 16, bits)
	if err != nil {
		return 0
	}
	return n
}

// list gives the names in a directory, sorted, or none.
func (r Root) list(elem ...string) []string {
	entries, err := os.ReadDir(r.path(elem...))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// link gives the last part of what a symbolic link points to, or "".
func (r Root) link(elem ...string) string {
	target, err := os.Readlink(r.path(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// resolve gives the host's path of a sysfs directory with its links followed,
// such as /sys/devices/pci0000:00/0000:00:03.0, or "".
func (r Root) resolve(elem ...string) string {
	path, err := filepath.EvalSymlinks(r.path(elem...))
	if err != nil {
		return ""
	}
	return r.strip(path)
}

func (r Root) exists(elem ...string) bool {
	_, err := os.Stat(r.path(elem...))
	return err == nil
}

// keyed reads lines of "key<sep> value" into visit, which is called in order.
func keyed(text, sep string, visit func(key, value string)) {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, sep); ok {
			visit(strings.TrimSpace(key), strings.TrimSpace(value))
		}
	}
}

// sortedNumbers gives the numbers N of names "prefixN", ascending.
func sortedNumbers(names []string, prefix string) []int {
	var numbers []int
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, prefix)
		if n, err := strconv.ParseUint(rest, 10, 31); ok && err == nil {
			numbers = append(numbers, int(n))
		}
	}
	slices.Sort(numbers)
	return numbers
}
