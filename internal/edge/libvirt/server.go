package libvirt

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fairqueue"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Rooms are the packages' objects that the handlers act on.
type Rooms struct {
	Guests    *guest.Registry
	Pools     *volume.Pools
	Networks  *network.Networks
	Secrets   *secret.Book
	Events    *event.Log
	Host      *resources.Inventory
	Devices   *resources.Devices
	Emulators *resources.Emulators
}

// Config holds the objects to serve, and the checks on clients.
type Config struct {
	Rooms
	Log *slog.Logger
	// Groups may use the read-write sockets, in addition to root and the daemon's own user.
	Groups []uint32
	// Gate decides which client may do what; nil: an admitted client may do everything.
	Gate *authz.Gate
	// Reception identifies clients beyond the kernel's credentials; nil: no client comes
	// from another host, and polkit is not asked.
	Reception *authz.Reception
	// Audit records the calls that were done and refused; nil: no record is kept.
	Audit *authz.Audit
}

// limits bound the resources that one client or one socket may hold. When one of the
// times runs out, the server gives the client up.
type limits struct {
	clients   int // connections at a time on one socket; more wait to be accepted
	each      int // of them that one user may have, or one process of root's; more are closed
	strangers int // of them that have not authenticated yet; processes of root may have as many as they like
	calls     int // in flight on one connection, those that wait for a place included
	running   int // ordinary calls that run at a time for one connection
	streams   int // that move data at a time, on one connection
	queue     int // packets that wait to be sent to one client
	handshake time.Duration
	patience  time.Duration // for a client to take a slice of a packet
	stall     time.Duration // for a stream to take a packet
	idle      time.Duration // for a client to send more of an upload
	grace     time.Duration // for calls in flight when the daemon stops
}

// intake gives the bytes of calls that a client may have in flight.
func (limits) intake(readOnly bool) int {
	if readOnly {
		return 2 * frameLimitReader
	}
	return 2 * frameLimit
}

func defaultLimits() limits {
	return limits{
		clients: 4096, each: 1024, strangers: 512, calls: 256, running: 32, streams: 64, queue: 32,
		handshake: 30 * time.Second, patience: 30 * time.Second, stall: 60 * time.Second, idle: 5 * time.Minute, grace: 5 * time.Second,
	}
}

// handlers serve the calls. A handler translates; the packages in Rooms do the work.
type handlers struct{ Rooms }

// Server serves libvirt's protocol.
type Server struct {
	log       *slog.Logger
	groups    []uint32
	gate      *authz.Gate
	reception *authz.Reception
	audit     *authz.Audit
	limits    limits
	table     table
	handlers  handlers

	// calls is the context of every call. It does not end with the call's client.
	calls     context.Context
	stopCalls context.CancelCauseFunc
	turns     *fairqueue.Scheduler
	memory    memory

	mu        sync.Mutex
	clients   map[*client]struct{}
	owners    map[authz.Owner]int // connections
	parties   map[authz.Owner]*fairqueue.Tenant
	strangers map[authz.Owner]int // of them, those that have not authenticated yet
	gone      sync.WaitGroup      // the clients
}

// New makes a server; Serve runs it.
func New(c Config) *Server { return newServer(c, newTable()) }

// newServer makes a server for the calls in a table.
func newServer(c Config, t table) *Server {
	s := &Server{
		log:       c.Log,
		groups:    c.Groups,
		gate:      c.Gate,
		reception: c.Reception,
		audit:     c.Audit,
		limits:    defaultLimits(),
		table:     t,
		handlers:  handlers{Rooms: c.Rooms},
		// The runtime polls for incoming data when it has a processor to spare, so one
		// is left to it. The daemon has one more than the host.
		turns:     fairqueue.New(max(runtime.GOMAXPROCS(0)-1, 1)),
		clients:   map[*client]struct{}{},
		owners:    map[authz.Owner]int{},
		parties:   map[authz.Owner]*fairqueue.Tenant{},
		strangers: map[authz.Owner]int{},
	}
	s.memory = newMemory(maxHeld)
	s.calls, s.stopCalls = context.WithCancelCause(context.Background())
	return s
}

// Serve accepts clients from the listeners until ctx ends. Then it answers the calls in
// flight, within the grace time. It closes the listeners. It returns an error when a
// listener fails permanently, or when calls did not end.
func (s *Server) Serve(ctx context.Context, listeners ...Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var accepting sync.WaitGroup
	if s.gate.Ruled() {
		names := s.handlers.Events.Reader()
		accepting.Go(func() { s.heedNames(ctx, names) })
	}
	for _, l := range listeners {
		accepting.Go(func() {
			if err := s.accept(ctx, l); err != nil {
				stop(err)
			}
		})
	}
	accepting.Go(func() { s.heed(ctx) })
	<-ctx.Done()
	for _, l := range listeners {
		_ = l.Close()
	}
	accepting.Wait()
	err := s.hangUp()
	if cause := context.Cause(ctx); fault.Is(cause, fault.Failed) {
		err = errors.Join(cause, err)
	}
	return err
}

