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

// Users are the numbers that programs run as, each as user and as group, and each
// for one program at a time. What is taken is told by those who took it, who keep
// that over a restart; the book itself is nowhere but in memory, so that nothing
// in it can be damaged.
type Users struct {
	first, last uint32

	mu     sync.Mutex
	next   uint32
	daemon uint32            // is the daemon's, and nothing ever runs as it (see end); 0: none is yet
	taken  map[uint32]string // by what
}

// NewUsers gives out the numbers from first to last.
func NewUsers(first, last uint32) (*Users, error) {
	const nobody = 65535
	if first <= nobody || last <= first || last == ^uint32(0) {
		return nil, fault.New(fault.Invalid, fault.Host, "%d-%d is no range of two or more user numbers above %d", first, last, nobody)
	}
	return &Users{first: first, last: last, next: first, taken: map[uint32]string{}}, nil
}

// ParseUsers reads a range, "FIRST-LAST".
func ParseUsers(text string) (*Users, error) {
	from, to, _ := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 32)
	last, err2 := strconv.ParseUint(to, 10, 32)
	if err != nil || err2 != nil {
		return nil, fault.New(fault.Invalid, fault.Host, "%q is no range of user numbers; FIRST-LAST is", text)
	}
	return NewUsers(uint32(first), uint32(last))
}

// The default range is one that systemd's list of user numbers shows as nobody's.
// Each instance has a part of its own: guests of two daemons must not be able to
// signal each other.
const (
	defaultFirst = 0x70000000
	perInstance  = 1 << 13
)

// DefaultUsers is the range of an instance, by a number that names it; 0 is the
// host's main daemon.
func DefaultUsers(instance uint32) string {
	first := defaultFirst + instance%(1<<15)*perInstance
	return fmt.Sprintf("%d-%d", first, first+perInstance-1)
}

// Take gives a user that nothing runs as. Numbers are used in turn, so that one
// comes back as late as possible.
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

// reserveForDaemon gives the daemon a number, the last one that is free. The lock is held.
func (u *Users) reserveForDaemon() {
	for id := u.last; u.daemon == 0 && id >= u.first; id-- {
		if _, taken := u.taken[id]; !taken {
			u.daemon, u.taken[id] = id, "the daemon"
		}
	}
}

// foundInUse is by whom a number is held that Survey found in use.
const foundInUse = "a program of an earlier daemon"

// Reserve takes the number that by had of an earlier daemon, also when no process runs as it
// any more. It returns false if another holder has it: then by must not free it. Numbers
// outside the range are nobody's to hold.
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

// Has says whether a number is one of those that are given out.
func (u *Users) Has(id uint32) bool { return id >= u.first && id <= u.last }

// Free ends whatever still runs as a user and gives the number back: whoever has it
// next must not meet what the last one has left. Users of other numbers have processes
// of others, and are let be.
func (u *Users) Free(of User) error {
	if !u.Has(of.UID) {
		return nil
	}
	u.mu.Lock()
	u.reserveForDaemon()
	own := u.daemon
	u.mu.Unlock()
	if err := killAll(of.UID, own); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot end what user %d has left; the number is not used again", of.UID)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.taken, of.UID)
	return nil
}

// killAll ends every process that runs as the user, on a thread that may signal those and
// nobody else. They may in turn signal whom they share a real or saved number with, and
// a signal to a thread is one to the whole daemon: of these the thread has the daemon's
// own, which nothing runs as.
func killAll(id, own uint32) error {
	if own == 0 {
		return fault.New(fault.NoCapacity, fault.Host, "all user numbers are in use, and the daemon has none of its own to do it with")
	}
	return onOwnThread(func() (<-chan struct{}, error) {
		// Not by package syscall, which changes all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(own), uintptr(id), uintptr(own)); errno != 0 {
			return nil, errno
		}
		err := unix.Kill(-1, unix.SIGKILL) // all that this user may signal
		if errors.Is(err, unix.ESRCH) {
			return nil, nil
		}
		return nil, err
	})
}

// ReserveInUse holds every number of the range that a process runs as, or to which one of
// these files belongs, as its user or its group: of guests that could not be adopted, and of those that a daemon
// left which did not live to write them down. Numbers held already stay as they
// are.
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
			continue // it has gone
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

// Impersonate calls do on a thread that may do with files what the user may who is also of these groups,
// and nothing that only the daemon may.
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
			_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0) // which never says that it failed
			if now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0); uint32(now) != id {
				return nil, unix.EPERM
			}
		}
		return nil, do()
	})
}
