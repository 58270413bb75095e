package authz

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
)

// Kind is a sort of object that rules tell apart.
type Kind int

// The kinds. Everything is what no rule for some objects reaches; Anything is
// the absence of an object: lists, and facts of the host.
const (
	Anything Kind = iota
	Everything
	Guest
	Pool
	Network
)

var kindNames = [...]string{"", "", "domain", "pool", "network"}

// Object is what a client wants to act on.
type Object struct {
	Kind Kind
	Name string
	// Part is a volume of a pool, a snapshot of a guest: for the audit alone.
	Part string
	// Found is by what a client found it that did not name it ("with the UUID ..."): one
	// that may not see it is told this, and not its name.
	Found string
	// member is a guest as selectors see it.
	member fleet.Member
	// unmarked says that its labels are not known: a rule that asks for any, also for their
	// absence, is not about it.
	unmarked bool
	// replaces says that the guest that a document would make is there.
	replaces bool
	// written are the bytes that are kept of a network's definition.
	written uint64
}

// String names the object in errors and in the audit.
func (o Object) String() string {
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

// Is says whether it is the guest of a UUID.
func (o Object) Is(uuid string) bool {
	return o.Kind == Guest && o.member.View != nil && strings.EqualFold(o.member.View.UUID, uuid)
}

// NewGuest is a guest that a document would make.
func NewGuest(name, uuid string, labels fleet.Labels) Object {
	return Object{Kind: Guest, Name: name, member: fleet.Member{View: &guest.View{Name: name, UUID: uuid, Persistent: true}, Labels: labels}}
}

// Left is a guest that is no longer there, of which the name alone is known.
func Left(name, uuid string) Object {
	o := NewGuest(name, uuid, nil)
	o.unmarked = true
	return o
}

// covers says whether the rule is about an object at all.
func (r *rule) covers(o Object) bool {
	if !r.some {
		return true
	}
	switch o.Kind {
	case Anything:
		return true
	case Everything:
		return false
	case Guest:
		return slices.ContainsFunc(r.guests, func(s fleet.Selector) bool {
			return s.Matches(o.member) && (!o.unmarked || !s.NeedsLabels())
		})
	case Pool:
		return slices.ContainsFunc(r.pools, func(glob string) bool { return fleet.Matches(glob, o.Name) })
	case Network:
		return slices.ContainsFunc(r.networks, func(glob string) bool { return fleet.Matches(glob, o.Name) })
	}
	return false
}

func (r *rule) isFor(w Who) bool {
	return slices.ContainsFunc(r.who, func(p principal) bool { return p.is(w) })
}

// Knows says whether any rule is about this client: others are not let in.
func (r *Rules) Knows(w Who) bool {
	return w.Trusted() || slices.ContainsFunc(r.list, func(one *rule) bool { return one.isFor(w) })
}

// Allows says which rule allows something; a trusted client needs none.
func (r *Rules) Allows(w Who, v Verb, o Object) (rule string, yes bool) {
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

// Check is Allows as an error that says what is missing.
func (r *Rules) Check(w Who, v Verb, o Object) error {
	if _, yes := r.Allows(w, v, o); yes {
		return nil
	}
	var mine []string
	for _, one := range r.list {
		if one.isFor(w) {
			mine = append(mine, one.name)
		}
	}
	on := cmp.Or(r.told(w, o), "this host")
	if len(mine) == 0 {
		return fault.New(fault.Denied, fault.Call, "%s may not %s %s: no rule of %s is about this client", w, v.phrase(), on, r.path)
	}
	return fault.New(fault.Denied, fault.Call, "%s may not %s %s: that takes the right %q, which the rules for this client (%s) do not give; ask whoever keeps %s",
		w, v.phrase(), on, v, strings.Join(mine, ", "), r.path)
}

// told is what a client that is refused something is told of the object.
func (r *Rules) told(w Who, o Object) string {
	if _, sees := r.Allows(w, Read, o); sees || o.Found == "" {
		return o.String()
	}
	return "the " + kindNames[o.Kind] + " " + o.Found
}

// phrase is the verb in a sentence whose object follows.
func (v Verb) phrase() string {
	switch v {
	case Console, Agent, Monitor:
		return "use the " + v.String() + " of"
	case Volumes:
		return "use volumes of"
	case Pools, Networks, Filters, Secrets, Host:
		return "manage " + v.String() + ":"
	case Open, Read, Start, Stop, Define, Change, Save, Migrate, verbs:
	}
	return v.String()
}

// Places are where the files may lie that a client's documents name for an object, and the
// secrets that they may use.
type Places struct {
	Anywhere bool
	Where    []string // folders, and pool:GLOB
	Secrets  []string // globs of those that may be used; Anywhere all may be
}

// Images are the places of all rules that allow something.
func (r *Rules) Images(w Who, v Verb, o Object) Places {
	if w.Trusted() {
		return Places{Anywhere: true}
	}
	var p Places
	for _, one := range r.list {
		if one.may.has(v) && one.covers(o) && one.isFor(w) {
			p.Anywhere = p.Anywhere || one.anywhere
			p.Where = append(p.Where, one.images...)
			p.Secrets = append(p.Secrets, one.secrets...)
		}
	}
	return p
}
