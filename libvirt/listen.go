package libvirt

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/fault"
)

// Listener is a socket that clients connect to. What comes in by a read-only
// one may change nothing.
type Listener struct {
	net.Listener
	ReadOnly bool
}

// Socket says where to listen and who may connect.
type Socket struct {
	Path     string
	ReadOnly bool // everybody on the host may connect
	GID      int  // the group that may connect to a read-write socket; 0: root alone
}

// Listen makes the socket's file, in place of one that nobody listens on any more.
func Listen(ctx context.Context, s Socket) (Listener, error) {
	if err := clearStale(ctx, s.Path); err != nil {
		return Listener{}, err
	}
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
		return Listener{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot make the folder of socket %s", s.Path)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", s.Path)
	if err != nil {
		return Listener{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot listen on %s", s.Path)
	}
	if err := s.open(); err != nil {
		return Listener{}, errors.Join(err, l.Close())
	}
	return Listener{Listener: l, ReadOnly: s.ReadOnly}, nil
}

// open lets others than the daemon's user in. Until then nobody else may
// connect: the file was made without the right to write for them.
func (s Socket) open() error {
	mode := fs.FileMode(0o600)
	switch {
	case s.ReadOnly:
		mode = 0o666
	case s.GID != 0:
		mode = 0o660
		if err := os.Chown(s.Path, -1, s.GID); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot give socket %s to group %d", s.Path, s.GID)
		}
	}
	if err := os.Chmod(s.Path, mode); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the mode of socket %s", s.Path)
	}
	return nil
}

// clearStale removes the socket that a daemon left behind. One that answers
// belongs to somebody: two daemons on one socket would each see half the clients.
func clearStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot look at socket %s", path)
	case info.Mode().Type() != fs.ModeSocket:
		return fault.New(fault.Exists, fault.Host, "%s is there and is not a socket; move it away", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return fault.New(fault.Busy, fault.Host, "another daemon listens on %s; stop it first", path)
	}
	if err := os.Remove(path); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot remove the stale socket %s", path)
	}
	return nil
}
