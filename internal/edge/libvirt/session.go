package libvirt

import (
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// session holds the facts that handlers know about the calling client: its identity,
// its rights and its subscriptions.
type session struct {
	client *client
	peer   listener.Peer
	gone   chan struct{} // closed when the connection has ended

	mu       sync.Mutex
	identity authz.Who
	rejected bool // once already, which the audit has
	asked    bool // polkit, or it is being asked
	proved   bool // polkit said yes
	admitted bool // authentication is done
	opened   bool
	readOnly bool
	uri      string
	watched  bool // a close callback is registered

	subs subscriptions
}

// request is one call of a client: its session, and the scope that the rules give it.
type request struct {
	*session
	scope scope.Scope
}

// newSession makes the session of a new connection, with the identity that the kernel reports.
func newSession(c *client, p listener.Peer, readOnly bool) *session {
	return &session{client: c, peer: p, identity: authz.LocalWho(p), gone: make(chan struct{}), readOnly: readOnly}
}

// Limits on one packet from a client, in bytes. Before authentication no client needs
// more than the first. Read-only calls take no long documents.
const (
	frameLimitStranger = 64 << 10
	frameLimitReader   = 4 << 20
	frameLimit         = xdr.MaxPacket
)

// frameLimit gives the size in bytes of the largest packet that the client may send now.
func (s *session) frameLimit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.admitted:
		return frameLimitStranger
	case s.readOnly:
		return frameLimitReader
	}
	return frameLimit
}

// authenticated says whether the client was admitted.
func (s *session) authenticated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admitted
}

// mayWrite reports whether the session may change and see everything. Handlers ask it
// only about flags: a call that is refused as a whole never reaches its handler.
func (s *session) mayWrite() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.readOnly
}

// beforeOpen are the calls that make sense without an open connection.
var beforeOpen = map[int32]bool{
	xdr.ProcConnectOpen:            true,
	xdr.ProcConnectClose:           true,
	xdr.ProcConnectSupportsFeature: true,
}

// isAuth says whether a procedure belongs to authentication.
func isAuth(p *xdr.Procedure) bool {
	return p.Program == xdr.ProgramRemote && p.Number >= xdr.ProcAuthList && p.Number <= xdr.ProcAuthPolkit
}

// permit says whether the session may make a call now.
func (s *session) permit(p *xdr.Procedure) error {
	if isAuth(p) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.admitted:
		return rpcFault("authentication required")
	case !s.opened && (p.Program != xdr.ProgramRemote || !beforeOpen[p.Number]):
		return withCode(codeInternal, fault.New(fault.WrongState, fault.Call, "connection not open"))
	case s.readOnly && p.RefusesReadOnly(blank(p)):
		return errReadOnly(p)
	}
	return nil
}

// blank are the arguments of a call that sets no field.
func blank(p *xdr.Procedure) xdr.Message {
	if p.NewArgs == nil {
		return nil
	}
	return p.NewArgs()
}

// permitArgs says whether the session may make a permitted call with these arguments:
// two calls are refused to read-only clients only with certain arguments.
func (s *session) permitArgs(p *xdr.Procedure, args xdr.Message) error {
	if p.RefusesReadOnly(args) && !s.mayWrite() {
		return errReadOnly(p)
	}
	return nil
}

func errReadOnly(p *xdr.Procedure) error {
	return withCode(codeOperationDenied, fault.New(fault.Denied, fault.Call, "read only access prevents %s", functionName(p.Name)))
}

// denyReadOnly refuses a flag of a permitted call, or another part of it, to a read-only client.
func (s *session) denyReadOnly(call, what string) error {
	if s.mayWrite() {
		return nil
	}
	return withCode(codeOperationDenied, fault.New(fault.Denied, fault.Call, "read only access prevents %s with %s", functionName(call), what))
}

// end releases the resources that the client left behind.
func (s *session) end() {
	s.unsubscribeAll()
	close(s.gone)
}

// admit lets the client in if its peer has the right to connect.
func (s *session) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admitted {
		return nil
	}
	gate := s.client.server.gate
	var err error
	switch {
	case !s.identity.Local: // its certificate has let it in
	case !s.client.server.reception.Asks(s.identity):
		err = s.peer.Admit(s.readOnly || gate.Ruled(), s.client.server.groups)
	case !s.proved:
		err = fault.New(fault.Denied, fault.Call, "polkit has not said yet that %s may come in", s.identity)
	}
	if err == nil {
		err = gate.Admit(s.identity)
	}
	if err != nil {
		if !s.rejected {
			s.rejected = true
			s.client.server.audit.Note(authz.Entry{Who: s.identity, API: "libvirt", Call: "AUTH_LIST", Err: err})
		}
		return withCode(codeAuthFailed, err)
	}
	s.admitted = true
	return nil
}

// open marks the session as an open connection to qemu:///system.
func (s *session) open(uri string, readOnly bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened {
		return withCode(codeInternal, fault.New(fault.WrongState, fault.Call, "connection already open"))
	}
	s.opened, s.uri = true, uri
	s.readOnly = s.readOnly || readOnly
	return nil
}

// address is the name of the connection.
func (s *session) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uri
}
