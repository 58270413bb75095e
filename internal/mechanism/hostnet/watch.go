package hostnet

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// FolderWatch tells which files in a folder have been written.
type FolderWatch struct{ events *os.File }

// WatchFolder starts watching a folder. The caller closes the watch.
func WatchFolder(path string) (*FolderWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot watch folders")
	}
	w := &FolderWatch{os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_ONLYDIR); err != nil {
		w.Close()
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot watch %s", path)
	}
	return w, nil
}

// Next waits for files that have been written and returns their names. With all, any file may have been written:
// the kernel's queue of events was full. An error ends the watch, as it does after Close.
func (w *FolderWatch) Next() (names []string, all bool, err error) {
	var buffer [16 << 10]byte // holds the longest event
	n, err := w.events.Read(buffer[:])
	if err != nil {
		return nil, false, err
	}
	for b := buffer[:n]; len(b) >= unix.SizeofInotifyEvent; {
		mask := binary.NativeEndian.Uint32(b[4:])
		end := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])), len(b))
		name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:end], []byte{0})
		if mask&unix.IN_Q_OVERFLOW != 0 {
			all = true
		} else if len(name) > 0 {
			names = append(names, string(name))
		}
		b = b[end:]
	}
	return names, all, nil
}

// Close ends the watch, and a waiting Next.
func (w *FolderWatch) Close() { _ = w.events.Close() }
