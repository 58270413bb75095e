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

	mu      sync.Mutex
	clients map[*client]bool
}

func (a *acceptor) add(c *client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients == nil {
		a.clients = map[*client]bool{}
	}
	a.clients[c] = true
}

func (a *acceptor) remove(c *client) {
	a.conns.release(c.owner, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.clients, c)
}

// dropRevoked disconnects clients that the rules, after a change, no longer admit.
func (a *acceptor) dropRevoked(ctx context.Context, authorizer *authz.Authorizer) {
	changed := authorizer.Changed()
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		changed = authorizer.Changed()
		a.mu.Lock()
		for c := range a.clients {
			if !c.unadmitted.Load() && authorizer.Admit(c.principal) != nil {
				_ = c.Conn.Close() // the goroutine that serves it notices, and releases the rest
			}
		}
		a.mu.Unlock()
	}
}

// warnInterval is the minimum time between two log lines about refused clients.
const warnInterval = 10 * time.Second

// Accept closes connections beyond the bounds. The bound for one owner is far above the needs of a normal
// client.
func (a *acceptor) Accept() (net.Conn, error) { return a.accept() }

func (a *acceptor) accept() (*client, error) {
	for {
		conn, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := newClient(conn, a)
		if a.conns.take(c.owner, 1) {
			if a.unadmitted.take(c.owner, 1) {
				a.add(c)
				c.findProcess(a.authenticator)
				return c, nil
			}
			a.conns.release(c.owner, 1)
		}
		_ = conn.Close()
		if time.Since(a.warned) > warnInterval {
			a.log.Warn("too many connections to the API; client refused", "client", c.principal, "pid", c.principal.Peer.PID)
			a.warned = time.Now()
		}
	}
}

// client is a connection, its client's identity, and its part of the quotas.
type client struct {
	net.Conn
	owner      authz.Owner
	acceptor   *acceptor
	once       sync.Once
	unadmitted atomic.Bool // no call was admitted yet

	principal authz.Principal // for another host, set before the tlsListener hands it over, and constant afterwards
	// polkitTurn is held by the call that asks polkit, so that one question serves all calls. It guards
	// polkitAllowed.
	polkitTurn    chan struct{}
	polkitAllowed bool

	// For a client that polkit authenticates: its process, or why that is unknown.
	process    polkit.Process
	processErr error

	unwatch func() // for another host: ends the watch on its certificate; set before the tlsListener hands it over
}

func newClient(conn net.Conn, a *acceptor) *client {
	c := &client{Conn: conn, acceptor: a, polkitTurn: make(chan struct{}, 1), principal: authz.Principal{Address: conn.RemoteAddr().String()}}
	if _, here := conn.(*net.UnixConn); here {
		c.principal = authz.LocalPrincipal(listener.PeerOf(conn))
	}
	c.owner = c.principal.Owner()
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
	if r.AsksPolkit(c.principal) {
		c.process, c.processErr = polkit.Find(c.principal.Peer.PID, c.principal.Peer.UID)
	}
}

// authenticate asks polkit whether the client is admitted. A positive answer holds for the whole connection.
func (c *client) authenticate(ctx context.Context, r *authz.Authenticator) error {
	select {
	case c.polkitTurn <- struct{}{}:
		defer func() { <-c.polkitTurn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.polkitAllowed {
		return nil
	}
	err := c.processErr
	if err == nil {
		err = r.AuthenticateLocal(ctx, c.principal, c.process, false)
	}
	c.polkitAllowed = err == nil
	return err
}

// tlsListener makes the TLS handshakes with clients from other hosts concurrently, so that none blocks the listener.
type tlsListener struct {
	*acceptor
	certificates *listener.Certificates
	audit        *authz.Audit

	admitted chan net.Conn // admitted clients
	life     context.Context
	end      context.CancelCauseFunc
	work     sync.WaitGroup
}

func (s *Server) newTLSListener(l Listener, a *acceptor) *tlsListener {
	t := &tlsListener{acceptor: a, certificates: l.Certificates, audit: s.Audit, admitted: make(chan net.Conn)}
	t.life, t.end = context.WithCancelCause(context.Background())
	t.work.Go(t.receive)
	return t
}

// Accept returns the next admitted client.
func (l *tlsListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.admitted:
		return conn, nil
	case <-l.life.Done():
		return nil, net.ErrClosed
	}
}

// Close stops accepting clients, and waits for the handshakes under way.
func (l *tlsListener) Close() error {
	l.end(net.ErrClosed)
	err := l.Listener.Close()
	l.work.Wait()
	return err
}

func (l *tlsListener) receive() {
	for {
		c, err := l.accept()
		switch {
		case err == nil:
			l.work.Go(func() { l.handshake(c) })
			continue
		case errors.Is(err, net.ErrClosed):
			l.end(net.ErrClosed)
			return
		}
		l.log.Warn("cannot accept a client", "socket", l.Addr(), "error", err)
		select {
		case <-time.After(100 * time.Millisecond): // probably out of descriptors
		case <-l.life.Done():
		}
	}
}

func (l *tlsListener) handshake(c *client) {
	secure := l.certificates.Server(c, "h2", "http/1.1")
	principal, err := l.authenticator.Handshake(l.life, secure, c.principal.Address)
	c.principal = principal
	if !authz.IsOverLimit(err) {
		l.audit.Note(authz.Entry{Principal: principal, API: "lodge", Call: "TLS", Err: err, Login: true})
	}
	if err == nil {
		c.unwatch = l.certificates.Watch(secure, func(why error) {
			l.audit.Note(authz.Entry{Principal: principal, API: "lodge", Call: "TLS", Err: why, Login: true})
			_ = c.Conn.Close() // the goroutine that serves it notices, and closes the rest
		})
		select {
		case l.admitted <- secure:
			return
		case <-l.life.Done():
		}
	}
	_ = c.Close()
}
