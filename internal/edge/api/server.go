package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/control/memory"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Config says what to serve, and to which clients.
type Config struct {
	Fleet *fleet.Fleet
	// Networks: their operations are listed with the start queue.
	Networks *network.Networks
	Guests   *guest.Registry
	Events   *event.Log
	Starts   *resources.StartQueue
	Kernel   kernel.Root
	Log      *slog.Logger
	// Groups may use the API, in addition to root and the daemon's own user.
	Groups  []uint32
	Version string
	// LibvirtClients counts the connections to the libvirt server.
	LibvirtClients func() int
	// MemoryPicture returns what the memory manager last saw and decided; nil: there is no manager.
	MemoryPicture func() memory.Picture
	// Authorizer decides which client may do what; nil: every admitted client may do everything.
	Authorizer *authz.Authorizer
	// Authenticator authenticates clients; nil: clients of other hosts are not accepted, and polkit is not asked.
	Authenticator *authz.Authenticator
	// Audit receives the actions and the refusals; nil: there is no audit.
	Audit *authz.Audit
}

// Server serves the API.
type Server struct {
	Config
	started time.Time
	// life identifies this run of the daemon, which numbers its events.
	life   string
	limits limits

	conns      *quota // connections, by their owner
	unadmitted *quota // connections without an admitted call
	calls      *quota // calls under way
	largeCalls *quota // calls about all guests
	intake     *quota // bytes of requests
	running    *quota // sets under way
	sets       sets
	work       sync.WaitGroup // the calls
}

// New makes a server; Serve runs it.
func New(c Config) *Server { return newServer(c, defaultLimits()) }

func newServer(c Config, l limits) *Server {
	return &Server{
		Config: c, started: time.Now(), life: uuid.NewString(), limits: l,
		conns: newQuota(l.conns, l.connsEach), unadmitted: newQuota(l.unadmitted, l.unadmittedEach),
		calls: newQuota(l.calls, l.callsEach), largeCalls: newQuota(l.largeCalls, l.largeCallsEach),
		intake: newQuota(l.intake, l.intakeEach), running: newQuota(l.sets, l.setsEach), sets: sets{cancel: map[string]context.CancelCauseFunc{}},
	}
}

// Serve accepts clients from the listeners until ctx ends. Sets under way then begin no more guests, and the
// work that has begun has some time to end. Serve closes the listeners.
func (s *Server) Serve(ctx context.Context, listeners ...Listener) error {
	calls, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	server := s.newHTTPServer(calls)
	served := make(chan error, len(listeners))
	var watching sync.WaitGroup
	defer watching.Wait() // dropRevoked ends because stop was called
	for _, l := range listeners {
		a := s.newAcceptor(l)
		watching.Go(func() { a.dropRevoked(calls, s.Authorizer) })
		go func() {
			err := server.Serve(s.wrapListener(a, l))
			served <- fault.Wrap(err, fault.Failed, fault.Host, "cannot accept clients on %s", l.Addr())
		}()
	}
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-served:
	}
	stop(fault.New(fault.Aborted, fault.Host, "the daemon is stopping"))
	return errors.Join(failure, s.drain(server))
}

func (s *Server) newAcceptor(l Listener) *acceptor {
	return &acceptor{Listener: l.Listener, conns: s.conns, unadmitted: s.unadmitted, authenticator: s.Authenticator, log: s.Log}
}

// wrapListener returns the acceptor, and for clients from other hosts one that makes TLS handshakes.
func (s *Server) wrapListener(a *acceptor, l Listener) net.Listener {
	if l.Certificates == nil {
		return a
	}
	return s.newTLSListener(l, a)
}

// drain waits for the calls in flight to end. It fails if calls still run after the grace time.
func (s *Server) drain(server *http.Server) error {
	late, stop := context.WithTimeout(context.Background(), s.limits.shutdownGrace)
	defer stop()
	if server.Shutdown(late) != nil {
		_ = server.Close()
	}
	ended := make(chan struct{})
	go func() { // ends with the calls
		s.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(s.limits.shutdownGrace):
		return fault.New(fault.Timeout, fault.Call, "%d calls of the API did not end within %v", s.calls.count(), 2*s.limits.shutdownGrace)
	}
}

// newHTTPServer returns the HTTP server of the API, with every bound that net/http offers.
func (s *Server) newHTTPServer(calls context.Context) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           s.handler(),
		Protocols:         &protocols,
		ReadHeaderTimeout: s.limits.handshake,
		IdleTimeout:       s.limits.idle,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{ // no pings: the kernel closes the socket of a client's process that has ended
			MaxConcurrentStreams:          s.limits.streams,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
			WriteByteTimeout:              s.limits.writeTimeout,
		},
		BaseContext: func(net.Listener) context.Context { return calls },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if secure, is := c.(*tls.Conn); is {
				c = secure.NetConn()
			}
			return context.WithValue(ctx, clientKey{}, c.(*client)) // the client's identity is checked at each call
		},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
}

// handler returns the API behind its bounds.
func (s *Server) handler() http.Handler {
	options := []connect.HandlerOption{
		connect.WithConditionalHandlerOptions(s.messageBounds),
		connect.WithCompression("gzip", nil, nil), // none: on the same host it gains nothing, and a small message could expand without bound
		connect.WithInterceptors(faults{}),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, what any) error {
			s.Log.Error("bug in an API call", "call", spec.Procedure, "panic", what)
			return fault.New(fault.Internal, fault.Call, "%s broke: %v", spec.Procedure, what)
		}),
	}
	options = append(options, codecs()...)
	path, api := lodgev1.NewLodgeHandler(s, options...)
	mux := http.NewServeMux()
	mux.Handle(path, api)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("there is no %q; calls are %s and others of api/lodge/v1/lodge.proto", r.URL.Path, lodgev1.LodgeListGuestsProcedure), http.StatusNotFound)
	})
	return &limiter{Server: s, next: mux, errorWriter: connect.NewErrorWriter(options...)}
}

// messageBounds returns the options that bound the size of a call's messages.
func (s *Server) messageBounds(call connect.Spec) []connect.HandlerOption {
	limit := s.limits.message
	switch call.Procedure {
	case lodgev1.LodgeActProcedure, lodgev1.LodgeCreateTilesProcedure, lodgev1.LodgeCloneGuestsProcedure:
		limit = s.limits.documents
	}
	return []connect.HandlerOption{connect.WithReadMaxBytes(limit)}
}
