package fsguard

import (
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/mountinfo"
)

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	ID     int
	Point  string
	Type   string // file system type
	Source string // as given to mount(8), such as a device or host:/path
}

func (m Mount) String() string { return m.Point + " (" + m.Type + " of " + m.Source + ")" }

// table is the kernel's list of mounts, read again after each change.
type table struct {
	mu     sync.Mutex // held while the list is read, which asks no file system
	file   *os.File
	points map[string]Mount
}

// At returns the topmost mount on a directory itself, if there is one. It reads
// the kernel's list and does not touch the directory.
func At(point string) (m Mount, there bool, err error) {
	t := &processLimiters.table
	if err := t.refresh(); err != nil {
		return m, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m, there = t.points[filepath.Clean(point)]
	return m, there, nil
}

// at returns the mount of a clean absolute path, by its text alone.
func (t *table) at(path string) Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; ; path = filepath.Dir(path) {
		if m, ok := t.points[path]; ok || path == "/" {
			return m
		}
	}
}

// refresh reads the list again if the kernel has changed it.
func (t *table) refresh() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fault.Wrap(t.refreshLocked(), fault.Failed, fault.Host, "cannot read /proc/self/mountinfo")
}

// refreshLocked is renew with the lock held.
func (t *table) refreshLocked() error {
	if t.file == nil {
		// os.Open would register the file with the runtime's poller, which would consume the change events.
		fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.file = os.NewFile(uintptr(fd), "mountinfo")
	} else if !t.changed() {
		return nil
	}
	text, err := io.ReadAll(io.NewSectionReader(t.file, 0, maxTableBytes))
	if err != nil {
		_ = t.file.Close() // only read from; the next call opens it again
		t.file = nil
		return err
	}
	t.points = map[string]Mount{}
	for m := range mountinfo.Parse(string(text)) { // a later mount on the same point lies on top
		t.points[m.Point] = Mount{ID: m.ID, Point: m.Point, Type: m.Type, Source: m.Source}
	}
	return nil
}

// maxTableBytes bounds the list in bytes: a line has hundreds, and the kernel allows
// a hundred thousand mounts (fs.mount-max).
const maxTableBytes = 64 << 20

// changed polls the kernel, which reports each change once per open file.
func (t *table) changed() bool {
	poll := []unix.PollFd{{Fd: int32(t.file.Fd()), Events: unix.POLLPRI}}
	n, err := unix.Poll(poll, 0)
	return err != nil || n > 0
}
