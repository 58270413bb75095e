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

// Permission is a call under way, as rules and audit see it.
type Permission struct {
	s       *Session
	proc    *xdr.Procedure
	right   right
	args    xdr.Message
	objects []authz.Resource
	began   time.Time
	Done    func() // gives back the call's part of its client's share
}

// Allow asks the rules for one call, and gives the scope that it runs in. This is
// the one place where they are asked: before any handler.
func (s *Session) Allow(p *xdr.Procedure, args xdr.Message) (sc scope.Scope, _ *Permission, err error) {
	r, known := CallRights[ProcedureKey{p.Program, p.Number}]
	if !known {
		return sc, nil, fault.New(fault.Denied, fault.Call, "nobody has said yet what right %s takes", p.Name)
	}
	c := &Permission{s: s, proc: p, right: r, args: args, began: time.Now(), Done: func() {}}
	gate, who := s.Gate(), s.Who()
	changes := r.Last() > authz.Read
	if !gate.Restricted(who) {
		if changes && gate != nil && s.Client.Server.Audit != nil {
			c.objects = s.objects(args)
		}
		sc, _ = gate.Scope(who, r.Last())
		if !who.Trusted() {
			sc = sc.CountedFor(who.String())
		}
		return sc, c, nil
	}
	verbs := c.takes(args)
	sc, c.Done = gate.Scope(who, r.Last(), verbs...)
	c.objects = s.objects(args)
	on := authz.Resource{}
	if len(c.objects) > 0 {
		on = c.objects[0]
	}
	if err := c.check(args, verbs); err != nil {
		return sc, c, err
	}
	if !r.looksAtTexts(p) {
		return gate.Recheck(sc, on, func(string) error { return s.becomes(args) }), c, nil
	}
	sc, err = c.allowTexts(sc, on)
	return sc, c, err
}

// allowTexts asks the rules about the call's documents and paths, beside its object.
func (c *Permission) allowTexts(sc scope.Scope, on authz.Resource) (scope.Scope, error) {
	s, gate, who, verb := c.s, c.s.Gate(), c.s.Who(), c.right.Last()
	made, err := s.texts(c.proc, verb, on, c.args)
	named := on
	if made.Name != "" {
		on = made
	}
	if len(c.objects) == 0 && made.Name != "" {
		c.objects = []authz.Resource{made}
	}
	for i := 0; err == nil && i < len(c.right.Verbs); i++ { // the last is not the only one
		err = gate.Check(who, c.right.Verbs[i], on)
	}
	if err == nil {
		err = gate.ReserveNew(sc, verb, made)
	}
	if err != nil {
		return sc, err
	}
	sc = gate.Recheck(sc, made, func(string) error {
		if err := s.becomes(c.args); err != nil {
			return err
		}
		_, err := s.texts(c.proc, verb, gate.Current(named), c.args)
		return err
	})
	if verb != authz.Start { // a guest's files are judged by the rights of the client that named them, not of the starter
		sc = gate.LimitPaths(sc, who, s.Brings(c.proc, verb, c.args), on)
	}
	return sc, nil
}

// takes are the verbs that the call needs on its objects: those of the procedure and those of its arguments.
func (c *Permission) takes(args xdr.Message) []authz.Permission {
	return append(slices.Clone(c.right.Verbs), c.s.Hidden(c.proc, args)...)
}

// check asks for every verb of the call on every object of it.
func (c *Permission) check(args xdr.Message, verbs []authz.Permission) error {
	gate, who := c.s.Gate(), c.s.Who()
	objects := c.objects
	if c.right.Everything {
		objects = []authz.Resource{{Kind: authz.Everything}}
	}
	if len(objects) == 0 {
		objects = []authz.Resource{{}}
	}
	for _, verb := range verbs {
		for _, o := range objects {
			if err := gate.Check(who, verb, o); err != nil {
				return err
			}
		}
	}
	if err := c.s.becomes(args); err != nil {
		return err
	}
	if c.right.Anywhere {
		return gate.CheckEverything(who, c.right.Last(), c.proc.Name)
	}
	return nil
}

