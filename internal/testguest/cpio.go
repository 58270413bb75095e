package testguest

import (
	"fmt"
	"io"
	"strings"
)

// Archive writes a cpio archive of the "newc" kind. The kernel unpacks it as its
// initramfs. Every file is root's, has time 0 and is
// numbered in the order written, so that equal input gives equal bytes.
type Archive struct {
	out     io.Writer
	inode   int
	written int64
	err     error // the first error; later writes are skipped
}

// NewArchive begins one.
func NewArchive(out io.Writer) *Archive { return &Archive{out: out} }

const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
	modeChar = 0o020000
)

// Dir adds a folder.
func (a *Archive) Dir(name string) { a.entry(name, modeDir|0o755, nil, 0, 0) }

// Link adds a symbolic link.
func (a *Archive) Link(name, target string) { a.entry(name, modeLink|0o777, []byte(target), 0, 0) }

// File adds a file.
func (a *Archive) File(name string, perm int, content []byte) {
	a.entry(name, modeFile|perm, content, 0, 0)
}

// Char adds a character device.
func (a *Archive) Char(name string, perm, major, minor int) {
	a.entry(name, modeChar|perm, nil, major, minor)
}

// Close ends the archive and gives the first error there was.
func (a *Archive) Close() error {
	a.entry("TRAILER!!!", 0, nil, 0, 0)
	return a.err
}

func (a *Archive) entry(name string, mode int, content []byte, major, minor int) {
	a.inode++
	links := 1
	if mode&modeDir == modeDir {
		links = 2
	}
	// magic, inode, mode, uid, gid, links, mtime, size, device, rdevice, name size, checksum
	a.write(fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, links, 0, len(content), 0, 0, major, minor, len(name)+1, 0))
	a.write(name + "\x00")
	a.pad()
	a.write(string(content))
	a.pad()
}

// pad fills up to the next multiple of four bytes, as the format wants after
// names and contents.
func (a *Archive) pad() {
	a.write(strings.Repeat("\x00", int(-a.written&3)))
}

func (a *Archive) write(text string) {
	if a.err != nil {
		return
	}
	n, err := io.WriteString(a.out, text)
	a.written += int64(n)
	a.err = err
}
