package libvirt

import (
	"context"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/access"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/fleet"
	"github.com/lodge-kvm/lodge/socket"
)

// welcome is what a client reads once its certificate was found good.
const welcome = 1

// fromAfar makes a new connection one of another host.
func (c *client) fromAfar(l Listener) {
	c.afar, c.tls = &l, l.Certificates.Server(c.conn)
	c.conn = c.tls
	c.log = c.server.log.With("address", c.conn.RemoteAddr().String())
	c.session.identity = access.Who{Address: c.conn.RemoteAddr().String()}
}

// secure shakes hands with a client of another host, within the time that there
// is for it, and reports whether it may go on. One that may not learns nothing.
func (c *client) secure() bool {
	if c.afar == nil {
		return true
	}
	err := c.shake()
	if err != nil {
		c.end(err)
		_ = c.conn.Close()
		c.session.end()
		c.log.Info("a client of another host was not let in", "reason", err)
	}
	c.server.audit.Note(access.Entry{Who: c.session.who(), API: "libvirt", Call: "TLS", Err: err, Login: true})
	return err == nil
}

func (c *client) shake() error {
	select {
	case c.server.shaking <- struct{}{}:
		defer func() { <-c.server.shaking }()
	default:
		return fault.New(fault.NoCapacity, fault.Call, "%d connections of other hosts have not shown their certificates yet", cap(c.server.shaking))
	}
	ctx, stop := context.WithTimeout(c.reading, c.server.limits.handshake/2)
	defer stop()
	subject, err := socket.Subject(ctx, c.tls)
	if err != nil {
		return err
	}
	c.session.mu.Lock()
	c.session.identity.Subject = subject
	c.session.mu.Unlock()
	if err := c.welcome(); err != nil {
		return err
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.server.limits.handshake)); err != nil {
		return err
	}
	_, err = c.conn.Write([]byte{welcome})
	return err
}

// welcome says whether a subject may come in.
func (c *client) welcome() error {
	who := c.session.who()
	if c.server.gate.Ruled() {
		return c.server.gate.Admit(who)
	}
	if len(c.afar.Allow) == 0 || slices.ContainsFunc(c.afar.Allow, func(glob string) bool { return fleet.Matches(glob, who.Subject) }) {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "no --tls-allow lets %q in", who.Subject)
}
