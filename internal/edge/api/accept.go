package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// Listener is a socket that clients connect to.
type Listener struct {
	net.Listener
	// Certificates authenticate clients of other hosts; nil: the listener is a unix socket.
	Certificates *listener.Certificates
}

// acceptor accepts connections within their bounds and identifies the clients.
type acceptor struct {
	net.Listener
	conns, unadmitted *quota
	authenticator     *authz.Authenticator
	log               *slog.Logger

	warned time.Time // used only by the accepting goroutine

	mu     sync.Mutex
	inside map[*client]bool
}

func (d *acceptor) add(c *client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside == nil {
		d.inside = map[*client]bool{}
	}
	d.inside[c] = true
}

func (d *acceptor) remove(c *client) {
	d.conns.release(c.owner, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.inside, c)
}

// dropRevoked disconnects clients that changed rules no longer admit.
func (d *acceptor) dropRevoked(ctx context.Context, gate *authz.Authorizer) {
	changed := gate.Changed()
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		changed = gate.Changed()
		d.mu.Lock()
		for c := range d.inside {
			if !c.unadmitted.Load() && gate.Admit(c.who) != nil {
				_ = c.Conn.Close() // the goroutine that serves it notices, and closes the rest
			}
		}
		d.mu.Unlock()
	}
}

// warnInterval is the minimum time between two log lines about refused clients.
const warnInterval = 10 * time.Second

// Accept closes connections beyond the bounds. The bound for one owner is far above the needs of a normal
// client.
func (d *acceptor) Accept() (net.Conn, error) { return d.accept() }

func (d *acceptor) accept() (*client, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := newClient(conn, d)
		if d.conns.take(c.owner, 1) {
			if d.unadmitted.take(c.owner, 1) {
				d.add(c)
				c.findProcess(d.authenticator)
				return c, nil
			}
			d.conns.release(c.owner, 1)
		}
		_ = conn.Close()
		if time.Since(d.warned) > warnInterval {
			d.log.Warn("too many connections to the API; client refused", "client", c.who, "pid", c.who.Peer.PID)
			d.warned = time.Now()
		}
	}
}

// client is a connection with its place.
type client struct {
	net.Conn
	owner      authz.Owner
	acceptor   *acceptor
	once       sync.Once
	unadmitted atomic.Bool // no call was admitted yet

	who authz.Principal // for another host, set before the tlsListener hands it over, and constant afterwards
	// polkitTurn is held by the call that has polkit asked, so that one question serves all calls. It guards
	// proved.
	polkitTurn chan struct{}
	proved     bool

	// For a client that polkit decides about: its process, or why it is not known.
	process polkit.Process
	lost    error

	unwatch func() // for another host: ends the watch on its certificate; set before the tlsListener hands it over
}

func newClient(conn net.Conn, d *acceptor) *client {
	c := &client{Conn: conn, acceptor: d, polkitTurn: make(chan struct{}, 1), who: authz.Principal{Address: conn.RemoteAddr().String()}}
	if _, here := conn.(*net.UnixConn); here {
		c.who = authz.LocalPrincipal(listener.PeerOf(conn))
	}
	c.owner = c.who.Owner()
	c.unadmitted.Store(true)
	return c
}

func (c *client) Close() error {
	c.once.Do(func() {
		c.markAdmitted()
		c.acceptor.remove(c)
		if c.unwatch != nil {
			c.unwatch()
		}
	})
	return c.Conn.Close()
}

// markAdmitted no longer counts the client as one without an admitted call.
func (c *client) markAdmitted() {
	if c.unadmitted.CompareAndSwap(true, false) {
		c.acceptor.unadmitted.release(c.owner, 1)
	}
}

// findProcess records the client's process while it exists: its PID may be reused when it calls.
func (c *client) findProcess(r *authz.Authenticator) {
	if r.AsksPolkit(c.who) {
		c.process, c.lost = polkit.Find(c.who.Peer.PID, c.who.Peer.UID)
	}
}

// authenticate asks polkit whether the client is admitted. One positive answer holds for the connection.
func (c *client) authenticate(ctx context.Context, r *authz.Authenticator) error {
	select {
	case c.polkitTurn <- struct{}{}:
		defer func() { <-c.polkitTurn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.proved {
		return nil
	}
	err := c.lost
	if err == nil {
		err = r.AuthenticateLocal(ctx, c.who, c.process, false)
	}
	c.proved = err == nil
	return err
}

// tlsListener does the TLS handshakes of clients of other hosts concurrently, so that they never block the listener.
type tlsListener struct {
	*acceptor
	certificates *listener.Certificates
	audit        *authz.Audit

	admitted chan net.Conn // admitted clients
	life     context.Context
	end      context.CancelCauseFunc
	work     sync.WaitGroup
}

func (s *Server) newTLSListener(l Listener, d *acceptor) *tlsListener {
	h := &tlsListener{acceptor: d, certificates: l.Certificates, audit: s.Audit, admitted: make(chan net.Conn)}
	h.life, h.end = context.WithCancelCause(context.Background())
	h.work.Go(h.receive)
	return h
}

// Accept returns the next admitted client.
func (h *tlsListener) Accept() (net.Conn, error) {
	select {
	case conn := <-h.admitted:
		return conn, nil
	case <-h.life.Done():
		return nil, net.ErrClosed
	}
}

// Close stops accepting clients, and waits for the handshakes under way.
func (h *tlsListener) Close() error {
	h.end(net.ErrClosed)
	err := h.Listener.Close()
	h.work.Wait()
	return err
}

func (h *tlsListener) receive() {
	for {
		c, err := h.accept()
		switch {
		case err == nil:
			h.work.Go(func() { h.handshake(c) })
			continue
		case errors.Is(err, net.ErrClosed):
			h.end(net.ErrClosed)
			return
		}
		h.log.Warn("cannot accept a client", "socket", h.Addr(), "error", err)
		select {
		case <-time.After(100 * time.Millisecond): // probably out of descriptors
		case <-h.life.Done():
		}
	}
}

func (h *tlsListener) handshake(c *client) {
	secure := h.certificates.Server(c, "h2", "http/1.1")
	who, err := h.authenticator.Handshake(h.life, secure, c.who.Address)
	c.who = who
	if !authz.IsOverLimit(err) {
		h.audit.Note(authz.Entry{Principal: who, API: "lodge", Call: "TLS", Err: err, Login: true})
	}
	if err == nil {
		c.unwatch = h.certificates.Watch(secure, func(why error) {
			h.audit.Note(authz.Entry{Principal: who, API: "lodge", Call: "TLS", Err: why, Login: true})
			_ = c.Conn.Close() // the goroutine that serves it notices, and closes the rest
		})
		select {
		case h.admitted <- secure:
			return
		case <-h.life.Done():
		}
	}
	_ = c.Close()
}
