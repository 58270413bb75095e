package chamber

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// Users are the numbers that programs run as, each as user and as group, and each
// for one program at a time. What is taken is told by those who took it, who keep
// that over a restart; the book itself is nowhere but in memory, so that nothing
// in it can be damaged.
type Users struct {
	first, last uint32

	mu    sync.Mutex
	next  uint32
	taken map[uint32]string // by what
}

// NewUsers gives out the numbers from first to last.
func NewUsers(first, last uint32) (*Users, error) {
	const nobody = 65535
	if first <= nobody || last < first || last == ^uint32(0) {
		return nil, fault.New(fault.Invalid, fault.Host, "%d-%d is no range of user numbers above %d", first, last, nobody)
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

// Hold notes that a number is taken already.
func (u *Users) Hold(id uint32, by string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.taken[id] = by
}

// Release gives a number back: nothing runs as it, and nothing belongs to it.
func (u *Users) Release(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.taken, id)
}

// End ends every process that runs as the user, who must be one that nothing else
// runs as.
func (u User) End() error {
	if u.UID == 0 {
		return fault.New(fault.Internal, fault.Host, "the processes of root are not to be ended")
	}
	return apart(func() (<-chan struct{}, error) {
		// Not by package syscall, which changes all threads.
		uid := uintptr(u.UID)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			return nil, errno
		}
		err := unix.Kill(-1, unix.SIGKILL) // all that this user may signal
		if errors.Is(err, unix.ESRCH) {
			return nil, nil
		}
		return nil, err
	})
}

// Survey holds every number of the range that a process runs as, or that owns one
// of these files: of guests that could not be adopted, and of those that a daemon
// left which did not live to write them down. Numbers held already stay as they
// are.
func (u *Users) Survey(files []string) error {
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
		id := info.Sys().(*syscall.Stat_t).Uid
		if _, taken := u.taken[id]; !taken && id >= u.first && id <= u.last {
			u.taken[id] = path
		}
	}
	return nil
}
