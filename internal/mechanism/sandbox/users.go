package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Users allocates the user numbers that programs run as. Each number is used as user and group, by one
// program at a time. The state is in memory only, so no damaged file can break it: after a restart the
// holders Reserve the numbers in their own records.
type Users struct {
	first, last uint32

	mu     sync.Mutex
	next   uint32
	daemon uint32            // number of the daemon's own, which no program runs as (see killAll); 0: not reserved yet
	taken  map[uint32]string // number to its holder
}

// NewUsers allocates from the numbers first to last, both included.
func NewUsers(first, last uint32) (*Users, error) {
	const nobody = 65535
	if first <= nobody || last <= first || last == ^uint32(0) {
		return nil, fault.New(fault.Invalid, fault.Host, "%d-%d is not a range of two or more user numbers above %d", first, last, nobody)
	}
	return &Users{first: first, last: last, next: first, taken: map[uint32]string{}}, nil
}

// ParseUsers reads a range, "FIRST-LAST".
func ParseUsers(text string) (*Users, error) {
	from, to, _ := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 32)
	last, err2 := strconv.ParseUint(to, 10, 32)
	if err != nil || err2 != nil {
		return nil, fault.New(fault.Invalid, fault.Host, "%q is not a range of user numbers; use FIRST-LAST", text)
	}
	return NewUsers(uint32(first), uint32(last))
}

// The default range is unused in systemd's list of user numbers (UIDS-GIDS).
// Each instance has a part of its own, so that guests of two daemons cannot
// signal each other.
const (
	defaultFirst = 0x70000000
	perInstance  = 1 << 13
)

// DefaultUsers returns the range of an instance by its number; 0 is the host's main daemon.
func DefaultUsers(instance uint32) string {
	first := defaultFirst + instance%(1<<15)*perInstance
	return fmt.Sprintf("%d-%d", first, first+perInstance-1)
}

// Take allocates a user that no process runs as. Numbers are used in turn, so that each is reused as late
// as possible.
func (u *Users) Take(by string) (User, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reserveForDaemon()
	for range uint64(u.last-u.first) + 1 {
		id := u.next
		if u.next++; u.next > u.last {
			u.next = u.first
		}
		if _, taken := u.taken[id]; !taken {
			u.taken[id] = by
			return User{id, id}, nil
		}
	}
	return User{}, fault.New(fault.NoCapacity, fault.Host, "all user numbers from %d to %d are in use; give the daemon more of them", u.first, u.last)
}

// reserveForDaemon allocates the last free number for the daemon. The caller holds the lock.
func (u *Users) reserveForDaemon() {
	for id := u.last; u.daemon == 0 && id >= u.first; id-- {
		if _, taken := u.taken[id]; !taken {
			u.daemon, u.taken[id] = id, "the daemon"
		}
	}
}

// foundInUse is the holder of a number that ReserveInUse found in use.
const foundInUse = "a program of an earlier daemon"

// Reserve allocates a number that the holder by had under an earlier daemon, even if no process runs as it
// any more. It returns false if another holder has it: then by must not free it. Numbers outside the range
// need no reservation.
func (u *Users) Reserve(user User, by string) bool {
	if !u.Has(user.UID) {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if holder, taken := u.taken[user.UID]; taken && holder != foundInUse && holder != by {
		return false
	}
	u.taken[user.UID] = by
	return true
}

// Has reports whether a number is in the range.
func (u *Users) Has(id uint32) bool { return id >= u.first && id <= u.last }

// Free kills all processes that still run as the user and frees the number, so that its next holder meets
// none of them. A number outside the range is left alone, because other programs may run as it.
func (u *Users) Free(of User) error {
	if !u.Has(of.UID) {
		return nil
	}
	u.mu.Lock()
	u.reserveForDaemon()
	own := u.daemon
	u.mu.Unlock()
	if err := killAll(of.UID, own); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot end the processes of user %d; the number is not used again", of.UID)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.taken, of.UID)
	return nil
}

// killAll kills every process that runs as the user, on a thread that may signal only those. A process may
// signal a thread with its number as real or saved user, and a signal to one thread hits the whole daemon.
// So the thread has the daemon's own number as real and saved user.
func killAll(id, own uint32) error {
	if own == 0 {
		return fault.New(fault.NoCapacity, fault.Host, "all user numbers are in use, and the daemon needs one of its own to end processes; give the daemon more of them")
	}
	return onOwnThread(func() (<-chan struct{}, error) {
		// Not by package syscall, which changes all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(own), uintptr(id), uintptr(own)); errno != 0 {
			return nil, errno
		}
		err := unix.Kill(-1, unix.SIGKILL) // all processes that this user may signal
		if errors.Is(err, unix.ESRCH) {
			return nil, nil
		}
		return nil, err
	})
}

// ReserveInUse allocates every number of the range that a process runs as, or that owns one of the files
// as user or group: of guests that could not be adopted, and of programs that a killed daemon did not
// record. Numbers that are allocated already keep their holders.
func (u *Users) ReserveInUse(files []string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			files = append(files, "/proc/"+e.Name())
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, path := range files {
		info, err := os.Lstat(path)
		if err != nil {
			continue // it does not exist any more
		}
		of := info.Sys().(*syscall.Stat_t)
		for _, id := range []uint32{of.Uid, of.Gid} {
			if _, taken := u.taken[id]; !taken && u.Has(id) {
				u.taken[id] = foundInUse
			}
		}
	}
	return nil
}

// Impersonate calls do on a thread that has the user's rights to files, with these additional groups, and
// none of the daemon's.
func (u User) Impersonate(groups []uint32, do func() error) error {
	return onOwnThread(func() (<-chan struct{}, error) {
		// Not by package syscall, which changes all threads.
		var first unsafe.Pointer
		if len(groups) > 0 {
			first = unsafe.Pointer(&groups[0])
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
			return nil, errno
		}
		for call, id := range map[uintptr]uint32{unix.SYS_SETFSGID: u.GID, unix.SYS_SETFSUID: u.UID} {
			_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0) // reports no failure
			if now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0); uint32(now) != id {
				return nil, unix.EPERM
			}
		}
		return nil, do()
	})
}
