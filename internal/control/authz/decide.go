package authz

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
)

// Kind is the kind of an object.
type Kind int

// The kinds, and the rules that cover them:
//
//	Anything              no object, as for lists and facts of the host: every rule
//	Everything            an object of no other kind, or a missing one: rules that name no objects
//	Guest, Pool, Network  rules that name no objects, and rules with a matching name, label, UUID or tile
const (
	Anything Kind = iota
	Everything
	Guest
	Pool
	Network
)

var kindNames = [...]string{"", "", "domain", "pool", "network"}

// Resource is the object of a client's action.
type Resource struct {
	Kind Kind
	Name string
	// Part is a volume of a pool or a snapshot of a guest, for the audit only.
	Part string
	// Found is how a client found the object without its name ("with the UUID ..."). A client that may not see
	// the object is told this and not the name.
	Found string
	// member is a guest as selectors see it.
	member fleet.Member
	// labelsUnknown says that the labels are unknown: no rule that depends on labels, or on their absence, covers
	// the object.
	labelsUnknown bool
	// replaces says that the guest of a document already exists.
	replaces bool
	// definitionBytes is the stored size of a network's definition in bytes.
	definitionBytes uint64
}

// String names the object in errors and in the audit.
func (o Resource) String() string {
	name := o.Name
	if o.Part != "" {
		name += "/" + o.Part
	}
	switch o.Kind {
	case Guest, Pool, Network:
		return kindNames[o.Kind] + " '" + name + "'"
	case Anything, Everything:
	}
	return name
}

// Is says whether it is the guest with a UUID.
func (o Resource) Is(uuid string) bool {
	return o.Kind == Guest && o.member.View != nil && strings.EqualFold(o.member.View.UUID, uuid)
}

// NewGuest is the guest that a document would make.
func NewGuest(name, uuid string, labels fleet.Labels) Resource {
	return Resource{Kind: Guest, Name: name, member: fleet.Member{View: &guest.View{Name: name, UUID: uuid, Persistent: true}, Labels: labels}}
}

// RemovedGuest is a guest that was removed; only its name is known.
func RemovedGuest(name, uuid string) Resource {
	o := NewGuest(name, uuid, nil)
	o.labelsUnknown = true
	return o
}

// covers says whether the rule applies to an object. The table is at Kind.
func (r *rule) covers(o Resource) bool {
	if !r.namesObjects {
		return true
	}
	switch o.Kind {
	case Anything:
		return true
	case Everything:
		return false
	case Guest:
		return slices.ContainsFunc(r.guests, func(s fleet.Selector) bool {
			return s.Matches(o.member) && (!o.labelsUnknown || !s.NeedsLabels())
		})
	case Pool:
		return slices.ContainsFunc(r.pools, func(glob string) bool { return fleet.Matches(glob, o.Name) })
	case Network:
		return slices.ContainsFunc(r.networks, func(glob string) bool { return fleet.Matches(glob, o.Name) })
	}
	return false
}

// isFor says whether the rule names the client.
func (r *rule) isFor(w Principal) bool {
	return slices.ContainsFunc(r.who, func(p matcher) bool { return p.is(w) })
}

// Knows says whether any rule names this client; others are not admitted.
func (r *Rules) Knows(w Principal) bool {
	return w.Trusted() || slices.ContainsFunc(r.list, func(one *rule) bool { return one.isFor(w) })
}

// Allows returns the rule that allows an action; a trusted client needs none.
func (r *Rules) Allows(w Principal, v Permission, o Resource) (rule string, yes bool) {
	if w.Trusted() {
		return "", true
	}
	for _, one := range r.list {
		if one.may.has(v) && one.covers(o) && one.isFor(w) {
			return one.name, true
		}
	}
	return "", false
}

// Check is Allows as an error that names the missing right.
func (r *Rules) Check(w Principal, v Permission, o Resource) error {
	if _, yes := r.Allows(w, v, o); yes {
		return nil
	}
	var mine []string
	for _, one := range r.list {
		if one.isFor(w) {
			mine = append(mine, one.name)
		}
	}
	on := cmp.Or(r.visibleName(w, o), "this host")
	if len(mine) == 0 {
		return fault.New(fault.Denied, fault.Call, "%s may not %s %s: no rule of %s names this client", w, v.phrase(), on, r.path)
	}
	return fault.New(fault.Denied, fault.Call, "%s may not %s %s: that needs the right %q, which the rules for this client (%s) do not give; ask the administrator of %s",
		w, v.phrase(), on, v, strings.Join(mine, ", "), r.path)
}

// visibleName returns the object's name for an error, unless the client must not learn the name.
func (r *Rules) visibleName(w Principal, o Resource) string {
	if _, sees := r.Allows(w, Read, o); sees || o.Found == "" {
		return o.String()
	}
	return "the " + kindNames[o.Kind] + " " + o.Found
}

// phrase returns the verb of an error, which stands before its object.
func (v Permission) phrase() string {
	switch v {
	case Console, Agent, Monitor:
		return "use the " + v.String() + " of"
	case Volumes:
		return "use volumes of"
	case Pools, Networks, Filters, Secrets, Host:
		return "manage " + v.String() + ":"
	case Open, Read, Start, Stop, Define, Change, Save, Migrate, permissionCount:
	}
	return v.String()
}

// AllowedPaths are the folders and pools where the files that a client's documents name may lie, and the secrets
// that the documents may use.
type AllowedPaths struct {
	Anywhere bool
	Places   []string // folders, and pool:GLOB
	Secrets  []string // globs of the secrets that may be used; with Anywhere all may
}

// AllowedPaths returns the places of all rules that allow an action, together.
func (r *Rules) AllowedPaths(w Principal, v Permission, o Resource) AllowedPaths {
	if w.Trusted() {
		return AllowedPaths{Anywhere: true}
	}
	var p AllowedPaths
	for _, one := range r.list {
		if one.may.has(v) && one.covers(o) && one.isFor(w) {
			p.Anywhere = p.Anywhere || one.anyFile
			p.Places = append(p.Places, one.images...)
			p.Secrets = append(p.Secrets, one.secrets...)
		}
	}
	return p
}
