package libvirt

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// welcome is the byte that a client reads once its certificate was accepted.
const welcome = 1

// fromAfar makes a new connection one of another host.
func (c *client) fromAfar(l Listener) {
	c.proof = l.Certificates
	c.tls = l.Certificates.Server(c.conn)
	c.conn = c.tls
	c.log = c.server.log.With("address", c.conn.RemoteAddr().String())
	c.session.identity = authz.Who{Address: c.conn.RemoteAddr().String()}
}

// secure makes the TLS handshake with a client of another host, within its time limit,
// and reports whether the client may continue. A refused client learns nothing.
func (c *client) secure() bool {
	if c.tls == nil {
		return true
	}
	who, err := c.server.reception.Receive(c.reading, c.tls, c.session.who().Address)
	c.session.mu.Lock()
	c.session.identity = who
	c.session.mu.Unlock()
	if err == nil {
		err = c.welcome()
	}
	if !authz.TurnedAway(err) {
		c.server.audit.Note(authz.Entry{Who: who, API: "libvirt", Call: "TLS", Err: err, Login: true})
	}
	if err != nil {
		c.end(err)
		_ = c.conn.Close()
		c.session.end()
		c.log.Debug("a client of another host was not let in", "reason", err)
	}
	return err == nil
}

// expel ends the connection of a client after its certificate stopped admitting it.
func (c *client) expel(why error) {
	c.server.audit.Note(authz.Entry{Who: c.session.who(), API: "libvirt", Call: "TLS", Err: why, Login: true})
	c.end(why)
}

func (c *client) welcome() error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.server.limits.handshake)); err != nil {
		return err
	}
	_, err := c.conn.Write([]byte{welcome})
	return err
}
