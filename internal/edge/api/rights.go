package api

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// rights are the rights that each call needs. Read is needed on any object: lists have the objects that the client
// may see. A call that is not listed is refused.
var rights = map[string]struct {
	verbs []authz.Permission
	whole bool // on everything, not on some objects
}{
	lodgev1.LodgeListGuestsProcedure:  {verbs: []authz.Permission{authz.Read}},
	lodgev1.LodgeStatsProcedure:       {verbs: []authz.Permission{authz.Read}},
	lodgev1.LodgeMemoryProcedure:      {verbs: []authz.Permission{authz.Read}},
	lodgev1.LodgeActProcedure:         {verbs: []authz.Permission{authz.Open}}, // each guest is checked with its own verb
	lodgev1.LodgeCancelProcedure:      {verbs: []authz.Permission{authz.Open}}, // for every client that knows the set's number
	lodgev1.LodgeListTilesProcedure:   {verbs: []authz.Permission{authz.Read}, whole: true},
	lodgev1.LodgeCreateTilesProcedure: {verbs: []authz.Permission{authz.Define, authz.Volumes}, whole: true},
	lodgev1.LodgeRemoveTilesProcedure: {verbs: []authz.Permission{authz.Stop, authz.Define, authz.Volumes}, whole: true},
	lodgev1.LodgeCloneGuestsProcedure: {verbs: []authz.Permission{authz.Define, authz.Volumes}, whole: true},
	lodgev1.LodgeWatchProcedure:       {verbs: []authz.Permission{authz.Read}},
	lodgev1.LodgeStartQueueProcedure:  {verbs: []authz.Permission{authz.Read}},
	lodgev1.LodgeStatusProcedure:      {verbs: []authz.Permission{authz.Read}},
}

// verbs are the rights that the verbs of sets need on each guest.
var verbs = map[fleet.Verb]authz.Permission{
	fleet.Start: authz.Start, fleet.Resume: authz.Start, fleet.Restore: authz.Start,
	fleet.Shutdown: authz.Stop, fleet.Destroy: authz.Stop, fleet.Suspend: authz.Stop, fleet.Reboot: authz.Stop, fleet.Reset: authz.Stop,
	fleet.Save: authz.Save, fleet.Define: authz.Define, fleet.Undefine: authz.Define, fleet.Set: authz.Change,
}

// principalKey is the key of the admitted client in a call's context.
type principalKey struct{}

func caller(ctx context.Context) authz.Principal {
	principal, _ := ctx.Value(principalKey{}).(authz.Principal)
	return principal
}

// admit checks whether a client may make a call. It is the only check of a call as a whole; sets also check
// each of their guests.
func (s *Server) admit(ctx context.Context, c *client, path string) (err error) {
	principal := c.principal
	switch {
	case !principal.Local: // its certificate has admitted it
	case s.Authenticator.AsksPolkit(principal):
		err = c.authenticate(ctx, s.Authenticator)
	default:
		err = principal.Peer.Admit(s.Authorizer.HasRules(), s.Groups)
	}
	if err == nil {
		err = s.Authorizer.Admit(principal)
	}
	if err == nil {
		c.markAdmitted()
	}
	if err == nil && s.Authorizer.Restricted(principal) {
		err = s.checkRights(principal, path)
	}
	if err != nil {
		s.Audit.Note(authz.Entry{Principal: principal, API: "lodge", Call: path, Err: err})
	}
	return err
}

