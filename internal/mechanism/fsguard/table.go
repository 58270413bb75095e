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

// Mount is one line of the kernel's list.
type Mount struct {
	ID     int
	Point  string
	Type   string // of the file system
	Source string // as it was given, such as a device or host:/path
}

func (m Mount) String() string { return m.Point + " (" + m.Type + " of " + m.Source + ")" }

// table is the kernel's list, read again when the kernel says that it changed.
type table struct {
	mu     sync.Mutex // held over reading the list, which asks no file system
	file   *os.File
	points map[string]Mount
}

// At gives what is mounted on a directory itself, topmost, if anything is. It asks
// the kernel's list and not the directory.
func At(point string) (m Mount, there bool, err error) {
	t := &process.table
	if err := t.renew(); err != nil {
		return m, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m, there = t.points[filepath.Clean(point)]
	return m, there, nil
}

// at gives the mount that a clean absolute path lies on, by its text alone.
func (t *table) at(path string) Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; ; path = filepath.Dir(path) {
		if m, ok := t.points[path]; ok || path == "/" {
			return m
		}
	}
}

// renew reads the list if it is not the one that was read.
func (t *table) renew() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fault.Wrap(t.read(), fault.Failed, fault.Host, "cannot read the list of mounts")
}

// read is renew with the lock held.
func (t *table) read() error {
	if t.file == nil {
		// Not by os.Open: the runtime would poll it too, and take the changes away.
		fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.file = os.NewFile(uintptr(fd), "mountinfo")
	} else if !t.changed() {
		return nil
	}
	text, err := io.ReadAll(io.NewSectionReader(t.file, 0, maxList))
	if err != nil {
		_ = t.file.Close() // opened to read; the next call begins anew
		t.file = nil
		return err
	}
	t.points = map[string]Mount{}
	for m := range mountinfo.Parse(string(text)) { // a later one of a point lies above
		t.points[m.Point] = Mount{ID: m.ID, Point: m.Point, Type: m.Type, Source: m.Source}
	}
	return nil
}

// maxList bounds the list, in bytes: a line has hundreds, and the kernel allows
// a hundred thousand mounts.
const maxList = 64 << 20

// changed asks the kernel, which tells each reader of a change once.
func (t *table) changed() bool {
	poll := []unix.PollFd{{Fd: int32(t.file.Fd()), Events: unix.POLLPRI}}
	n, err := unix.Poll(poll, 0)
	return err != nil || n > 0
}
