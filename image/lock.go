package image

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// QEMU marks what it does with an image by locks on single bytes: from the
// first offset on the permissions that it holds, one byte each.
const (
	lockHeld  = 100
	permWrite = 1
	permCount = 5
)

// Use is what other processes do with an image.
type Use int

// The uses: none that can be seen, a reader, a writer.
const (
	Unused Use = iota
	Read
	Written
)

// InUse finds whether QEMU has an image open, by the locks that QEMU takes on
// it. File systems without such locks show no use.
func InUse(f *os.File) Use {
	if held(f, lockHeld+permWrite, 1) {
		return Written
	}
	if held(f, lockHeld, permCount) {
		return Read
	}
	return Unused
}

func held(f *os.File, at, n int64) bool {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false
	}
	return lock.Type != unix.F_UNLCK
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