func (s *Server) checkRights(principal authz.Principal, path string) error {
	right, known := rights[path]
	if !known {
		return fault.New(fault.Denied, fault.Call, "no right is assigned to %q", path)
	}
	for _, verb := range right.verbs {
		if err := s.Authorizer.Check(principal, verb, authz.Resource{}); err != nil {
			return err
		}
		if right.whole {
			if err := s.Authorizer.CheckEverything(principal, verb, "tiles and clones"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Server) canSee(ctx context.Context, m fleet.Member) bool {
	principal := caller(ctx)
	return !s.Authorizer.Restricted(principal) || s.Authorizer.May(principal, authz.Read, authz.GuestResource(m))
}

func (s *Server) canSeeUUID(ctx context.Context, uuid string) bool {
	principal := caller(ctx)
	return !s.Authorizer.Restricted(principal) || s.Authorizer.May(principal, authz.Read, s.Authorizer.GuestByUUID(uuid))
}

// canSeeEvent reports whether the client may see the object of an event.
func (s *Server) canSeeEvent(ctx context.Context, e *lodgev1.Event) bool {
	principal := caller(ctx)
	if !s.Authorizer.Restricted(principal) {
		return true
	}
	o := authz.Resource{Name: e.GetName()}
	switch e.GetObject() {
	case objectGuest:
		return s.Authorizer.CanSeeEvent(principal, e.GetName(), e.GetUuid())
	case objectNetwork:
		o.Kind = authz.Network
	case objectPool:
		o.Kind = authz.Pool
	case objectSecret, objectNodeDevice: // links of others' guests are among these
		o.Kind = authz.Everything
	}
	return s.Authorizer.May(principal, authz.Read, o)
}

// scope returns the scope of a call; the caller calls done at its end. The volumes that it works on are not counted
// for the client: the fleet bounds how many clones and tiles are made at once.
func (s *Server) scope(ctx context.Context, v authz.Permission, also ...authz.Permission) (_ scope.Scope, done func()) {
	sc, done := s.Authorizer.Scope(caller(ctx), v, also...)
	return sc.CountedFor(""), done
}

// restrict makes a set check its client's rights on each guest. The caller calls done at the set's end.
func (s *Server) restrict(ctx context.Context, q *fleet.Request) (_ scope.Scope, done func()) {
	principal := caller(ctx)
	if !s.Authorizer.Restricted(principal) {
		return s.scope(ctx, authz.Read)
	}
	q.Sees = func(m fleet.Member) bool { return s.canSee(ctx, m) }
	q.Admit = func(m fleet.Member) error { return s.checkGuestRights(principal, q, m) }
	q.AdmitDocument = func(sc scope.Scope, doc string) (scope.Scope, error) {
		check := func() (authz.Resource, error) {
			return s.Authorizer.CheckDocument(principal, authz.Define, authz.Resource{}, doc)
		}
		made, err := check()
		sc = s.Authorizer.Recheck(sc, made, func(string) error { _, err := check(); return err })
		return s.Authorizer.LimitPaths(sc, principal, authz.Define, made), err
	}
	verbs := rightsNeeded(q)
	bound, done := s.scope(ctx, verbs[0], verbs[1:]...)
	return s.Authorizer.Recheck(bound, authz.Resource{}, func(uuid string) error { return s.recheckGuest(q, uuid) }), done
}

// rightsNeeded returns the rights that a set needs on each guest; the first is that of the audit. Settings belong to
// the running guest or to its definition, and one call may change both; a start may discard a managed save.
func rightsNeeded(q *fleet.Request) []authz.Permission {
	running, definition := false, false
	for name := range q.Options.Settings {
		if name == "memory" || name == "vcpus" {
			running = true
		} else {
			definition = true
		}
	}
	switch {
	case q.Verb == fleet.Start && q.Options.ForceBoot:
		return []authz.Permission{authz.Start, authz.Save}
	case q.Verb != fleet.Set || !definition:
		return []authz.Permission{verbs[q.Verb]}
	case running:
		return []authz.Permission{authz.Define, authz.Change}
	}
	return []authz.Permission{authz.Define}
}

// checkGuestRights checks the client's rights on one guest of a set. Rules depend on names and labels, so a client that
// changes labels must also have the right to define the result.
func (s *Server) checkGuestRights(principal authz.Principal, q *fleet.Request, m fleet.Member) error {
	all, o := rightsNeeded(q), authz.GuestResource(m)
	o.Found = "with the UUID " + m.View.UUID // the client may know it by another name
	for _, verb := range all {
		if err := s.Authorizer.Check(principal, verb, o); err != nil {
			return err
		}
	}
	if q.Verb != fleet.Set || all[0] != authz.Define {
		return nil
	}
	if priority, err := strconv.Atoi(q.Options.Settings["priority"]); err == nil { // an invalid priority is refused later
		if err := s.Authorizer.CheckPriority(principal, priority, authz.GuestResource(m)); err != nil {
			return err
		}
	}
	if shares, err := strconv.Atoi(q.Options.Settings["memory.shares"]); err == nil {
		if err := s.Authorizer.CheckShares(principal, shares, authz.GuestResource(m)); err != nil {
			return err
		}
	}
	labels := fleet.Labels{}
	maps.Copy(labels, m.Labels)
	for name, value := range q.Options.Settings {
		label, is := strings.CutPrefix(name, "label.")
		switch {
		case is && value == "":
			delete(labels, label)
		case is:
			labels[label] = value
		}
	}
	return s.Authorizer.Check(principal, authz.Define, authz.NewGuest(m.View.Name, m.View.UUID, labels))
}

// recheckGuest is checkGuestRights for the current state of a guest, by UUID.
func (s *Server) recheckGuest(q *fleet.Request, uuid string) error {
	g, err := s.Guests.ByUUID(uuid)
	if err != nil {
		return err
	}
	return q.Admit(s.Fleet.MemberOf(g))
}

// unchangedOutcomes are the outcomes of guests that were not changed. The audit has them only with an error.
var unchangedOutcomes = []fleet.Outcome{fleet.Would, fleet.Unchanged, fleet.Skipped}

// auditResults returns a function that records the result of each guest of a set in the audit, and passes it to tell.
func (s *Server) auditResults(ctx context.Context, call string, verb authz.Permission, tell func(fleet.Result)) func(fleet.Result) {
	principal := caller(ctx)
	return func(r fleet.Result) {
		if r.Error != nil || !slices.Contains(unchangedOutcomes, r.Outcome) {
			e := authz.Entry{Principal: principal, API: "lodge", Call: call, Permission: verb, Resource: authz.RemovedGuest(r.Name, r.UUID), Err: r.Error, Took: max(r.Took, time.Duration(0))}
			if s.Authorizer.Restricted(principal) && r.Error == nil {
				if o := s.Authorizer.GuestByUUID(r.UUID); o.Kind == authz.Guest {
					e.Resource = o // of a removed guest only the name is known
				}
				e.Rule = s.Authorizer.Rule(principal, verb, e.Resource)
			}
			s.Audit.Note(e)
		}
		tell(r)
	}
}