// Hidden are the verbs that a call needs only because of certain arguments.
func (s *Session) Hidden(p *xdr.Procedure, args xdr.Message) []authz.Permission {
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
	case *xdr.DomainSaveFlagsArgs: // its document is the guest's definition from the next start on
		if a.DestXML != nil {
			return []authz.Permission{authz.Define}
		}
	case *xdr.DomainSaveParamsArgs:
		if slices.ContainsFunc(a.Params, func(p xdr.TypedParam) bool { return p.Field == "dxml" }) {
			return []authz.Permission{authz.Define}
		}
	case *xdr.WithXMLFlags:
		if p.Program == xdr.ProgramRemote && (p.Number == xdr.ProcDomainCreateXML || p.Number == xdr.ProcDomainCreateXMLWithFiles) {
			return startLoses(a.Flags & StartAutoDestroy)
		}
	case *xdr.WithDomainFlags:
		switch {
		case p.Program != xdr.ProgramRemote:
		case p.Number == xdr.ProcDomainGetXMLDesc || p.Number == xdr.ProcDomainManagedSaveGetXMLDesc:
			return secure(a.Flags)
		case p.Number == xdr.ProcDomainCreateWithFlags || p.Number == xdr.ProcDomainCreateWithFiles:
			return startLoses(a.Flags)
		}
	case *xdr.DomainCoreDumpArgs:
		return dumpEnds(a.Flags)
	case *xdr.DomainCoreDumpWithFormatArgs:
		return dumpEnds(a.Flags)
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

// startLoses are the verbs for the losses that a start's flags cause: the saved image, the UEFI
// variables, and the guest itself, which then ends with its client.
func startLoses(flags uint32) (verbs []authz.Permission) {
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

// dumpEnds is the verb for the crash or the reset that follows a dump.
func dumpEnds(flags uint32) []authz.Permission {
	if flags&(DumpCrash|DumpReset) != 0 {
		return []authz.Permission{authz.Stop}
	}
	return nil
}

// becomes checks the guest's new name or labels against the rules: both decide which
// clients may use which verbs on it.
func (s *Session) becomes(args xdr.Message) error {
	gate, who := s.Gate(), s.Who()
	switch a := args.(type) {
	case *xdr.DomainRenameArgs:
		if a.NewName != nil {
			return gate.Check(who, authz.Define, gate.Renamed(FormatUUID(a.Domain.UUID), *a.NewName))
		}
	case *xdr.DomainSetMetadataArgs:
		if OrEmpty(a.URI) == fleet.Namespace {
			return gate.CheckMarks(who, FormatUUID(a.Domain.UUID), OrEmpty(a.Key), OrEmpty(a.Metadata))
		}
	}
	return nil
}

// end hides the parts of a result that the client may not see, and notes the call's
// outcome in the audit.
func (c *Permission) end(ret xdr.Message, failure error) error {
	if c == nil {
		return failure
	}
	came, verb := failure, c.right.Last() // the call's own outcome, even if its result is hidden from the client
	if failure == nil && ret != nil && c.s.Gate().Restricted(c.s.Who()) {
		failure = c.veil(ret)
	}
	if verb <= authz.Read { // such a call only gives a result
		came = failure
	}
	audit := c.s.Client.Server.Audit
	if audit == nil || IsAuth(c.proc) { // logins are noted where they are judged
		return failure
	}
	if came != nil && !fault.Is(came, fault.Denied) && verb <= authz.Read {
		return failure // a question that had no answer
	}
	e := authz.Entry{
		Principal: c.s.Who(), API: "libvirt", Call: c.proc.Name, Permission: verb, Resource: c.about(ret, came), Err: came, Took: time.Since(c.began),
	}
	if came == nil {
		e.Rule = c.s.Gate().Rule(e.Principal, e.Permission, e.Resource)
	}
	audit.Note(e)
	return failure
}

// refused notes a call that was refused to a read-only client, with or without rules.
func (s *Session) refused(p *xdr.Procedure, err error) error {
	if s.authenticated() && fault.Is(err, fault.Denied) {
		verb := CallRights[ProcedureKey{p.Program, p.Number}].Last()
		s.Client.Server.Audit.Note(authz.Entry{Principal: s.Who(), API: "libvirt", Call: p.Name, Permission: verb, Err: err})
	}
	return err
}

// still checks whether the stream that the call opened may continue.
func (c *Permission) still() error {
	gate, who := c.s.Gate(), c.s.Who()
	if !gate.Restricted(who) {
		return nil
	}
	for _, verb := range c.right.Verbs {
		for _, o := range c.objects {
			if err := gate.Check(who, verb, gate.Current(o)); err != nil {
				return err
			}
		}
	}
	return nil
}

// MayStop says whether the client may end a guest now.
func (s *Session) MayStop(uuid string) error {
	gate, who := s.Gate(), s.Who()
	if !gate.Restricted(who) {
		return nil
	}
	return gate.Check(who, authz.Stop, gate.GuestByUUID(uuid))
}

// Gate gives the server's gate; nil if an admitted client may do everything.
func (s *Session) Gate() *authz.Authorizer { return s.Client.Server.Gate }

// Who returns the client's present identity.
func (s *Session) Who() authz.Principal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Identity
}

// Brings is the verb that decides where the files of a call's documents may lie. It is the call's
// own verb. A call that carries a definition only because of its arguments is judged by Define.
func (s *Session) Brings(p *xdr.Procedure, verb authz.Permission, args xdr.Message) authz.Permission {
	if slices.Contains(s.Hidden(p, args), authz.Define) {
		return authz.Define
	}
	return verb
}

// texts judges the documents and the paths among a call's arguments, and gives the
// guest that a document would make.
func (s *Session) texts(p *xdr.Procedure, verb authz.Permission, on authz.Resource, args xdr.Message) (made authz.Resource, err error) {
	if args == nil {
		return made, nil
	}
	gate, who, brings := s.Gate(), s.Who(), s.Brings(p, verb, args)
	EachText(reflect.ValueOf(args).Elem(), "", func(field, text string) bool {
		var named authz.Resource
		switch {
		case IsDocument(field, text):
			if named, err = gate.CheckDocument(who, brings, on, text); named.Name != "" {
				made = named
			}
		case len(text) > 0 && text[0] == '/':
			err = gate.CheckPath(who, verb, on, text, p.Program == xdr.ProgramRemote && slices.Contains(writing, p.Number))
		}
		return err == nil
	})
	return made, err
}
