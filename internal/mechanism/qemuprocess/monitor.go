package qemuprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxSocketPath is the longest path that a socket's address takes, in bytes.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// ListenMonitor makes a listening socket to pass to QEMU (-chardev socket,id=mon,fd=N,server=on,wait=off).
// The daemon can connect at once, and gets the greeting when QEMU is ready. Only the daemon's user may
// connect. A socket without a listener is replaced.
func ListenMonitor(path string) (*os.File, error) {
	if len(path) > maxSocketPath {
		return nil, fault.New(fault.Invalid, fault.Host,
			"cannot listen on %s: the path has %d bytes and sockets allow %d; use a shorter run directory", path, len(path), maxSocketPath)
	}
	fd, err := listen(path)
	if errors.Is(err, unix.EADDRINUSE) {
		if err = RemoveDeserted(path); err == nil {
			fd, err = listen(path)
		}
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fault.New(fault.Exists, fault.Host, "cannot listen on %s: it is in use, or not a socket; remove it", path)
	case err != nil:
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot listen on %s", path)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func listen(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	// The mode has to be there before the name is, or others could be first.
	if err = unix.Fchmod(fd, 0o600); err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		const backlog = 8
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// RemoveDeserted removes a socket without a listener. The check and the removal use one open folder, even
// if the folder's path changes meanwhile.
func RemoveDeserted(path string) error {
	folder, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(folder) //nolint:errcheck // an O_PATH descriptor has nothing to lose
		if isDeserted(fmt.Sprintf("/proc/self/fd/%d/%s", folder, filepath.Base(path))) {
			err = unix.Unlinkat(folder, filepath.Base(path), 0)
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot remove the socket %s, which has no listener", path)
}

// isDeserted reports whether path is a socket without a listener. A symbolic link is not followed: it could
// lead to any socket of the host.
func isDeserted(path string) bool {
	at, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(at) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", at)}), unix.ECONNREFUSED)
}
