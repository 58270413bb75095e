package rpc

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
	Secrets   *secret.Secrets
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
	Gate *authz.Authorizer
	// Reception identifies clients beyond the kernel's credentials; nil: no client comes
	// from another host, and polkit is not asked.
	Reception *authz.Authenticator
	// Audit records the calls that were done and refused; nil: no record is kept.
	Audit *authz.Audit
}

// Limits bound the resources that one client or one socket may hold. When one of the
// times runs out, the server gives the client up.
type Limits struct {
	Clients   int // connections at a time on one socket; more wait to be accepted
	Each      int // of them that one user may have, or one process of root's; more are closed
	Strangers int // of them that have not authenticated yet; processes of root may have as many as they like
	Calls     int // in flight on one connection, those that wait for a place included
	Running   int // ordinary calls that run at a time for one connection
	Streams   int // that move data at a time, on one connection
	queue     int // packets that wait to be sent to one client
	Handshake time.Duration
	Patience  time.Duration // for a client to take a slice of a packet
	Stall     time.Duration // for a stream to take a packet
	Idle      time.Duration // for a client to send more of an upload
	Grace     time.Duration // for calls in flight when the daemon stops
}

// intake gives the bytes of calls that a client may have in flight.
func (Limits) intake(readOnly bool) int {
	if readOnly {
		return 2 * FrameLimitReader
	}
	return 2 * frameLimit
}

func defaultLimits() Limits {
	return Limits{
		Clients: 4096, Each: 1024, Strangers: 512, Calls: 256, Running: 32, Streams: 64, queue: 32,
		Handshake: 30 * time.Second, Patience: 30 * time.Second, Stall: 60 * time.Second, Idle: 5 * time.Minute, Grace: 5 * time.Second,
	}
}

// Handlers serve the calls. A handler translates; the packages in Rooms do the work.
type Handlers struct{ Rooms }

// Server serves libvirt's protocol.
type Server struct {
	log       *slog.Logger
	groups    []uint32
	Gate      *authz.Authorizer
	reception *authz.Authenticator
	Audit     *authz.Audit
	Limits    Limits
	Table     Table
	Handlers  Handlers

	// calls is the context of every call. It does not end with the call's client.
	calls     context.Context
	stopCalls context.CancelCauseFunc
	turns     *fairqueue.Scheduler
	Memory    Memory

	Mu        sync.Mutex
	Connected map[*Client]struct{}
	Owners    map[authz.Owner]int // connections
	Parties   map[authz.Owner]*fairqueue.Tenant
	Strangers map[authz.Owner]int // of them, those that have not authenticated yet
	gone      sync.WaitGroup      // the clients
}

// NewServer makes a server for the calls in a table.
func NewServer(c Config, t Table) *Server {
	s := &Server{
		log:       c.Log,
		groups:    c.Groups,
		Gate:      c.Gate,
		reception: c.Reception,
		Audit:     c.Audit,
		Limits:    defaultLimits(),
		Table:     t,
		Handlers:  Handlers{Rooms: c.Rooms},
		// The runtime polls for incoming data when it has a processor to spare, so one
		// is left to it. The daemon has one more than the host.
		turns:     fairqueue.New(max(runtime.GOMAXPROCS(0)-1, 1)),
		Connected: map[*Client]struct{}{},
		Owners:    map[authz.Owner]int{},
		Parties:   map[authz.Owner]*fairqueue.Tenant{},
		Strangers: map[authz.Owner]int{},
	}
	s.Memory = NewMemory(MaxHeld)
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
	if s.Gate.HasRules() {
		names := s.Handlers.Events.Reader()
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
	places := make(chan struct{}, s.Limits.Clients)
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
		c := NewClient(s, conn, l.ReadOnly)
		if l.Certificates != nil {
			c.fromAfar(l)
		}
		if !s.Add(c) {
			s.log.Warn("a client has too many connections and gets no more", "socket", l.Addr(), "pid", c.Session.peer.PID, "uid", c.Session.peer.UID)
			c.End(errCrowd)
			_ = conn.Close()
			<-places
			continue
		}
		go func() {
			defer func() { <-places }()
			defer s.Remove(c)
			c.Serve()
		}()
	}
}

// heed checks every client again when the rules change.
func (s *Server) heed(ctx context.Context) {
	changed := s.Gate.Changed()
	for {
		select {
		case <-changed:
			changed = s.Gate.Changed()
			s.EachClient((*Client).recheck)
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
			s.EachClient(func(c *Client) { c.Streams.endDenied(of) })
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

// Add counts a client in, unless its owner has too many. For a client of another host, that host is
// known by now.
func (s *Server) Add(c *Client) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	who := c.Session.Who().Owner()
	if s.Owners[who] >= s.Limits.Each || who.PID == 0 && s.Strangers[who] >= s.Limits.Strangers {
		return false
	}
	if s.Parties[who] == nil {
		s.Parties[who] = s.turns.Tenant()
	}
	c.Owner, c.calls = who, fairqueue.With(s.calls, s.Parties[who].Flow())
	s.Owners[who]++
	s.Strangers[who]++
	c.strange = true
	s.gone.Add(1)
	s.Connected[c] = struct{}{}
	return true
}

// Remove takes an ended connection out of the server's counts.
func (s *Server) Remove(c *Client) {
	s.Mu.Lock()
	delete(s.Connected, c)
	s.meet(c)
	who := c.Owner
	if s.Owners[who]--; s.Owners[who] == 0 {
		delete(s.Owners, who)
		delete(s.Parties, who)
	}
	s.Mu.Unlock()
	s.gone.Done()
}

// Known counts a client as one that has authenticated.
func (s *Server) Known(c *Client) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.meet(c)
}

func (s *Server) meet(c *Client) {
	if !c.strange {
		return
	}
	c.strange = false
	who := c.Owner
	if s.Strangers[who]--; s.Strangers[who] == 0 {
		delete(s.Strangers, who)
	}
}

// Clients gives the number of connected clients.
func (s *Server) Clients() int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Connected)
}

// EachClient does something for every client.
func (s *Server) EachClient(do func(*Client)) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for c := range s.Connected {
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
	s.EachClient((*Client).hangUp)
	if endsWithin(gone, s.Limits.Grace) {
		s.stopCalls(errStopping)
		return nil
	}
	s.stopCalls(errStopping)
	s.EachClient(func(c *Client) { c.End(errStopping) })
	if endsWithin(gone, s.Limits.Grace) {
		return nil
	}
	left := 0
	s.EachClient(func(*Client) { left++ })
	return fault.New(fault.Timeout, fault.Call, "calls of %d clients did not end within %v", left, 2*s.Limits.Grace)
}

func endsWithin(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
