package rpc

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// welcome is the byte that a client reads once its certificate was accepted.
const welcome = 1

// fromAfar makes a new connection one of another host.
func (c *Client) fromAfar(l Listener) {
	c.proof = l.Certificates
	c.tls = l.Certificates.Server(c.conn)
	c.conn = c.tls
	c.log = c.Server.log.With("address", c.conn.RemoteAddr().String())
	c.Session.Identity = authz.Principal{Address: c.conn.RemoteAddr().String()}
}

// secure makes the TLS handshake with a client of another host, within its time limit,
// and reports whether the client may continue. A refused client learns nothing.
func (c *Client) secure() bool {
	if c.tls == nil {
		return true
	}
	who, err := c.Server.reception.Handshake(c.Reading, c.tls, c.Session.Who().Address)
	c.Session.mu.Lock()
	c.Session.Identity = who
	c.Session.mu.Unlock()
	if err == nil {
		err = c.welcome()
	}
	if !authz.IsOverLimit(err) {
		c.Server.Audit.Note(authz.Entry{Principal: who, API: "libvirt", Call: "TLS", Err: err, Login: true})
	}
	if err != nil {
		c.End(err)
		_ = c.conn.Close()
		c.Session.end()
		c.log.Debug("a client of another host was not let in", "reason", err)
	}
	return err == nil
}

// expel ends the connection of a client after its certificate stopped admitting it.
func (c *Client) expel(why error) {
	c.Server.Audit.Note(authz.Entry{Principal: c.Session.Who(), API: "libvirt", Call: "TLS", Err: why, Login: true})
	c.End(why)
}

func (c *Client) welcome() error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.Server.Limits.Handshake)); err != nil {
		return err
	}
	_, err := c.conn.Write([]byte{welcome})
	return err
}
