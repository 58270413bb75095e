package remote

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// The ways to prove who one is, by their numbers on the wire.
const (
	authNone   = 0
	authSASL   = 1
	authPolkit = 2
)

const (
	// dialPatience bounds a connection until it is open: a daemon under a storm
	// takes its time.
	dialPatience = 2 * time.Minute
	// reachPatience is what another host has for each step until a daemon there can
	// be spoken to.
	reachPatience = 30 * time.Second
)

// Dial connects to the daemon at an address, proves who it is and opens the
// host's daemon by its name.
func Dial(ctx context.Context, address string) (*Conn, error) {
	at, err := Parse(address)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeoutCause(ctx, dialPatience, fault.New(fault.Timeout, fault.Host, "no connection within %s", dialPatience))
	defer stop()
	socket, err := at.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := New(socket)
	if err := c.open(ctx); err != nil {
		said := ""
		if t, ok := socket.(*tunnel); ok && ctx.Err() != nil {
			said = t.said() // else the error has it
		}
		c.Close()
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot open %s at %s%s", System, at, said)
	}
	return c, nil
}

// connect makes the connection that the protocol is spoken over.
func (a Address) connect(ctx context.Context) (net.Conn, error) {
	switch a.Way {
	case BySSH:
		return a.overSSH(ctx)
	case ByTLS:
		return a.overTLS(ctx)
	case ByTCP:
		return a.overTCP(ctx)
	case BySocket:
	}
	path, err := a.path()
	if err != nil {
		return nil, err
	}
	socket, err := new(net.Dialer).DialContext(ctx, "unix", path)
	return socket, fault.Wrap(err, fault.Failed, fault.Host, "cannot reach a daemon")
}

// overTCP connects to a port of another host. The kernels see to it that a host
// that is gone is noticed.
func (a Address) overTCP(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: reachPatience}
	socket, err := dialer.DialContext(ctx, "tcp", a.place())
	return socket, fault.Wrap(err, fault.NotFound, fault.Host,
		"cannot reach a daemon of another host: lodged takes TLS where --tls says, libvirt's own where virtproxyd-%[1]s.socket or libvirtd-%[1]s.socket listens", a.Way)
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
	case slices.Contains(auth.Types, authSASL):
		return fault.New(fault.Unsupported, fault.Call, "the daemon wants a proof of identity by SASL, which this client does not have: use its local socket as root, or ssh, or TLS with certificates alone")
	default:
		return fault.New(fault.Unsupported, fault.Call, "the daemon wants a proof of identity that this client does not have (kinds %v); run as root, or use its local socket", auth.Types)
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
	if err = errors.Join(err, failure); err != nil {
		return 0, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell the daemon's process")
	}
	if peer.Pid <= 1 {
		return 0, fault.New(fault.Unsupported, fault.Host, "the socket was opened for the daemon by process %d, so it does not tell the daemon's own", peer.Pid)
	}
	return int(peer.Pid), nil
}
