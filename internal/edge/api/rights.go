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

// rights are the rights that each call needs. Read is of any object: lists contain what the client may see. A
// call that is not listed is refused.
var rights = map[string]struct {
	verbs []authz.Permission
	whole bool // for everything, not for some objects
}{
	lodgev1.LodgeListGuestsProcedure:  {verbs: []authz.Permission{authz.Read}},
	lodgev1.LodgeStatsProcedure:       {verbs: []authz.Permission{authz.Read}},
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

// verbs are the rights that the verbs of sets need.
var verbs = map[fleet.Verb]authz.Permission{
	fleet.Start: authz.Start, fleet.Resume: authz.Start, fleet.Restore: authz.Start,
	fleet.Shutdown: authz.Stop, fleet.Destroy: authz.Stop, fleet.Suspend: authz.Stop, fleet.Reboot: authz.Stop, fleet.Reset: authz.Stop,
	fleet.Save: authz.Save, fleet.Define: authz.Define, fleet.Undefine: authz.Define, fleet.Set: authz.Change,
}

// whoKey is where a call's context keeps the admitted client.
type whoKey struct{}

func caller(ctx context.Context) authz.Principal {
	who, _ := ctx.Value(whoKey{}).(authz.Principal)
	return who
}

// admit checks whether a client may make a call. It is the only check of a call as a whole; sets also check
// each of their guests.
func (s *Server) admit(ctx context.Context, c *client, path string) (err error) {
	who := c.who
	switch {
	case !who.Local: // its certificate has admitted it
	case s.Reception.AsksPolkit(who):
		err = c.authenticate(ctx, s.Reception)
	default:
		err = who.Peer.Admit(s.Gate.HasRules(), s.Groups)
	}
	if err == nil {
		err = s.Gate.Admit(who)
	}
	if err == nil {
		c.markAdmitted()
	}
	if err == nil && s.Gate.Restricted(who) {
		err = s.checkRights(who, path)
	}
	if err != nil {
		s.Audit.Note(authz.Entry{Principal: who, API: "lodge", Call: path, Err: err})
	}
	return err
}

func (s *Server) checkRights(who authz.Principal, path string) error {
	right, known := rights[path]
	if !known {
		return fault.New(fault.Denied, fault.Call, "no right is assigned to %q", path)
	}
	for _, verb := range right.verbs {
		if err := s.Gate.Check(who, verb, authz.Resource{}); err != nil {
			return err
		}
		if right.whole {
			if err := s.Gate.CheckEverything(who, verb, "tiles and clones"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Server) sees(ctx context.Context, m fleet.Member) bool {
	who := caller(ctx)
	return !s.Gate.Restricted(who) || s.Gate.May(who, authz.Read, authz.GuestResource(m))
}

func (s *Server) seesUUID(ctx context.Context, uuid string) bool {
	who := caller(ctx)
	return !s.Gate.Restricted(who) || s.Gate.May(who, authz.Read, s.Gate.GuestByUUID(uuid))
}

// seesEvent says whether the client may see the object of an event.
func (s *Server) seesEvent(ctx context.Context, e *lodgev1.Event) bool {
	who := caller(ctx)
	if !s.Gate.Restricted(who) {
		return true
	}
	o := authz.Resource{Name: e.GetName()}
	switch e.GetObject() {
	case objectGuest:
		return s.Gate.CanSeeEvent(who, e.GetName(), e.GetUuid())
	case objectNetwork:
		o.Kind = authz.Network
	case objectPool:
		o.Kind = authz.Pool
	case objectSecret, objectNodeDevice: // links of others' guests are among these
		o.Kind = authz.Everything
	}
	return s.Gate.May(who, authz.Read, o)
}

// scope is what a call may do, until done. The volumes that it works on are not counted for the client: the
// fleet bounds how many clones and tiles are made at once.
func (s *Server) scope(ctx context.Context, v authz.Permission, also ...authz.Permission) (_ scope.Scope, done func()) {
	sc, done := s.Gate.Scope(caller(ctx), v, also...)
	return sc.CountedFor(""), done
}

// restrict bounds a set by what its client may do to each guest, until done.
func (s *Server) restrict(ctx context.Context, q *fleet.Request) (_ scope.Scope, done func()) {
	who := caller(ctx)
	if !s.Gate.Restricted(who) {
		return s.scope(ctx, authz.Read)
	}
	q.Sees = func(m fleet.Member) bool { return s.sees(ctx, m) }
	q.Admit = func(m fleet.Member) error { return s.mayDo(who, q, m) }
	q.AdmitDocument = func(sc scope.Scope, doc string) (scope.Scope, error) {
		judge := func() (authz.Resource, error) { return s.Gate.CheckDocument(who, authz.Define, authz.Resource{}, doc) }
		made, err := judge()
		sc = s.Gate.Recheck(sc, made, func(string) error { _, err := judge(); return err })
		return s.Gate.LimitPaths(sc, who, authz.Define, made), err
	}
	verbs := rightsNeeded(q)
	bound, done := s.scope(ctx, verbs[0], verbs[1:]...)
	return s.Gate.Recheck(bound, authz.Resource{}, func(uuid string) error { return s.admits(q, uuid) }), done
}

// rightsNeeded are the rights that a set needs; the first names it in errors. Settings belong to the running guest or
// to its definition, and one call may change both; a start may discard a managed save.
func rightsNeeded(q *fleet.Request) []authz.Permission {
	machine, definition := false, false
	for name := range q.Options.Settings {
		if name == "memory" || name == "vcpus" {
			machine = true
		} else {
			definition = true
		}
	}
	switch {
	case q.Verb == fleet.Start && q.Options.ForceBoot:
		return []authz.Permission{authz.Start, authz.Save}
	case q.Verb != fleet.Set || !definition:
		return []authz.Permission{verbs[q.Verb]}
	case machine:
		return []authz.Permission{authz.Define, authz.Change}
	}
	return []authz.Permission{authz.Define}
}

// mayDo checks the client's right for one guest of a set. Rules depend on names and labels, so a client that
// changes labels must also have the right to define the result.
func (s *Server) mayDo(who authz.Principal, q *fleet.Request, m fleet.Member) error {
	all, o := rightsNeeded(q), authz.GuestResource(m)
	o.Found = "with the UUID " + m.View.UUID // the client may know it by another name
	for _, verb := range all {
		if err := s.Gate.Check(who, verb, o); err != nil {
			return err
		}
	}
	if q.Verb != fleet.Set || all[0] != authz.Define {
		return nil
	}
	if priority, err := strconv.Atoi(q.Options.Settings["priority"]); err == nil { // an invalid priority is refused later
		if err := s.Gate.CheckPriority(who, priority, authz.GuestResource(m)); err != nil {
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
	return s.Gate.Check(who, authz.Define, authz.NewGuest(m.View.Name, m.View.UUID, labels))
}

// admits is mayDo for the present state of a guest, by UUID.
func (s *Server) admits(q *fleet.Request, uuid string) error {
	g, err := s.Guests.ByUUID(uuid)
	if err != nil {
		return err
	}
	return q.Admit(s.Fleet.Of(g))
}

// untouched are the outcomes of guests that were not changed; a refusal is audited nevertheless.
var untouched = []fleet.Outcome{fleet.Would, fleet.Unchanged, fleet.Skipped}

// audited notes the result of each guest of a set, and sends it.
func (s *Server) audited(ctx context.Context, call string, verb authz.Permission, tell func(fleet.Result)) func(fleet.Result) {
	who := caller(ctx)
	return func(r fleet.Result) {
		if r.Error != nil || !slices.Contains(untouched, r.Outcome) {
			e := authz.Entry{Principal: who, API: "lodge", Call: call, Permission: verb, Resource: authz.RemovedGuest(r.Name, r.UUID), Err: r.Error, Took: max(r.Took, time.Duration(0))}
			if s.Gate.Restricted(who) && r.Error == nil {
				if o := s.Gate.GuestByUUID(r.UUID); o.Kind == authz.Guest {
					e.Resource = o // of a removed guest only the name is known
				}
				e.Rule = s.Gate.Rule(who, verb, e.Resource)
			}
			s.Audit.Note(e)
		}
		tell(r)
	}
}
