package remote

import (
	"context"
	"net"
	"slices"
	"syscall"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/xdr"
)

// The ways to prove who one is, by their numbers on the wire.
const (
	authNone   = 0
	authPolkit = 2
)

// Dial connects to the daemon at an address, proves who it is and opens the
// host's daemon by its name.
func Dial(ctx context.Context, address string) (*Conn, error) {
	path, err := Socket(address)
	if err != nil {
		return nil, err
	}
	socket, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot reach a daemon")
	}
	c := New(socket)
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot open %s at %s", System, path)
	}
	return c, nil
}

func (c *Conn) open(ctx context.Context) error {
	var auth xdr.AuthListRet
	if err := c.Call(ctx, xdr.ProcAuthList, nil, &auth); err != nil {
		return err
	}
	switch {
	case len(auth.Types) == 0 || slices.Contains(auth.Types, authNone):
	case slices.Contains(auth.Types, authPolkit):
		var ret xdr.AuthPolkitRet
		if err := c.Call(ctx, xdr.ProcAuthPolkit, nil, &ret); err != nil {
			return err
		}
	default:
		return fault.New(fault.Unsupported, fault.Call, "the daemon wants a proof of identity that the lab does not have (kinds %v); run as root, or use its local socket", auth.Types)
	}
	name := System
	return c.Call(ctx, xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{Name: &name}, nil)
}

// PeerID is the process at the other end: the one that listened on the socket.
func (c *Conn) PeerID() (int, error) {
	socket, ok := c.socket.(*net.UnixConn)
	if !ok {
		return 0, fault.New(fault.Unsupported, fault.Host, "only a local socket tells the daemon's process")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *syscall.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		peer, failure = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return 0, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell the daemon's process")
	}
	if peer.Pid <= 1 {
		return 0, fault.New(fault.Unsupported, fault.Host, "the socket was opened for the daemon by process %d, so it does not tell the daemon's own", peer.Pid)
	}
	return int(peer.Pid), nil
}
