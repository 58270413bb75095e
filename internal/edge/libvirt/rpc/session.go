package rpc

import (
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Session holds the state of a client that handlers use: its identity, its rights and
// its subscriptions.
type Session struct {
	Client *Client
	peer   listener.Peer
	Closed chan struct{} // closed when the connection has ended

	mu             sync.Mutex
	Identity       authz.Principal
	refusalAudited bool // the audit has the failed authentication; later ones are not recorded
	polkitAsked    bool // polkit was asked, or is being asked
	polkitAllowed  bool // polkit admitted the client
	Authenticated  bool
	Opened         bool // CONNECT_OPEN succeeded
	readOnly       bool
	URI            string
	closeCallback  bool // a close callback is registered

	subs subscriptions
}

// Request is one call of a client: its session, and the scope that the rules grant it.
type Request struct {
	*Session
	Scope scope.Scope
}

// newSession makes the session of a new connection, with the identity that the kernel reports.
func newSession(c *Client, p listener.Peer, readOnly bool) *Session {
	return &Session{Client: c, peer: p, Identity: authz.LocalPrincipal(p), Closed: make(chan struct{}), readOnly: readOnly}
}

// Limits on one packet from a client, in bytes: before authentication, on a read-only
// connection, and otherwise. Read-only calls take no long documents.
const (
	FrameLimitAnonymous = 64 << 10
	FrameLimitReadOnly  = 4 << 20
	frameLimit          = xdr.MaxPacket
)

// frameLimit gives the size in bytes of the largest packet that the client may send now.
func (s *Session) frameLimit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.Authenticated:
		return FrameLimitAnonymous
	case s.readOnly:
		return FrameLimitReadOnly
	}
	return frameLimit
}

// authenticated reports whether the client was admitted.
func (s *Session) authenticated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Authenticated
}

// mayWrite reports whether the session is read-write. Handlers need it only for
// flags: a call that is refused as a whole never reaches its handler.
func (s *Session) mayWrite() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.readOnly
}

// callsBeforeOpen are the calls that need no open connection.
var callsBeforeOpen = map[int32]bool{
	xdr.ProcConnectOpen:            true,
	xdr.ProcConnectClose:           true,
	xdr.ProcConnectSupportsFeature: true,
}

// IsAuth says whether a procedure belongs to authentication.
func IsAuth(p *xdr.Procedure) bool {
	return p.Program == xdr.ProgramRemote && p.Number >= xdr.ProcAuthList && p.Number <= xdr.ProcAuthPolkit
}

// checkCall refuses a call in the wrong phase of the connection, and a changing call of a read-only client.
func (s *Session) checkCall(p *xdr.Procedure) error {
	if IsAuth(p) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.Authenticated:
		return rpcFault("authentication required")
	case !s.Opened && (p.Program != xdr.ProgramRemote || !callsBeforeOpen[p.Number]):
		return WithCode(CodeInternal, fault.New(fault.WrongState, fault.Call, "connection not open"))
	case s.readOnly && p.RefusesReadOnly(ZeroArgs(p)):
		return errReadOnly(p)
	}
	return nil
}

// ZeroArgs returns the arguments of a call with every field zero; nil for a call without arguments.
func ZeroArgs(p *xdr.Procedure) xdr.Message {
	if p.NewArgs == nil {
		return nil
	}
	return p.NewArgs()
}

// checkArgs is checkCall for the two calls that are refused to read-only clients only with
// certain arguments.
func (s *Session) checkArgs(p *xdr.Procedure, args xdr.Message) error {
	if p.RefusesReadOnly(args) && !s.mayWrite() {
		return errReadOnly(p)
	}
	return nil
}

func errReadOnly(p *xdr.Procedure) error {
	return WithCode(CodeOperationDenied, fault.New(fault.Denied, fault.Call, "read only access prevents %s", FunctionName(p.Name)))
}

// DenyReadOnly refuses a flag of a call, or another part of it, to a read-only client.
func (s *Session) DenyReadOnly(call, what string) error {
	if s.mayWrite() {
		return nil
	}
	return WithCode(CodeOperationDenied, fault.New(fault.Denied, fault.Call, "read only access prevents %s with %s", FunctionName(call), what))
}

// close ends the client's subscriptions, and the work that must not outlive the connection.
func (s *Session) close() {
	s.unsubscribeAll()
	close(s.Closed)
}

// admit lets the client in if its peer has the right to connect.
func (s *Session) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Authenticated {
		return nil
	}
	authorizer := s.Client.Server.Authorizer
	var err error
	switch {
	case !s.Identity.Local: // its certificate has admitted it
	case !s.Client.Server.authenticator.AsksPolkit(s.Identity):
		err = s.peer.Admit(s.readOnly || authorizer.HasRules(), s.Client.Server.groups)
	case !s.polkitAllowed:
		err = fault.New(fault.Denied, fault.Call, "polkit has not authenticated %s yet", s.Identity)
	}
	if err == nil {
		err = authorizer.Admit(s.Identity)
	}
	if err != nil {
		if !s.refusalAudited {
			s.refusalAudited = true
			s.Client.Server.Audit.Note(authz.Entry{Principal: s.Identity, API: "libvirt", Call: "AUTH_LIST", Err: err})
		}
		return WithCode(codeAuthFailed, err)
	}
	s.Authenticated = true
	return nil
}

// open marks the session as an open connection to qemu:///system.
func (s *Session) open(uri string, readOnly bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Opened {
		return WithCode(CodeInternal, fault.New(fault.WrongState, fault.Call, "connection already open"))
	}
	s.Opened, s.URI = true, uri
	s.readOnly = s.readOnly || readOnly
	return nil
}

// uri returns the URI that the client opened.
func (s *Session) uri() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.URI
}
