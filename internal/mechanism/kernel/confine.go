package kernel

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// RunConfined has a program started by a thread that has given up for good what the
// program does not need: of capabilities those are kept that are named, and
// nothing that is executed, set-user-id or with capabilities of its file, gains
// more; and keys that whoever started the daemon has are not passed on. What start runs inherits that; the thread ends when start returns, so
// start must not tie a process that is to live on to its thread (Pdeathsig).
func RunConfined(keep []uintptr, start func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread goes with the goroutine
		err := confine(keep)
		if err == nil {
			err = start()
		}
		result <- err
	}()
	return <-result
}

// confine binds the calling thread.
func confine(keep []uintptr) error {
	kept := map[uintptr]bool{}
	for _, c := range keep {
		kept[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // the kernel knows no higher one
		}
		if has == 0 || kept[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if errors.Is(err, unix.EPERM) {
				break // who has no privileges has none to pass on
			}
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot give up capability %d", c)
		}
	}
	// Whoever has no keyrings, or may not ask for them, has none to pass on.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot give up the keys of whoever started the daemon")
	}
	return fault.Wrap(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), fault.Failed, fault.Host, "cannot give up gaining privileges")
}
