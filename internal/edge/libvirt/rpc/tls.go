package rpc

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// tlsAccepted is the byte that libvirt's clients wait for after the handshake: their certificate was accepted.
const tlsAccepted = 1

// useTLS makes a new connection that of a client from another host.
func (c *Client) useTLS(l Listener) {
	c.certificates = l.Certificates
	c.tls = l.Certificates.Server(c.conn)
	c.conn = c.tls
	c.log = c.Server.log.With("address", c.conn.RemoteAddr().String())
	c.Session.Identity = authz.Principal{Address: c.conn.RemoteAddr().String()}
}

// tlsHandshake makes the TLS handshake with a client from another host, within its time limit,
// and reports whether the client may continue. A refused client is not told why.
func (c *Client) tlsHandshake() bool {
	if c.tls == nil {
		return true
	}
	principal, err := c.Server.authenticator.Handshake(c.ReadCtx, c.tls, c.Session.Principal().Address)
	c.Session.mu.Lock()
	c.Session.Identity = principal
	c.Session.mu.Unlock()
	if err == nil {
		err = c.sendTLSAccepted()
	}
	if !authz.IsOverLimit(err) {
		c.Server.Audit.Note(authz.Entry{Principal: principal, API: "libvirt", Call: "TLS", Err: err, Login: true})
	}
	if err != nil {
		c.End(err)
		_ = c.conn.Close()
		c.Session.close()
		c.log.Debug("client from another host refused", "reason", err)
	}
	return err == nil
}

// closeRevoked ends the connection of a client whose certificate has been revoked or has expired.
func (c *Client) closeRevoked(why error) {
	c.Server.Audit.Note(authz.Entry{Principal: c.Session.Principal(), API: "libvirt", Call: "TLS", Err: why, Login: true})
	c.End(why)
}

func (c *Client) sendTLSAccepted() error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.Server.Limits.Handshake)); err != nil {
		return err
	}
	_, err := c.conn.Write([]byte{tlsAccepted})
	return err
}
