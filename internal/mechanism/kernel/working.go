package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/mountinfo"
)

// WorkingIn lists the processes whose working directory is dir, by ascending
// number. It reads /proc only, so a file system that hangs cannot delay it.
func (r Root) WorkingIn(dir string) ([]int, error) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return r.processes(func(pid int) bool {
		at, err := os.Readlink(r.path("proc", strconv.Itoa(pid), "cwd"))
		return err == nil && at == dir
	})
}

// processes lists those that are so, by ascending number.
func (r Root) processes(so func(pid int) bool) ([]int, error) {
	entries, err := os.ReadDir(r.path("proc"))
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot list processes")
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && so(pid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// Uses reports whether the path of a process's working directory, or of one that it has
// mounted, ends with end. That also holds for a directory that was removed since.
func (r Root) Uses(pid int, end string) bool {
	at, err := os.Readlink(r.path("proc", strconv.Itoa(pid), "cwd"))
	if err == nil && strings.HasSuffix(strings.TrimSuffix(at, " (deleted)"), end) {
		return true
	}
	text, err := r.read("proc", strconv.Itoa(pid), "mountinfo")
	if err != nil {
		return false
	}
	for m := range mountinfo.Parse(text) {
		if strings.HasSuffix(strings.TrimSuffix(m.Root, "//deleted"), end) {
			return true
		}
	}
	return false
}

// HasOpen reports whether a process has the file with this path open. It does not look at the file itself.
func (r Root) HasOpen(pid int, path string) bool {
	for _, fd := range r.list("proc", strconv.Itoa(pid), "fd") {
		if at, err := os.Readlink(r.path("proc", strconv.Itoa(pid), "fd", fd)); err == nil && at == path {
			return true
		}
	}
	return false
}

// RunningAs lists the processes of a user, by ascending number.
func (r Root) RunningAs(uid uint32) ([]int, error) {
	return r.processes(func(pid int) bool {
		info, err := os.Lstat(r.path("proc", strconv.Itoa(pid)))
		if err != nil {
			return false
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		return ok && owner.Uid == uid
	})
}

// RunWith lists the processes with this name that were started with this argument, by ascending number. It reads the
// arguments of no others: one that is stuck would delay the caller.
func (r Root) RunWith(name, argument string) ([]int, error) {
	return r.processes(func(pid int) bool {
		called, err := r.read("proc", strconv.Itoa(pid), "comm")
		if err != nil || strings.TrimSuffix(called, "\n") != name {
			return false
		}
		words, err := r.Command(pid)
		return err == nil && slices.Contains(words, argument)
	})
}

// SharesNetwork reports whether a process is in the network namespace of the calling thread. The first thread of this
// process may have been moved to another namespace.
func (r Root) SharesNetwork(pid int) bool {
	ours, err := os.Readlink(r.path("proc", "thread-self", "ns", "net"))
	theirs, err2 := os.Readlink(r.path("proc", strconv.Itoa(pid), "ns", "net"))
	return err == nil && err2 == nil && ours == theirs
}

// Command gives the words with which a process was started; none when there is
// no such process, and for those of the kernel.
func (r Root) Command(pid int) ([]string, error) {
	text, err := r.read("proc", strconv.Itoa(pid), "cmdline")
	if fault.Is(err, fault.NotFound) || err == nil && text == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read how process %d was started", pid)
	}
	return strings.Split(strings.TrimSuffix(text, "\x00"), "\x00"), nil
}
