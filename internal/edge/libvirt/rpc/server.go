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

// Backends are the objects that the handlers act on; a handler calls one of them for each call.
type Backends struct {
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
	Backends
	Log *slog.Logger
	// Groups may use the read-write sockets, in addition to root and the daemon's own user.
	Groups []uint32
	// Authorizer decides which client may do what; nil: an admitted client may do everything.
	Authorizer *authz.Authorizer
	// Authenticator identifies clients beyond the kernel's credentials; nil: no client comes
	// from another host, and polkit is not asked.
	Authenticator *authz.Authenticator
	// Audit records the calls that were done and refused; nil: no record is kept.
	Audit *authz.Audit
}

// Limits bound the resources that one client or one socket may hold. When one of the
// times runs out, the server ends the client's connection or its stream.
type Limits struct {
	Clients           int           // connections on one socket; more wait to be accepted
	ClientsPerOwner   int           // connections of one user, or of one process of root; more are closed
	AnonymousPerOwner int           // connections of one user that are not authenticated yet; processes of root have no bound
	Calls             int           // in flight on one connection, those that wait for a slot included
	RunningCalls      int           // ordinary calls that run at a time for one connection
	Streams           int           // streams that move data at a time, on one connection
	sendQueue         int           // packets that wait to be sent to one client
	Handshake         time.Duration // from connecting to authentication
	PacketTimeout     time.Duration // for a client to take a slice of a packet, or to continue one that it sends
	StreamStall       time.Duration // for a stream to take a packet
	UploadIdle        time.Duration // for a client to send more of an upload
	ShutdownGrace     time.Duration // for calls in flight when the daemon stops
}

// intakeBytes gives the bytes of calls that a client may have in flight.
func (Limits) intakeBytes(readOnly bool) int {
	if readOnly {
		return 2 * FrameLimitReadOnly
	}
	return 2 * frameLimit
}

func defaultLimits() Limits {
	return Limits{
		Clients: 4096, ClientsPerOwner: 1024, AnonymousPerOwner: 512, Calls: 256, RunningCalls: 32, Streams: 64, sendQueue: 32,
		Handshake: 30 * time.Second, PacketTimeout: 30 * time.Second, StreamStall: 60 * time.Second, UploadIdle: 5 * time.Minute, ShutdownGrace: 5 * time.Second,
	}
}

// Handlers serve the calls. A handler translates; the backends do the work.
type Handlers struct{ Backends }

// Server serves libvirt's protocol.
type Server struct {
	log           *slog.Logger
	groups        []uint32
	Authorizer    *authz.Authorizer
	authenticator *authz.Authenticator
	Audit         *authz.Audit
	Limits        Limits
	Table         Table
	Handlers      Handlers

	// callCtx is the context of every call. It does not end with the call's client.
	callCtx   context.Context
	stopCalls context.CancelCauseFunc
	scheduler *fairqueue.Scheduler
	Memory    Memory

	Mu          sync.Mutex
	Connected   map[*Client]struct{}
	Connections map[authz.Owner]int               // the number of each owner; no zeros
	Tenants     map[authz.Owner]*fairqueue.Tenant // of the owners with connections
	Anonymous   map[authz.Owner]int               // connections that are not authenticated yet; no zeros
	serving     sync.WaitGroup                    // done when every connection has ended
}

// NewServer makes a server for the calls in a table.
func NewServer(c Config, t Table) *Server {
	s := &Server{
		log:           c.Log,
		groups:        c.Groups,
		Authorizer:    c.Authorizer,
		authenticator: c.Authenticator,
		Audit:         c.Audit,
		Limits:        defaultLimits(),
		Table:         t,
		Handlers:      Handlers{Backends: c.Backends},
		// The runtime polls for incoming data when it has a processor to spare, so one
		// is left to it. The daemon has one more than the host.
		scheduler:   fairqueue.New(max(runtime.GOMAXPROCS(0)-1, 1)),
		Connected:   map[*Client]struct{}{},
		Connections: map[authz.Owner]int{},
		Tenants:     map[authz.Owner]*fairqueue.Tenant{},
		Anonymous:   map[authz.Owner]int{},
	}
	s.Memory = NewMemory(MaxClientMemory)
	s.callCtx, s.stopCalls = context.WithCancelCause(context.Background())
	return s
}

// Serve accepts clients from the listeners until ctx ends. Then it answers the calls in
// flight, within the grace time. It closes the listeners. It returns an error when a
// listener fails permanently, or when calls did not end.
func (s *Server) Serve(ctx context.Context, listeners ...Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var accepting sync.WaitGroup
	if s.Authorizer.HasRules() {
		names := s.Handlers.Events.Reader()
		accepting.Go(func() { s.watchNames(ctx, names) })
	}
	for _, l := range listeners {
		accepting.Go(func() {
			if err := s.accept(ctx, l); err != nil {
				stop(err)
			}
		})
	}
	accepting.Go(func() { s.watchRules(ctx) })
	<-ctx.Done()
	for _, l := range listeners {
		_ = l.Close()
	}
	accepting.Wait()
	err := s.drain()
	if cause := context.Cause(ctx); fault.Is(cause, fault.Failed) {
		err = errors.Join(cause, err)
	}
	return err
}

