package kernel

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// ProcessLimit is one of the kernel's bounds on this process, which those that it
// starts inherit.
type ProcessLimit struct {
	which int
	// Name is the name in prlimit(1).
	Name string
}

// The bounds that stop a host with many guests.
var (
	OpenFiles    = ProcessLimit{unix.RLIMIT_NOFILE, "nofile"}
	LockedMemory = ProcessLimit{unix.RLIMIT_MEMLOCK, "memlock"} // in bytes
)

// Get returns the soft limit, which applies, and the hard limit: this process may raise
// the soft limit up to it without privileges.
func (l ProcessLimit) Get() (soft, hard uint64, err error) {
	var now unix.Rlimit
	err = unix.Getrlimit(l.which, &now)
	return now.Cur, now.Max, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the limit %s", l.Name)
}

// Set sets the soft limit of this process to n, and raises the hard limit if it is
// lower. Processes that this one starts from now on inherit both. The error is
// Denied if this process may not do that.
//
// Before the first call for OpenFiles, processes are started with the limit that
// this one was started with: Go raises its own and restores the limit for them.
func (l ProcessLimit) Set(n uint64) error {
	_, hard, err := l.Get()
	if err != nil {
		return err
	}
	err = unix.Setrlimit(l.which, &unix.Rlimit{Cur: n, Max: max(n, hard)})
	return fault.Wrap(err, fault.Denied, fault.Host, "cannot set the limit %s to %d", l.Name, n)
}

// MayLock reports whether this process, and so the processes that it starts, may lock
// memory without bound: LockedMemory does not apply to a process with CAP_IPC_LOCK.
func (r Root) MayLock() bool {
	text, err := r.read("proc/self/status")
	if err != nil {
		return false
	}
	may := false
	keyed(text, ":", func(key, value string) {
		if key == "CapEff" {
			capabilities, err := strconv.ParseUint(value, 16, 64)
			may = err == nil && capabilities&(1<<unix.CAP_IPC_LOCK) != 0
		}
	})
	return may
}

// AllowThreads raises the limit of threads of a running process that is the only one of its
// user. It returns the limit that then applies. The limit stays where it is if this process
// may not raise it: that takes CAP_SYS_RESOURCE on the host. It is never raised above the
// limit of this process.
func (r Root) AllowThreads(pid int, most uint64) (allowed uint64, err error) {
	var own unix.Rlimit
	if allowed, err = r.threadLimit(pid); err != nil {
		return 0, err
	}
	err = unix.Getrlimit(unix.RLIMIT_NPROC, &own)
	if most = min(most, own.Max); err == nil && most > allowed {
		if err = unix.Prlimit(pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: most}, nil); err == nil {
			allowed = most
		}
	}
	if err != nil && !errors.Is(err, unix.EPERM) {
		return 0, fault.Wrap(err, fault.Failed, fault.Host, "cannot allow process %d to have %d threads", pid, most)
	}
	return allowed, nil
}

// threadLimit reads the limit of a process. Prlimit returns it to the same user only.
func (r Root) threadLimit(pid int) (uint64, error) {
	text, err := r.read("proc", strconv.Itoa(pid), "limits")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if soft, is := strings.CutPrefix(line, "Max processes"); is {
			fields := strings.Fields(soft)
			if len(fields) > 0 && fields[0] == "unlimited" {
				return unix.RLIM_INFINITY, nil
			}
			if len(fields) > 0 {
				return strconv.ParseUint(fields[0], 10, 64)
			}
		}
	}
	return 0, fault.New(fault.Failed, fault.Host, "the kernel does not say how many threads process %d may have", pid)
}

// OpenFileCount counts the open files of this process.
func (r Root) OpenFileCount() uint64 {
	// Kernels since 6.2 give the number as the directory's size.
	if info, err := os.Stat(r.path("proc/self/fd")); r.isLive() && err == nil && info.Size() > 0 {
		return uint64(info.Size())
	}
	return uint64(len(r.list("proc/self/fd")))
}

// Sysctl reads the first number of a setting below /proc/sys, by its name with
// dots; NotFound where the kernel does not have it.
func (r Root) Sysctl(name string) (uint64, error) { return r.sysctl(sysctlFile(name)) }

// BridgePorts counts the ports of a bridge, or gives 0 where there is none.
func (r Root) BridgePorts(bridge string) uint64 {
	if bridge == "" || strings.Contains(bridge, "/") {
		return 0
	}
	return uint64(len(r.list("sys/class/net", bridge, "brif")))
}
