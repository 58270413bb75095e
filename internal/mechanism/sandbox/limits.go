package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Limits are the resource limits of a process, which it cannot raise. None exceeds the daemon's own limit.
// Core dumps are always off, to a file and to a core_pattern program alike: a core would hold the guest's
// memory and keys.
type Limits struct {
	Threads uint64 // of all processes of its user; 0: no limit
	Locked  uint64 // bytes of memory that it can lock
	Memory  uint64 // bytes of address space; 0: no limit
	File    uint64 // size in bytes up to which it can write a file; 0: no limit
	Seconds uint64 // of processor time; 0: no limit
	Open    uint64 // open files; 0: the daemon's limit
	Nice    int    // nice value; 0: the daemon's
}

// setPriority sets the nice value of the thread and of the processes that it starts.
func (l Limits) setPriority() error {
	if l.Nice == 0 {
		return nil
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, l.Nice); err != nil {
		return fmt.Errorf("cannot lower the priority: %w", err)
	}
	return nil
}

// apply limits a process that was just started and runs as the user. A daemon without CAP_SYS_RESOURCE
// gets EPERM. It then sets the thread's real user to that user for a moment: the kernel lets a process be
// limited by its own user without a privilege.
func (l Limits) apply(pid int, u User) error {
	err := l.setRlimits(pid)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	// A user can signal a thread that has its number as real or saved user, and a signal to
	// one thread hits the whole daemon. So the thread has the number only for the call.
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	return errors.Join(setRealUser(u.UID, u.GID), l.setRlimits(pid), setRealUser(uid, gid))
}

// ApplyTo limits a process that runs as the user and that Run may have missed: a program that forks into
// the background can do so before Run sets its limits.
func (l Limits) ApplyTo(pid int, u User) error {
	err := onOwnThread(func() (<-chan struct{}, error) { return nil, l.apply(pid, u) })
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot limit process %d", pid)
}

// setRealUser sets the real user and group of the calling thread. Package syscall would change all threads.
func setRealUser(uid, gid uint32) error {
	const asItIs = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), asItIs, asItIs); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), asItIs, asItIs); errno != 0 {
		return errno
	}
	return nil
}

// noCore is a core limit of 1 byte. At 1 the kernel also gives no core to a core_pattern program; at 0 it
// only writes no file.
const noCore = 1

func (l Limits) setRlimits(pid int) error {
	bounds := map[int]uint64{unix.RLIMIT_CORE: noCore, unix.RLIMIT_MEMLOCK: l.Locked}
	for which, most := range map[int]uint64{
		unix.RLIMIT_NPROC: l.Threads, unix.RLIMIT_AS: l.Memory, unix.RLIMIT_FSIZE: l.File, unix.RLIMIT_CPU: l.Seconds,
		unix.RLIMIT_NOFILE: l.Open,
	} {
		if most > 0 {
			bounds[which] = most
		}
	}
	for which, most := range bounds {
		var now unix.Rlimit
		err := unix.Prlimit(pid, which, nil, &now)
		if err == nil {
			most = min(most, now.Max)
			err = unix.Prlimit(pid, which, &unix.Rlimit{Cur: most, Max: most}, nil)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // the process has ended
			return err
		}
	}
	return nil
}

// raiseMemlock raises the daemon's own limit of locked memory, if it has the privilege, so that
// Limits.Locked of processes can be reached.
func raiseMemlock() {
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all) // without the privilege the host's limit stays
}
