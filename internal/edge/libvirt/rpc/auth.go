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

// The authentication types that Lodge offers, by libvirt's numbers.
const (
	authNone   = 0 // the client is authenticated
	authPolkit = 2
)

// refusalTimeout is the time that a client has to read polkit's refusal.
const refusalTimeout = 5 * time.Second

// AuthCalls are the calls before authentication. The kernel identifies a client of a
// unix socket, and a certificate identifies any other client. The only thing that can
// still be needed is polkit's answer.
func AuthCalls(g Group) {
	On(g, xdr.ProcAuthList, authList)
	On(g, xdr.ProcAuthPolkit, authenticatePolkit)
}

// authList is every client's first call. A client that is refused gets the reason; its
// connection ends when the time for authentication is over.
func authList(_ context.Context, h *Handlers, s *Request, _ *Void) (*xdr.AuthListRet, error) {
	if !s.authenticated() && s.Client.Server.authenticator.AsksPolkit(s.Principal()) {
		return &xdr.AuthListRet{Types: []int32{authPolkit}}, nil
	}
	if err := s.logIn(); err != nil {
		return nil, err
	}
	return &xdr.AuthListRet{Types: []int32{authNone}}, nil
}

func authenticatePolkit(ctx context.Context, h *Handlers, s *Request, _ *Void) (*xdr.AuthPolkitRet, error) {
	if !s.Client.Server.authenticator.AsksPolkit(s.Principal()) {
		return nil, WithCode(CodeNoSupport, fault.New(fault.Unsupported, fault.Call, "AUTH_POLKIT: polkit does not decide about this client"))
	}
	if err := s.askPolkit(ctx); err != nil {
		return nil, err
	}
	if err := s.logIn(); err != nil {
		return nil, err
	}
	return &xdr.AuthPolkitRet{Complete: true}, nil
}

// logIn admits the client and marks it as authenticated. It ends every way to log in.
func (s *Session) logIn() error {
	err := s.admit()
	if err == nil {
		s.Client.Server.MarkAuthenticated(s.Client)
	}
	return err
}

// askPolkit asks polkit to authenticate the client, once on a connection. A refused
// client may connect again, until the authenticator locks its user out.
func (s *Session) askPolkit(ctx context.Context) error {
	c := s.Client
	s.mu.Lock()
	asked := s.polkitAsked
	s.polkitAsked = true
	s.mu.Unlock()
	if asked {
		return WithCode(codeAuthFailed, fault.New(fault.WrongState, fault.Call, "polkit is asked once on a connection; connect again"))
	}
	// A user who types a password gets the time for it.
	c.authTimer.Reset(polkit.Patience + c.Server.Limits.Handshake)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(c.Ctx, func() { stop(context.Cause(c.Ctx)) })()
	err := c.processErr
	if err == nil {
		err = c.Server.authenticator.AuthenticateLocal(ctx, s.Principal(), c.process, !s.mayWrite())
	}
	if err != nil {
		c.authTimer.Reset(refusalTimeout)
		s.auditAuthFailure("AUTH_POLKIT", err)
		return WithCode(polkitCode(err), err)
	}
	s.mu.Lock()
	s.polkitAllowed = true
	s.mu.Unlock()
	c.Server.Audit.Note(authz.Entry{Principal: s.Principal(), API: "libvirt", Call: "AUTH_POLKIT", Login: true})
	return nil
}

// auditAuthFailure records in the audit that authentication failed, once on a connection.
func (s *Session) auditAuthFailure(call string, err error) {
	s.mu.Lock()
	rejected := s.refusalAudited
	s.refusalAudited = true
	s.mu.Unlock()
	if !rejected {
		s.Client.Server.Audit.Note(authz.Entry{Principal: s.Principal(), API: "libvirt", Call: call, Err: err})
	}
}

// polkitCode returns the error code for polkit's refusal. By this code virsh starts an
// authentication agent and connects again.
func polkitCode(err error) Code {
	switch {
	case errors.Is(err, polkit.ErrNoAgent):
		return codeAuthUnavailable
	case errors.Is(err, polkit.ErrDismissed):
		return codeAuthCancelled
	}
	return codeAuthFailed
}
