// Package listener accepts the daemon's clients: it listens on unix
// sockets and identifies the peer by the kernel's credentials or by a certificate. This
// package holds the sockets' files, their modes, peers and the rules for which peers may connect.
// It does not know the protocol on a connection.
package listener

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Place says where to listen and which users may connect.
type Place struct {
	Path      string
	Everybody bool // every user on the host may connect
	GID       int  // the group that may connect if Everybody is false; 0: root alone
}

// Listen makes the socket's file, and replaces a stale one that no process listens on.
func Listen(ctx context.Context, p Place) (net.Listener, error) {
	if err := clearStale(ctx, p.Path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(p.Path), 0o755); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make the folder of socket %s", p.Path)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", p.Path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot listen on %s", p.Path)
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// open grants access to other users than the daemon's. Until then none of them can
// connect: the file was made without write permission for them.
func (p Place) open() error {
	mode := fs.FileMode(0o600)
	switch {
	case p.Everybody:
		mode = 0o666
	case p.GID != 0:
		mode = 0o660
		if err := os.Chown(p.Path, -1, p.GID); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot give socket %s to group %d", p.Path, p.GID)
		}
	}
	if err := os.Chmod(p.Path, mode); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the mode of socket %s", p.Path)
	}
	return nil
}

// clearStale removes the socket that a daemon left behind. A socket that answers
// is in use: with two daemons on one path each would see half the clients.
func clearStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot look at socket %s", path)
	case info.Mode().Type() != fs.ModeSocket:
		return fault.New(fault.Exists, fault.Host, "%s exists and is not a socket; move it away", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	switch conn, err := dialer.DialContext(ctx, "unix", path); {
	case err == nil:
		_ = conn.Close()
		return fault.New(fault.Busy, fault.Host, "another daemon listens on %s; stop it first", path)
	case !errors.Is(err, unix.ECONNREFUSED): // its backlog may only be full at the moment
		return fault.Wrap(err, fault.Busy, fault.Host, "cannot find out whether another daemon listens on %s", path)
	}
	if err := os.Remove(path); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot remove the stale socket %s", path)
	}
	return nil
}
