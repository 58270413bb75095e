package rpc

import (
	"reflect"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// AuthorizedCall is a call under way, as the rules and the audit see it.
type AuthorizedCall struct {
	s       *Session
	proc    *xdr.Procedure
	right   callRight
	args    xdr.Message
	objects []authz.Resource
	started time.Time
	Done    func() // releases the call's part of the client's quota
}

// Authorize checks the rules for one call, and returns the scope that it runs in. This is
// the only place where the rules are checked before a handler runs.
func (s *Session) Authorize(p *xdr.Procedure, args xdr.Message) (sc scope.Scope, _ *AuthorizedCall, err error) {
	r, known := CallRights[ProcedureKey{p.Program, p.Number}]
	if !known {
		return sc, nil, fault.New(fault.Denied, fault.Call, "no right is assigned to %s", p.Name)
	}
	c := &AuthorizedCall{s: s, proc: p, right: r, args: args, started: time.Now(), Done: func() {}}
	authorizer, principal := s.Authorizer(), s.Principal()
	changes := r.Strongest() > authz.Read
	if !authorizer.Restricted(principal) {
		if changes && authorizer != nil && s.Client.Server.Audit != nil {
			c.objects = s.objects(args)
		}
		sc, _ = authorizer.Scope(principal, r.Strongest())
		if !principal.Trusted() {
			sc = sc.CountedFor(principal.String())
		}
		return sc, c, nil
	}
	verbs := c.neededVerbs(args)
	sc, c.Done = authorizer.Scope(principal, r.Strongest(), verbs...)
	c.objects = s.objects(args)
	on := authz.Resource{}
	if len(c.objects) > 0 {
		on = c.objects[0]
	}
	if err := c.check(args, verbs); err != nil {
		return sc, c, err
	}
	if !r.checksTexts(p) {
		return authorizer.Recheck(sc, on, func(string) error { return s.checkNewIdentity(args) }), c, nil
	}
	sc, err = c.authorizeTexts(sc, on)
	return sc, c, err
}

// authorizeTexts checks the rules for the documents and paths among the call's arguments. The scope that it
// returns checks them again when the call's turn comes.
func (c *AuthorizedCall) authorizeTexts(sc scope.Scope, on authz.Resource) (scope.Scope, error) {
	s, authorizer, principal, verb := c.s, c.s.Authorizer(), c.s.Principal(), c.right.Strongest()
	made, err := s.checkTexts(c.proc, verb, on, c.args)
	named := on
	if made.Name != "" {
		on = made
	}
	if len(c.objects) == 0 && made.Name != "" {
		c.objects = []authz.Resource{made}
	}
	for i := 0; err == nil && i < len(c.right.Verbs); i++ { // checkTexts has checked only the strongest
		err = authorizer.Check(principal, c.right.Verbs[i], on)
	}
	if err == nil {
		err = authorizer.ReserveNew(sc, verb, made)
	}
	if err != nil {
		return sc, err
	}
	sc = authorizer.Recheck(sc, made, func(string) error {
		if err := s.checkNewIdentity(c.args); err != nil {
			return err
		}
		_, err := s.checkTexts(c.proc, verb, authorizer.Current(named), c.args)
		return err
	})
	if verb != authz.Start { // a guest's files need the rights of the client that named them, not of the one that starts it
		sc = authorizer.LimitPaths(sc, principal, s.DocumentVerb(c.proc, verb, c.args), on)
	}
	return sc, nil
}

// neededVerbs returns the verbs that the call needs on its objects: those of the procedure and those of its arguments.
func (c *AuthorizedCall) neededVerbs(args xdr.Message) []authz.Permission {
	return append(slices.Clone(c.right.Verbs), c.s.VerbsByArgs(c.proc, args)...)
}

// check checks every verb of the call on every object that the call names.
func (c *AuthorizedCall) check(args xdr.Message, verbs []authz.Permission) error {
	authorizer, principal := c.s.Authorizer(), c.s.Principal()
	objects := c.objects
	if c.right.NeedsEverything {
		objects = []authz.Resource{{Kind: authz.Everything}}
	}
	if len(objects) == 0 {
		objects = []authz.Resource{{}}
	}
	for _, verb := range verbs {
		for _, o := range objects {
			if err := authorizer.Check(principal, verb, o); err != nil {
				return err
			}
		}
	}
	if err := c.s.checkNewIdentity(args); err != nil {
		return err
	}
	if c.right.NeedsAnyPath {
		return authorizer.CheckEverything(principal, c.right.Strongest(), c.proc.Name)
	}
	return nil
}

// VerbsByArgs returns the verbs that a call needs only because of its arguments.
func (s *Session) VerbsByArgs(p *xdr.Procedure, args xdr.Message) []authz.Permission {
	secure := func(flags uint32) []authz.Permission {
		if flags&(XMLSecure|XMLMigratable) != 0 {
			return []authz.Permission{authz.Define}
		}
		return nil
	}
	switch a := args.(type) {
	case *xdr.DomainSetVCPUsFlagsArgs:
		if a.Flags&VCPUGuest != 0 {
			return []authz.Permission{authz.Agent}
		}
	case *xdr.DomainSaveFlagsArgs: // its document becomes the guest's definition when the image is restored
		if a.DestXML != nil {
			return []authz.Permission{authz.Define}
		}
	case *xdr.DomainSaveParamsArgs:
		if slices.ContainsFunc(a.Params, func(p xdr.TypedParam) bool { return p.Field == "dxml" }) {
			return []authz.Permission{authz.Define}
		}
	case *xdr.WithXMLFlags:
		if p.Program == xdr.ProgramRemote && (p.Number == xdr.ProcDomainCreateXML || p.Number == xdr.ProcDomainCreateXMLWithFiles) {
			return startFlagVerbs(a.Flags & StartAutoDestroy)
		}
	case *xdr.WithDomainFlags:
		switch {
		case p.Program != xdr.ProgramRemote:
		case p.Number == xdr.ProcDomainGetXMLDesc || p.Number == xdr.ProcDomainManagedSaveGetXMLDesc:
			return secure(a.Flags)
		case p.Number == xdr.ProcDomainCreateWithFlags || p.Number == xdr.ProcDomainCreateWithFiles:
			return startFlagVerbs(a.Flags)
		}
	case *xdr.DomainCoreDumpArgs:
		return dumpFlagVerbs(a.Flags)
	case *xdr.DomainCoreDumpWithFormatArgs:
		return dumpFlagVerbs(a.Flags)
	case *xdr.WithSnapshotFlags:
		if p.Number == xdr.ProcDomainSnapshotGetXMLDesc {
			return secure(a.Flags)
		}
	case *xdr.WithCheckpointFlags:
		if p.Number == xdr.ProcDomainCheckpointGetXMLDesc {
			return secure(a.Flags)
		}
	}
	switch p.Number {
	case xdr.ProcDomainGetVCPUsFlags, xdr.ProcDomainInterfaceAddresses: // may ask the guest's agent
		if p.Program == xdr.ProgramRemote && p.RefusesReadOnly(args) {
			return []authz.Permission{authz.Agent}
		}
	}
	return nil
}

// startFlagVerbs returns the verbs for what the flags of a start discard: the saved image, the UEFI
// variables, and with auto-destroy the running guest when its client disconnects.
func startFlagVerbs(flags uint32) (verbs []authz.Permission) {
	if flags&StartAutoDestroy != 0 {
		verbs = append(verbs, authz.Stop)
	}
	if flags&StartForceBoot != 0 {
		verbs = append(verbs, authz.Save)
	}
	if flags&StartResetNVRAM != 0 {
		verbs = append(verbs, authz.Define)
	}
	return verbs
}

// dumpFlagVerbs returns the verb for the crash or the reset after a dump.
func dumpFlagVerbs(flags uint32) []authz.Permission {
	if flags&(DumpCrash|DumpReset) != 0 {
		return []authz.Permission{authz.Stop}
	}
	return nil
}

// checkNewIdentity checks the guest's new name or labels against the rules: both decide which
// clients may use which verbs on it.
func (s *Session) checkNewIdentity(args xdr.Message) error {
	authorizer, principal := s.Authorizer(), s.Principal()
	switch a := args.(type) {
	case *xdr.DomainRenameArgs:
		if a.NewName != nil {
			return authorizer.Check(principal, authz.Define, authorizer.Renamed(FormatUUID(a.Domain.UUID), *a.NewName))
		}
	case *xdr.DomainSetMetadataArgs:
		if StringValue(a.URI) == fleet.Namespace {
			return authorizer.CheckMarks(principal, FormatUUID(a.Domain.UUID), StringValue(a.Key), StringValue(a.Metadata))
		}
	}
	return nil
}

// finish removes the parts of a result that the client may not see, and records the call's
// outcome in the audit.
func (c *AuthorizedCall) finish(ret xdr.Message, failure error) error {
	if c == nil {
		return failure
	}
	outcome, verb := failure, c.right.Strongest() // of the call itself, even if its result is hidden from the client
	if failure == nil && ret != nil && c.s.Authorizer().Restricted(c.s.Principal()) {
		failure = c.redactResult(ret)
	}
	if verb <= authz.Read { // such a call only gives a result
		outcome = failure
	}
	audit := c.s.Client.Server.Audit
	if audit == nil || IsAuth(c.proc) { // authentication records its own entries
		return failure
	}
	if outcome != nil && !fault.Is(outcome, fault.Denied) && verb <= authz.Read {
		return failure // a query that failed for another reason
	}
	e := authz.Entry{
		Principal: c.s.Principal(), API: "libvirt", Call: c.proc.Name, Permission: verb, Resource: c.auditObject(ret, outcome), Err: outcome, Took: time.Since(c.started),
	}
	if outcome == nil {
		e.Rule = c.s.Authorizer().Rule(e.Principal, e.Permission, e.Resource)
	}
	audit.Note(e)
	return failure
}

// auditRefusal records a call that was refused to a read-only client, with or without rules.
func (s *Session) auditRefusal(p *xdr.Procedure, err error) error {
	if s.authenticated() && fault.Is(err, fault.Denied) {
		verb := CallRights[ProcedureKey{p.Program, p.Number}].Strongest()
		s.Client.Server.Audit.Note(authz.Entry{Principal: s.Principal(), API: "libvirt", Call: p.Name, Permission: verb, Err: err})
	}
	return err
}

// recheckStream checks whether the current rules still allow the stream that the call opened.
func (c *AuthorizedCall) recheckStream() error {
	authorizer, principal := c.s.Authorizer(), c.s.Principal()
	if !authorizer.Restricted(principal) {
		return nil
	}
	for _, verb := range c.right.Verbs {
		for _, o := range c.objects {
			if err := authorizer.Check(principal, verb, authorizer.Current(o)); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckStop checks whether the client may stop a guest now.
func (s *Session) CheckStop(uuid string) error {
	authorizer, principal := s.Authorizer(), s.Principal()
	if !authorizer.Restricted(principal) {
		return nil
	}
	return authorizer.Check(principal, authz.Stop, authorizer.GuestByUUID(uuid))
}

// Authorizer returns the server's authorizer; nil: an admitted client may do everything.
func (s *Session) Authorizer() *authz.Authorizer { return s.Client.Server.Authorizer }

// Principal returns the client's present identity.
func (s *Session) Principal() authz.Principal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Identity
}

// DocumentVerb returns the verb whose path limits hold for the files in a call's documents. It is the call's
// own verb, or Define for a call that carries a definition only with certain arguments.
func (s *Session) DocumentVerb(p *xdr.Procedure, verb authz.Permission, args xdr.Message) authz.Permission {
	if slices.Contains(s.VerbsByArgs(p, args), authz.Define) {
		return authz.Define
	}
	return verb
}

// checkTexts checks the documents and the paths among a call's arguments, and returns the
// guest that a document would make.
func (s *Session) checkTexts(p *xdr.Procedure, verb authz.Permission, on authz.Resource, args xdr.Message) (made authz.Resource, err error) {
	if args == nil {
		return made, nil
	}
	authorizer, principal, documentVerb := s.Authorizer(), s.Principal(), s.DocumentVerb(p, verb, args)
	EachText(reflect.ValueOf(args).Elem(), "", func(field, text string) bool {
		var named authz.Resource
		switch {
		case IsDocument(field, text):
			if named, err = authorizer.CheckDocument(principal, documentVerb, on, text); named.Name != "" {
				made = named
			}
		case len(text) > 0 && text[0] == '/':
			err = authorizer.CheckPath(principal, verb, on, text, p.Program == xdr.ProgramRemote && slices.Contains(fileWritingCalls, p.Number))
		}
		return err == nil
	})
	return made, err
}