// accept takes clients from one listener. At the bound on connections, further clients
// wait in the kernel, so a full socket does not affect other sockets.
func (s *Server) accept(ctx context.Context, l Listener) error {
	places := make(chan struct{}, s.limits.clients)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot take clients on %s", l.Addr())
		case err != nil: // out of descriptors, most likely: the next attempt may do better
			<-places
			s.log.Warn("cannot take a client", "socket", l.Addr(), "error", err)
			if !pause(ctx, 100*time.Millisecond) {
				return nil
			}
			continue
		}
		c := newClient(s, conn, l.ReadOnly)
		if l.Certificates != nil {
			c.fromAfar(l)
		}
		if !s.add(c) {
			s.log.Warn("a client has too many connections and gets no more", "socket", l.Addr(), "pid", c.session.peer.PID, "uid", c.session.peer.UID)
			c.end(errCrowd)
			_ = conn.Close()
			<-places
			continue
		}
		go func() {
			defer func() { <-places }()
			defer s.remove(c)
			c.serve()
		}()
	}
}

// heed checks every client again when the rules change.
func (s *Server) heed(ctx context.Context) {
	changed := s.gate.Changed()
	for {
		select {
		case <-changed:
			changed = s.gate.Changed()
			s.eachClient((*client).recheck)
		case <-ctx.Done():
			return
		}
	}
}

// heedNames checks open streams again when a guest's name or labels change: rules identify a guest
// by these.
func (s *Server) heedNames(ctx context.Context, reader *event.Reader) {
	for {
		e, lost, err := reader.Next(ctx)
		if err != nil {
			return
		}
		of := e.Source.UUID
		if lost > 0 {
			of = "" // of any
		}
		if lost > 0 || calls(e.Payload) {
			s.eachClient(func(c *client) { c.streams.endDenied(of) })
		}
	}
}

// calls says whether a guest's name or labels may differ after an event.
func calls(p event.Payload) bool {
	switch p := p.(type) {
	case event.DomainChange:
		return p.Change == event.Defined
	case event.DomainMetadata:
		return true
	}
	return false
}

// pause waits, and reports whether it waited to the end.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// add counts a client in, unless its owner has too many. For a client of another host, that host is
// known by now.
func (s *Server) add(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	who := c.session.who().Owner()
	if s.owners[who] >= s.limits.each || who.PID == 0 && s.strangers[who] >= s.limits.strangers {
		return false
	}
	if s.parties[who] == nil {
		s.parties[who] = s.turns.Tenant()
	}
	c.owner, c.calls = who, fairqueue.With(s.calls, s.parties[who].Flow())
	s.owners[who]++
	s.strangers[who]++
	c.strange = true
	s.gone.Add(1)
	s.clients[c] = struct{}{}
	return true
}

// remove takes an ended connection out of the server's counts.
func (s *Server) remove(c *client) {
	s.mu.Lock()
	delete(s.clients, c)
	s.meet(c)
	who := c.owner
	if s.owners[who]--; s.owners[who] == 0 {
		delete(s.owners, who)
		delete(s.parties, who)
	}
	s.mu.Unlock()
	s.gone.Done()
}

// known counts a client as one that has authenticated.
func (s *Server) known(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meet(c)
}

func (s *Server) meet(c *client) {
	if !c.strange {
		return
	}
	c.strange = false
	who := c.owner
	if s.strangers[who]--; s.strangers[who] == 0 {
		delete(s.strangers, who)
	}
}

// Clients gives the number of connected clients.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

func (s *Server) eachClient(do func(*client)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		do(c)
	}
}

// hangUp waits for the calls in flight to end. After the grace time, it cancels their
// context, ends the connections and waits once more. Calls that ignore that are an error.
func (s *Server) hangUp() error {
	gone := make(chan struct{})
	go func() {
		s.gone.Wait()
		close(gone)
	}()
	s.eachClient((*client).hangUp)
	if endsWithin(gone, s.limits.grace) {
		s.stopCalls(errStopping)
		return nil
	}
	s.stopCalls(errStopping)
	s.eachClient(func(c *client) { c.end(errStopping) })
	if endsWithin(gone, s.limits.grace) {
		return nil
	}
	left := 0
	s.eachClient(func(*client) { left++ })
	return fault.New(fault.Timeout, fault.Call, "calls of %d clients did not end within %v", left, 2*s.limits.grace)
}

func endsWithin(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
