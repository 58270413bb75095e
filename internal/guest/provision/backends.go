package provision

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A character device in mode connect is the client of a socket that another program serves, often as root.
// A guest's QEMU runs as a user of its own, which may not open that socket. So the daemon connects and
// passes the connection to QEMU. QEMU cannot reconnect that way. If it must, it connects to a relay of the
// daemon.

// connectFor connects the character device of an alias to the socket in its definition.
func connectFor(ctx context.Context, r *machine.Instance, sc scope.Scope, p *qemu.Plan, alias string, b *device.Backend) error {
	if p.Sockets[alias] != nil || p.Relays[alias] != "" {
		return nil // the first console is the first serial port
	}
	held := sc.FoldersFor(b.Path)
	if b.Reconnects() {
		path, err := start(&r.Relays, r, alias, b.Path, held)
		if err != nil {
			return fault.Wrap(err, machine.Failure(err), fault.Host, "cannot make a relay to the socket %s", b.Path)
		}
		if p.Relays == nil {
			p.Relays = map[string]string{}
		}
		p.Relays[alias] = path
		return nil
	}
	conn, err := machine.ConnectHeld(ctx, b.Path, held)
	if err != nil {
		return fault.Wrap(err, machine.Failure(err), fault.Host, "cannot connect to the socket %s", b.Path)
	}
	defer conn.Close()
	f, err := machine.CopyOf(conn, b.Path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot pass the socket %s to QEMU", b.Path)
	}
	if p.Sockets == nil {
		p.Sockets = map[string]*os.File{}
	}
	p.Sockets[alias] = f
	return nil
}

// Dial connects to a socket of the guest. In QEMU's own directory a compromised QEMU could replace a socket
// by a link to any other, and the daemon connects as root. There, dial accepts only a peer that runs as
// QEMU's user.
func Dial(ctx context.Context, r *machine.Instance, path string) (net.Conn, error) {
	conn, err := connect(ctx, path)
	if err != nil {
		return nil, fault.Wrap(err, machine.Failure(err), fault.Device, "cannot connect to %s", path)
	}
	if r.User == nil || filepath.Dir(path) != OwnPath(r) {
		return conn, nil
	}
	if peer := listener.PeerOf(conn); peer.Unknown != nil || peer.UID != r.User.UID {
		_ = conn.Close()
		return nil, fault.New(fault.Denied, fault.Device, "%s leads to a socket that is not the guest's: its QEMU has replaced it", path)
	}
	return conn, nil
}

// connect connects to the socket at path. safepath refuses links of untrusted owners: with one, a user who
// may write to the folder could direct the daemon, as root, to any other socket.
func connect(ctx context.Context, path string) (net.Conn, error) {
	at, err := safepath.Open(path)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	return machine.ConnectTo(ctx, at)
}
