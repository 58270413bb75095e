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

// door accepts connections within their bounds and identifies the clients.
type door struct {
	net.Listener
	conns, strangers *places
	reception        *authz.Reception
	log              *slog.Logger

	warned time.Time // used only by the accepting goroutine

	mu     sync.Mutex
	inside map[*client]bool
}

func (d *door) enter(c *client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside == nil {
		d.inside = map[*client]bool{}
	}
	d.inside[c] = true
}

func (d *door) leave(c *client) {
	d.conns.leave(c.owner, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.inside, c)
}

// heed disconnects clients that changed rules no longer admit.
func (d *door) heed(ctx context.Context, gate *authz.Gate) {
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
			if !c.strange.Load() && gate.Admit(c.who) != nil {
				_ = c.Conn.Close() // the goroutine that serves it notices, and closes the rest
			}
		}
		d.mu.Unlock()
	}
}

// grumble is the minimum time between two log lines about refused clients.
const grumble = 10 * time.Second

// Accept closes connections beyond the bounds. The bound for one owner is far above the needs of a normal
// client.
func (d *door) Accept() (net.Conn, error) { return d.accept() }

func (d *door) accept() (*client, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := newClient(conn, d)
		if d.conns.take(c.owner, 1) {
			if d.strangers.take(c.owner, 1) {
				d.enter(c)
				c.find(d.reception)
				return c, nil
			}
			d.conns.leave(c.owner, 1)
		}
		_ = conn.Close()
		if time.Since(d.warned) > grumble {
			d.log.Warn("too many connections to the API; client refused", "client", c.who, "pid", c.who.Peer.PID)
			d.warned = time.Now()
		}
	}
}

// client is a connection with its place.
type client struct {
	net.Conn
	owner   authz.Owner
	door    *door
	once    sync.Once
	strange atomic.Bool // no call was admitted yet

	who authz.Who // for another host, set before the hall hands it over, and constant afterwards
	// proof is held by the call that has polkit asked, so that one question serves all calls. It guards
	// proved.
	proof  chan struct{}
	proved bool

	// For a client that polkit decides about: its process, or why it is not known.
	process polkit.Process
	lost    error

	unwatch func() // for another host: ends the watch on its certificate; set before the hall hands it over
}

func newClient(conn net.Conn, d *door) *client {
	c := &client{Conn: conn, door: d, proof: make(chan struct{}, 1), who: authz.Who{Address: conn.RemoteAddr().String()}}
	if _, here := conn.(*net.UnixConn); here {
		c.who = authz.LocalWho(listener.PeerOf(conn))
	}
	c.owner = c.who.Owner()
	c.strange.Store(true)
	return c
}

func (c *client) Close() error {
	c.once.Do(func() {
		c.meet()
		c.door.leave(c)
		if c.unwatch != nil {
			c.unwatch()
		}
	})
	return c.Conn.Close()
}

// meet no longer counts the client as a stranger.
func (c *client) meet() {
	if c.strange.CompareAndSwap(true, false) {
		c.door.strangers.leave(c.owner, 1)
	}
}

// find records the client's process while it exists: its PID may be reused when it calls.
func (c *client) find(r *authz.Reception) {
	if r.Asks(c.who) {
		c.process, c.lost = polkit.Find(c.who.Peer.PID, c.who.Peer.UID)
	}
}

// prove asks polkit whether the client is admitted. One positive answer holds for the connection.
func (c *client) prove(ctx context.Context, r *authz.Reception) error {
	select {
	case c.proof <- struct{}{}:
		defer func() { <-c.proof }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.proved {
		return nil
	}
	err := c.lost
	if err == nil {
		err = r.Prove(ctx, c.who, c.process, false)
	}
	c.proved = err == nil
	return err
}

// hall does the TLS handshakes of clients of other hosts concurrently, so that they never block the listener.
type hall struct {
	*door
	certificates *listener.Certificates
	audit        *authz.Audit

	let  chan net.Conn // admitted clients
	life context.Context
	end  context.CancelCauseFunc
	work sync.WaitGroup
}

func (s *Server) hall(l Listener, d *door) *hall {
	h := &hall{door: d, certificates: l.Certificates, audit: s.Audit, let: make(chan net.Conn)}
	h.life, h.end = context.WithCancelCause(context.Background())
	h.work.Go(h.receive)
	return h
}

// Accept returns the next admitted client.
func (h *hall) Accept() (net.Conn, error) {
	select {
	case conn := <-h.let:
		return conn, nil
	case <-h.life.Done():
		return nil, net.ErrClosed
	}
}

// Close stops accepting clients, and waits for the handshakes under way.
func (h *hall) Close() error {
	h.end(net.ErrClosed)
	err := h.Listener.Close()
	h.work.Wait()
	return err
}

func (h *hall) receive() {
	for {
		c, err := h.accept()
		switch {
		case err == nil:
			h.work.Go(func() { h.welcome(c) })
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

func (h *hall) welcome(c *client) {
	secure := h.certificates.Server(c, "h2", "http/1.1")
	who, err := h.reception.Receive(h.life, secure, c.who.Address)
	c.who = who
	if !authz.TurnedAway(err) {
		h.audit.Note(authz.Entry{Who: who, API: "lodge", Call: "TLS", Err: err, Login: true})
	}
	if err == nil {
		c.unwatch = h.certificates.Watch(secure, func(why error) {
			h.audit.Note(authz.Entry{Who: who, API: "lodge", Call: "TLS", Err: why, Login: true})
			_ = c.Conn.Close() // the goroutine that serves it notices, and closes the rest
		})
		select {
		case h.let <- secure:
			return
		case <-h.life.Done():
		}
	}
	_ = c.Close()
}
