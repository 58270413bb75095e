package rpc

import (
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Session holds the facts that handlers know about the calling client: its identity,
// its rights and its subscriptions.
type Session struct {
	Client *Client
	peer   listener.Peer
	Gone   chan struct{} // closed when the connection has ended

	mu       sync.Mutex
	Identity authz.Principal
	rejected bool // once already, which the audit has
	asked    bool // polkit, or it is being asked
	proved   bool // polkit said yes
	Admitted bool // authentication is done
	Opened   bool
	readOnly bool
	URI      string
	watched  bool // a close callback is registered

	subs subscriptions
}

// Request is one call of a client: its session, and the scope that the rules give it.
type Request struct {
	*Session
	Scope scope.Scope
}

// newSession makes the session of a new connection, with the identity that the kernel reports.
func newSession(c *Client, p listener.Peer, readOnly bool) *Session {
	return &Session{Client: c, peer: p, Identity: authz.LocalPrincipal(p), Gone: make(chan struct{}), readOnly: readOnly}
}

// Limits on one packet from a client, in bytes. Before authentication no client needs
// more than the first. Read-only calls take no long documents.
const (
	FrameLimitStranger = 64 << 10
	FrameLimitReader   = 4 << 20
	frameLimit         = xdr.MaxPacket
)

// frameLimit gives the size in bytes of the largest packet that the client may send now.
func (s *Session) frameLimit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.Admitted:
		return FrameLimitStranger
	case s.readOnly:
		return FrameLimitReader
	}
	return frameLimit
}

// authenticated says whether the client was admitted.
func (s *Session) authenticated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Admitted
}

// mayWrite reports whether the session may change and see everything. Handlers ask it
// only about flags: a call that is refused as a whole never reaches its handler.
func (s *Session) mayWrite() bool {
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

// IsAuth says whether a procedure belongs to authentication.
func IsAuth(p *xdr.Procedure) bool {
	return p.Program == xdr.ProgramRemote && p.Number >= xdr.ProcAuthList && p.Number <= xdr.ProcAuthPolkit
}

// permit says whether the session may make a call now.
func (s *Session) permit(p *xdr.Procedure) error {
	if IsAuth(p) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.Admitted:
		return rpcFault("authentication required")
	case !s.Opened && (p.Program != xdr.ProgramRemote || !beforeOpen[p.Number]):
		return WithCode(CodeInternal, fault.New(fault.WrongState, fault.Call, "connection not open"))
	case s.readOnly && p.RefusesReadOnly(Blank(p)):
		return errReadOnly(p)
	}
	return nil
}

// Blank are the arguments of a call that sets no field.
func Blank(p *xdr.Procedure) xdr.Message {
	if p.NewArgs == nil {
		return nil
	}
	return p.NewArgs()
}

// permitArgs says whether the session may make a permitted call with these arguments:
// two calls are refused to read-only clients only with certain arguments.
func (s *Session) permitArgs(p *xdr.Procedure, args xdr.Message) error {
	if p.RefusesReadOnly(args) && !s.mayWrite() {
		return errReadOnly(p)
	}
	return nil
}

func errReadOnly(p *xdr.Procedure) error {
	return WithCode(CodeOperationDenied, fault.New(fault.Denied, fault.Call, "read only access prevents %s", FunctionName(p.Name)))
}

// DenyReadOnly refuses a flag of a permitted call, or another part of it, to a read-only client.
func (s *Session) DenyReadOnly(call, what string) error {
	if s.mayWrite() {
		return nil
	}
	return WithCode(CodeOperationDenied, fault.New(fault.Denied, fault.Call, "read only access prevents %s with %s", FunctionName(call), what))
}

// end releases the resources that the client left behind.
func (s *Session) end() {
	s.unsubscribeAll()
	close(s.Gone)
}

// admit lets the client in if its peer has the right to connect.
func (s *Session) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Admitted {
		return nil
	}
	gate := s.Client.Server.Gate
	var err error
	switch {
	case !s.Identity.Local: // its certificate has let it in
	case !s.Client.Server.reception.AsksPolkit(s.Identity):
		err = s.peer.Admit(s.readOnly || gate.HasRules(), s.Client.Server.groups)
	case !s.proved:
		err = fault.New(fault.Denied, fault.Call, "polkit has not said yet that %s may come in", s.Identity)
	}
	if err == nil {
		err = gate.Admit(s.Identity)
	}
	if err != nil {
		if !s.rejected {
			s.rejected = true
			s.Client.Server.Audit.Note(authz.Entry{Principal: s.Identity, API: "libvirt", Call: "AUTH_LIST", Err: err})
		}
		return WithCode(codeAuthFailed, err)
	}
	s.Admitted = true
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

// address is the name of the connection.
func (s *Session) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.URI
}
