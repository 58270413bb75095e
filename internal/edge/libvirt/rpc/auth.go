package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// The ways to authenticate that Lodge has, by libvirt's numbers.
const (
	authNone   = 0 // the client is in
	authPolkit = 2
)

// farewell is the time for a client that polkit refused to read the refusal.
const farewell = 5 * time.Second

// AuthCalls are the calls before authentication. The kernel identifies a client of a
// unix socket, and a certificate identifies any other client. Only polkit's consent may
// still be missing.
func AuthCalls(g Group) {
	On(g, xdr.ProcAuthList, authList)
	On(g, xdr.ProcAuthPolkit, authenticatePolkit)
}

// authList is every client's first call. A peer that may not come in gets the
// reason, and its connection ends when the time for authentication is over.
func authList(_ context.Context, h *Handlers, s *Request, _ *Void) (*xdr.AuthListRet, error) {
	if !s.authenticated() && s.Client.Server.reception.AsksPolkit(s.Who()) {
		return &xdr.AuthListRet{Types: []int32{authPolkit}}, nil
	}
	if err := s.letIn(); err != nil {
		return nil, err
	}
	return &xdr.AuthListRet{Types: []int32{authNone}}, nil
}

func authenticatePolkit(ctx context.Context, h *Handlers, s *Request, _ *Void) (*xdr.AuthPolkitRet, error) {
	if !s.Client.Server.reception.AsksPolkit(s.Who()) {
		return nil, WithCode(CodeNoSupport, fault.New(fault.Unsupported, fault.Call, "AUTH_POLKIT: polkit does not decide about this client"))
	}
	if err := s.prove(ctx); err != nil {
		return nil, err
	}
	if err := s.letIn(); err != nil {
		return nil, err
	}
	return &xdr.AuthPolkitRet{Complete: true}, nil
}

func (s *Session) letIn() error {
	err := s.admit()
	if err == nil {
		s.Client.Server.Known(s.Client)
	}
	return err
}

// prove asks polkit whether the client may come in, once on a connection. A refused
// client may connect again, as often as there are strikes.
func (s *Session) prove(ctx context.Context) error {
	c := s.Client
	s.mu.Lock()
	asked := s.asked
	s.asked = true
	s.mu.Unlock()
	if asked {
		return WithCode(codeAuthFailed, fault.New(fault.WrongState, fault.Call, "polkit is asked once on a connection; connect anew"))
	}
	// A user who types a password gets the time for it.
	c.greeting.Reset(polkit.Patience + c.Server.Limits.Handshake)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(c.Life, func() { stop(context.Cause(c.Life)) })()
	err := c.lost
	if err == nil {
		err = c.Server.reception.AuthenticateLocal(ctx, s.Who(), c.process, !s.mayWrite())
	}
	if err != nil {
		c.greeting.Reset(farewell)
		s.refuse("AUTH_POLKIT", err)
		return WithCode(polkitCode(err), err)
	}
	s.mu.Lock()
	s.proved = true
	s.mu.Unlock()
	c.Server.Audit.Note(authz.Entry{Principal: s.Who(), API: "libvirt", Call: "AUTH_POLKIT", Login: true})
	return nil
}

// refuse notes that the client was not let in, once on a connection.
func (s *Session) refuse(call string, err error) {
	s.mu.Lock()
	rejected := s.rejected
	s.rejected = true
	s.mu.Unlock()
	if !rejected {
		s.Client.Server.Audit.Note(authz.Entry{Principal: s.Who(), API: "libvirt", Call: call, Err: err})
	}
}

// polkitCode gives the error code for polkit's refusal. It tells the client whether an
// authentication agent would help; virsh then starts one and connects again.
func polkitCode(err error) Code {
	switch {
	case errors.Is(err, polkit.ErrNoAgent):
		return codeAuthUnavailable
	case errors.Is(err, polkit.ErrDismissed):
		return codeAuthCancelled
	}
	return codeAuthFailed
}
