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

// Claim shows an open image as one that QEMU has, as far as it is said, until the last who was handed the file has closed
// it. QEMU refuses one that is written so, and takes the claim over with a file that it is handed.
func Claim(f *os.File, as Use) {
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: lockHeld, Len: 1}
	if as == Written {
		lock.Start += permWrite
	}
	_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock) // some file systems have no such locks
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
