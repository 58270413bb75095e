package image

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// QEMU marks what it does with an image by locks on single bytes: from the
// first offset on the permissions that it holds, from the second on those that it
// lets nobody else have, one byte each.
const (
	lockHeld   = 100
	lockDenied = 200
	permRead   = 0
	permWrite  = 1
	permResize = 3
	permCount  = 5

	// daemonUses and withheld are bytes of the daemon's own: by QEMU's a file that was handed over and never used, which a
	// paused QEMU keeps, would keep it from the same file for good, and a drive's medium would be in its own way when it is put in anew.
	daemonUses   = 150
	daemonDenies = 250
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
	if isWritten(f) {
		return Written
	}
	if hasLock(f, lockHeld, permCount) {
		return Read
	}
	return Unused
}

// isWritten says that somebody may write to a file, or is about to.
func isWritten(f *os.File) bool {
	return hasLock(f, lockHeld+permWrite, 1) || hasLock(f, daemonUses, 1)
}

// LockForQEMU shows an image that QEMU is about to be handed as one that is read, or written where it is open for that, until
// the last who was handed the file has closed it, so that the daemon writes no other header to it, nor removes or copies
// what is about to be written: a start may wait long for its turn. QEMU takes the claim over with the file. It is Busy
// where the daemon lets nobody write: it looks for claims when it has said so, and here for that when it has claimed. Of others QEMU says so.
func LockForQEMU(f *os.File) error {
	_ = setLock(f, lockHeld+permRead) // some file systems have no such locks
	if how, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || how&unix.O_ACCMODE != unix.O_RDWR {
		return err
	}
	if _ = setLock(f, daemonUses); hasLock(f, daemonDenies, 1) {
		return fault.New(fault.Busy, fault.Volume, "%s is just being removed, copied or written by the daemon; try again when that has ended", f.Name())
	}
	return nil
}

// mandatoryLockFS are the file systems on which a byte that is locked so is written by nobody, nor by who has locked it.
var mandatoryLockFS = []int64{unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC}

func setLock(f *os.File, at int64) error {
	if isOn(f, mandatoryLockFS) {
		return nil
	}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1})
}

func hasLock(f *os.File, at, n int64) bool {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false
	}
	return lock.Type != unix.F_UNLCK
}

// LockToWrite keeps every QEMU, and qemu-img, from a file that the daemon writes itself, byte by byte:
// a guest that is started amid that would have one half of the old and one of the new. It marks that as
// QEMU does, until release or until the file is closed, and is Busy where somebody has the file already.
func LockToWrite(f *os.File) (release func(), err error) {
	return setLocks(f, []int64{permRead, permWrite, permResize}, []int64{permRead, permWrite, permResize})
}

// lockToRead keeps them from writing to a file that the daemon copies.
func lockToRead(f *os.File) (release func(), err error) {
	return setLocks(f, []int64{permRead}, []int64{permWrite, permResize})
}

// LockToRemove keeps every QEMU that would write to it from a file that is to have no name any more, until it is closed:
// at once on SMB, where nothing can be marked, and what is open, or was until just now, keeps its name from others.
func LockToRemove(f *os.File) error {
	_, err := setLocks(f, nil, []int64{permWrite})
	if err == nil && isOn(f, mandatoryLockFS) {
		_ = f.Close() // opened to read
	}
	return err
}

// setLocks marks what is done before it looks who else does what, so that of two one sees the other.
// File systems without such locks, or on which it could not write then, are let be.
func setLocks(f *os.File, does, denies []int64) (release func(), err error) {
	release = func() {
		for _, at := range []int64{lockHeld, lockDenied, daemonDenies} {
			_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: permCount})
		}
	}
	_ = setLock(f, daemonDenies) // each denies that somebody writes
	busy := false
	for base, perms := range map[int64][]int64{lockHeld: does, lockDenied: denies} {
		for _, perm := range perms {
			busy = errors.Is(setLock(f, base+perm), unix.EAGAIN) || busy
		}
	}
	for _, perm := range does {
		busy = busy || hasLock(f, lockDenied+perm, 1)
	}
	for _, perm := range denies {
		busy = busy || hasLock(f, lockHeld+perm, 1)
	}
	busy = busy || hasLock(f, daemonUses, 1)
	if busy {
		release()
		return nil, fault.New(fault.Busy, fault.Volume, "a guest, or qemu-img, has %s open; stop the guest first", f.Name())
	}
	return release, nil
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
