package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
)

// ConnectPermitted connects to a socket, if its path is permitted to the client that named it (held).
func ConnectPermitted(ctx context.Context, path string, held []string) (*net.UnixConn, error) {
	return fsguard.Do(ctx, path, func() (conn *net.UnixConn, err error) {
		err = image.WithFile(path, held, func(at string, nofollow int) error {
			socket, err := openSocket(at, nofollow)
			if err != nil {
				return err
			}
			defer socket.Close()
			conn, err = ConnectTo(ctx, socket)
			return err
		})
		return conn, err
	}, func(conn *net.UnixConn) { _ = conn.Close() })
}

// DupConn returns a duplicate of a connection. Its file name is the socket's path, because the AppArmor
// rules need it.
func DupConn(conn *net.UnixConn, path string) (f *os.File, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		var copied int
		if copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			f = os.NewFile(uintptr(copied), path)
		}
	})
	return f, errors.Join(failed, err)
}

// openSocket opens a socket by name only (O_PATH).
func openSocket(at string, nofollow int) (*os.File, error) {
	f, err := os.OpenFile(at, unix.O_PATH|nofollow, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.Mode().Type() == os.ModeSymlink:
		err = unix.ELOOP
	case info.Mode().Type() != os.ModeSocket:
		err = errors.New("it is not a socket")
	default:
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// ConnectTo connects to an open socket. A path instead could lead to another socket by now.
func ConnectTo(ctx context.Context, socket *os.File) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
	if err == nil {
		return conn.(*net.UnixConn), nil
	}
	var number syscall.Errno
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &number):
		err = number // Go's text would name the descriptor
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = errors.New("no program listens on it; start the program that serves it first")
	}
	return nil, err
}