// accept accepts clients from one listener. At the bound on connections, further clients
// wait in the kernel, so a full socket does not affect other sockets.
func (s *Server) accept(ctx context.Context, l Listener) error {
	slots := make(chan struct{}, s.Limits.Clients)
	for {
		select {
		case slots <- struct{}{}:
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
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot accept clients on %s", l.Addr())
		case err != nil: // probably out of descriptors: the next attempt may succeed
			<-slots
			s.log.Warn("cannot accept a client", "socket", l.Addr(), "error", err)
			if !sleep(ctx, 100*time.Millisecond) {
				return nil
			}
			continue
		}
		c := NewClient(s, conn, l.ReadOnly)
		if l.Certificates != nil {
			c.useTLS(l)
		}
		if !s.Add(c) {
			s.log.Warn("too many connections of one owner; client refused", "socket", l.Addr(), "pid", c.Session.peer.PID, "uid", c.Session.peer.UID)
			c.End(errTooManyConnections)
			_ = conn.Close()
			<-slots
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer s.Remove(c)
			c.Serve()
		}()
	}
}

// watchRules checks every client again when the rules change.
func (s *Server) watchRules(ctx context.Context) {
	changed := s.Authorizer.Changed()
	for {
		select {
		case <-changed:
			changed = s.Authorizer.Changed()
			s.EachClient((*Client).recheckRules)
		case <-ctx.Done():
			return
		}
	}
}

// watchNames checks open streams again when a guest's name or labels change, because rules select
// guests by them.
func (s *Server) watchNames(ctx context.Context, reader *event.Reader) {
	for {
		e, lost, err := reader.Next(ctx)
		if err != nil {
			return
		}
		guest := e.Source.UUID
		if lost > 0 {
			guest = "" // the lost events may be about any guest
		}
		if lost > 0 || changesIdentity(e.Payload) {
			s.EachClient(func(c *Client) { c.Streams.endDenied(guest) })
		}
	}
}

// changesIdentity reports whether an event may come from a change of a guest's name or labels.
func changesIdentity(p event.Payload) bool {
	switch p := p.(type) {
	case event.DomainChange:
		return p.Change == event.Defined
	case event.DomainMetadata:
		return true
	}
	return false
}

// sleep waits, and reports whether it waited to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Add counts a connection, unless its owner has too many. The owner is known: the user, the process of
// root, or the other host.
func (s *Server) Add(c *Client) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	owner := c.Session.Principal().Owner()
	if s.Connections[owner] >= s.Limits.ClientsPerOwner || owner.PID == 0 && s.Anonymous[owner] >= s.Limits.AnonymousPerOwner {
		return false
	}
	if s.Tenants[owner] == nil {
		s.Tenants[owner] = s.scheduler.Tenant()
	}
	c.Owner, c.callCtx = owner, fairqueue.With(s.callCtx, s.Tenants[owner].Flow())
	s.Connections[owner]++
	s.Anonymous[owner]++
	c.anonymous = true
	s.serving.Add(1)
	s.Connected[c] = struct{}{}
	return true
}

// Remove takes an ended connection out of the server's counts.
func (s *Server) Remove(c *Client) {
	s.Mu.Lock()
	delete(s.Connected, c)
	s.uncountAnonymous(c)
	owner := c.Owner
	if s.Connections[owner]--; s.Connections[owner] == 0 {
		delete(s.Connections, owner)
		delete(s.Tenants, owner)
	}
	s.Mu.Unlock()
	s.serving.Done()
}

// MarkAuthenticated no longer counts a client among the anonymous ones.
func (s *Server) MarkAuthenticated(c *Client) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.uncountAnonymous(c)
}

func (s *Server) uncountAnonymous(c *Client) {
	if !c.anonymous {
		return
	}
	c.anonymous = false
	owner := c.Owner
	if s.Anonymous[owner]--; s.Anonymous[owner] == 0 {
		delete(s.Anonymous, owner)
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

// drain waits for the calls in flight to end. After the grace time, it cancels their
// context, ends the connections and waits once more. It fails if calls still run then.
func (s *Server) drain() error {
	ended := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(ended)
	}()
	s.EachClient((*Client).stopReading)
	if closedWithin(ended, s.Limits.ShutdownGrace) {
		s.stopCalls(errStopping)
		return nil
	}
	s.stopCalls(errStopping)
	s.EachClient(func(c *Client) { c.End(errStopping) })
	if closedWithin(ended, s.Limits.ShutdownGrace) {
		return nil
	}
	left := 0
	s.EachClient(func(*Client) { left++ })
	return fault.New(fault.Timeout, fault.Call, "calls of %d clients did not end within %v", left, 2*s.Limits.ShutdownGrace)
}

func closedWithin(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
