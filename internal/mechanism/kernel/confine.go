package kernel

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// RunConfined calls start on a thread that has dropped all capabilities except those in keep. The thread cannot
// gain privileges by executing a set-user-id file or one with capabilities, and it has left the session keyring of
// the user that started the daemon. Programs that start runs inherit this. The thread ends when start
// returns, so start must not tie a process that lives on to its thread (Pdeathsig).
func RunConfined(keep []uintptr, start func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so the thread ends with the goroutine
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
				break // a process without privileges has none to pass on
			}
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot drop capability %d", c)
		}
	}
	// A process without keyrings, or one that may not ask for them, has none to pass on.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot leave the session keyring of the daemon's starter")
	}
	return fault.Wrap(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), fault.Failed, fault.Host, "cannot set no_new_privs")
}
