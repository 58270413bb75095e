package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Limits are the bounds of a process, which it cannot raise. None is above what
// the daemon itself has. There is never a core file: it would hold the memory of a
// guest, and keys; nor is one handed to the program that the host may have for that.
type Limits struct {
	Threads uint64 // of all processes of its user; 0: unbounded
	Locked  uint64 // bytes of memory that it may lock
	Memory  uint64 // bytes of address space; 0: unbounded
	File    uint64 // bytes that a file may have when it writes to it; 0: unbounded
	Seconds uint64 // of processor time; 0: unbounded
	Open    uint64 // files that it may have open; 0: as many as the daemon
	Nice    int    // how much it yields to others
}

// setPriority has the thread, and what it starts, yield to others.
func (l Limits) setPriority() error {
	if l.Nice == 0 {
		return nil
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, l.Nice); err != nil {
		return fmt.Errorf("cannot lower its priority: %w", err)
	}
	return nil
}

// apply bounds a process that has just been started and runs as the user. A daemon that
// may not do that to others becomes that user for it, by the thread's real number, since
// the kernel lets a process be bounded by its own user without any privilege.
func (l Limits) apply(pid int, u User) error {
	err := l.setRlimits(pid)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	// Whose real or saved number a thread has may signal it, and a signal to a thread is
	// one to the whole daemon: it has them no longer than it takes.
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	return errors.Join(setReal(u.UID, u.GID), l.setRlimits(pid), setReal(uid, gid))
}

// ApplyTo bounds a process that runs as the user, and may be one that Run did not meet: a
// program that goes into the background may be quicker.
func (l Limits) ApplyTo(pid int, u User) error {
	err := onOwnThread(func() (<-chan struct{}, error) { return nil, l.apply(pid, u) })
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot bound process %d", pid)
}

// setReal sets the thread's real user and group. Not by package syscall, which changes
// all threads.
func setReal(uid, gid uint32) error {
	const asItIs = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), asItIs, asItIs); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), asItIs, asItIs); errno != 0 {
		return errno
	}
	return nil
}

// noCore is the bound at which the kernel hands no core to a program, either. Of 0 it
// thinks that this is about files alone.
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
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return err
		}
	}
	return nil
}

// raiseMemlock lets processes lock as much as they are told that they may, where
// this process may allow that.
func raiseMemlock() {
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all) // else the host's bound counts
}
