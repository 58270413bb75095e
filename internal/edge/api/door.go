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
	// Certificates say who comes from other hosts; nil: the listener is a unix socket.
	Certificates *listener.Certificates
}

// door takes connections within their bounds, and notes who comes.
type door struct {
	net.Listener
	conns, strangers *places
	reception        *authz.Reception
	log              *slog.Logger

	warned time.Time // belongs to who accepts

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

// heed hangs up on whom the rules, which have changed, let in no more.
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
				_ = c.Conn.Close() // whoever serves it notices, and closes the rest
			}
		}
		d.mu.Unlock()
	}
}

// grumble is how often the log is told at most that clients are turned away.
const grumble = 10 * time.Second

// Accept turns those away for whom there is no place: what one owner may hold is far more
// than a sound client wants.
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
			d.log.Warn("too many connections to the API", "client", c.who, "pid", c.who.Peer.PID)
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
	strange atomic.Bool // no call was let in yet

	who authz.Who // of one from another host complete before the hall gives it on, and not written later
	// proof is held by the call that has polkit asked, so that one is asked for all.
	// Proved is guarded by it.
	proof  chan struct{}
	proved bool

	// Of one that polkit decides about: the process that has come, or why it is not known.
	process polkit.Process
	lost    error

	unwatch func() // of one from another host: ends the watch on its certificate; written before the hall gives it on
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

// meet counts the client no more among the strangers.
func (c *client) meet() {
	if c.strange.CompareAndSwap(true, false) {
		c.door.strangers.leave(c.owner, 1)
	}
}

// find notes which process has come, while it is there: its number may be another's when it calls.
func (c *client) find(r *authz.Reception) {
	if r.Asks(c.who) {
		c.process, c.lost = polkit.Find(c.who.Peer.PID, c.who.Peer.UID)
	}
}

// prove has polkit say whether the client may come in, once on a connection that it
// says yes to.
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

// hall is where clients of other hosts show their certificates: beside one another,
// so that the door is never held.
type hall struct {
	*door
	certificates *listener.Certificates
	audit        *authz.Audit

	let  chan net.Conn // whoever was let in
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

// Accept gives the next one that was let in.
func (h *hall) Accept() (net.Conn, error) {
	select {
	case conn := <-h.let:
		return conn, nil
	case <-h.life.Done():
		return nil, net.ErrClosed
	}
}

// Close ends the taking of clients, and waits for those that are being received.
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
		h.log.Warn("cannot take a client", "socket", h.Addr(), "error", err)
		select {
		case <-time.After(100 * time.Millisecond): // out of descriptors, most likely
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
			_ = c.Conn.Close() // whoever serves it notices, and closes the rest
		})
		select {
		case h.let <- secure:
			return
		case <-h.life.Done():
		}
	}
	_ = c.Close()
}
