package image

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// QEMU marks its use of an image by locks on single bytes: from the first offset on
// the permissions that it holds, from the second on those that it denies to other
// processes, one byte each.
const (
	lockHeld   = 100
	lockDenied = 200
	permRead   = 0
	permWrite  = 1
	permResize = 3
	permCount  = 5

	// daemonUses and daemonDenies are bytes of the daemon's own. With QEMU's bytes a file that a paused QEMU got and never
	// used would lock it out of the same file, and a medium would conflict with itself when it is inserted again.
	daemonUses   = 150
	daemonDenies = 250
)

// Use is how other processes use an image.
type Use int

// The uses: none that can be seen, a reader, a writer.
const (
	Unused Use = iota
	Read
	Written
)

// InUse reports whether QEMU has an image open, by the locks that QEMU takes. File systems without such
// locks show no use.
func InUse(f *os.File) Use {
	if isWritten(f) {
		return Written
	}
	if hasLock(f, lockHeld, permCount) {
		return Read
	}
	return Unused
}

// isWritten reports whether a process writes to a file or is about to.
func isWritten(f *os.File) bool {
	return hasLock(f, lockHeld+permWrite, 1) || hasLock(f, daemonUses, 1)
}

// LockForQEMU marks an image that QEMU will get as read, or as written if it is open for that, until the
// last process with the file closes it. The daemon then does not upload to it, remove it or copy it,
// although a start may wait long for its turn. QEMU inherits the lock with the file. It returns Busy if
// the daemon has locked the file against writers: it takes its own lock first and checks then, as
// LockToWrite does, so one of two sees the other. Conflicts with other QEMUs are reported by QEMU.
func LockForQEMU(f *os.File) error {
	_ = setLock(f, lockHeld+permRead) // some file systems have no such locks
	if how, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || how&unix.O_ACCMODE != unix.O_RDWR {
		return err
	}
	if _ = setLock(f, daemonUses); hasLock(f, daemonDenies, 1) {
		return fault.New(fault.Busy, fault.Volume, "%s is being removed, copied or written by the daemon; try again later", f.Name())
	}
	return nil
}

// mandatoryLockFS are file systems on which a locked byte cannot be written by any process, not even by
// the holder of the lock.
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

// LockToWrite locks out every QEMU and qemu-img from a file that the daemon writes itself: a guest started
// meanwhile would see half of the old and half of the new data. It takes the locks that QEMU takes, until
// release or until the file is closed, and returns Busy if the file is in use.
func LockToWrite(f *os.File) (release func(), err error) {
	return setLocks(f, []int64{permRead, permWrite, permResize}, []int64{permRead, permWrite, permResize})
}

// lockToRead locks out writers from a file that the daemon copies.
func lockToRead(f *os.File) (release func(), err error) {
	return setLocks(f, []int64{permRead}, []int64{permWrite, permResize})
}

// LockToRemove locks out QEMUs that would write to a file that will be removed, until the file is closed.
// On SMB, which has no such locks, it closes at once: there an open file keeps its name from others.
func LockToRemove(f *os.File) error {
	_, err := setLocks(f, nil, []int64{permWrite})
	if err == nil && isOn(f, mandatoryLockFS) {
		_ = f.Close() // opened to read
	}
	return err
}

// setLocks sets its own locks before it checks those of others, so that of two processes at least one sees
// the other. A file system without such locks, or where a lock would prevent writing, gets none.
func setLocks(f *os.File, does, denies []int64) (release func(), err error) {
	release = func() {
		for _, at := range []int64{lockHeld, lockDenied, daemonDenies} {
			_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: permCount})
		}
	}
	_ = setLock(f, daemonDenies) // each process denies writers
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
		return nil, fault.New(fault.Busy, fault.Volume, "a guest or qemu-img has %s open; stop the guest first", f.Name())
	}
	return release, nil
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
