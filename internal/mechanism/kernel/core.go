package kernel

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// noCore is the one bound on core files that also keeps the kernel from handing
// the core to a program: it takes 0 for no bound there.
const noCore = 1

// ForbidCore keeps this process, and the processes that it starts, from leaving core
// files, which would contain keys and guests' memory. A process of root is also made
// undumpable: until it executes another program, it leaves no core and cannot be traced.
func ForbidCore() error {
	err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: noCore, Max: noCore})
	if os.Geteuid() == 0 { // others could no longer read their own files in /proc
		err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot forbid core files")
}
