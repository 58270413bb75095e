package authz

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Config is the input of New. All fields but File and Secrets are required.
type Config struct {
	// File is the file of rules; empty: there are none.
	File     string
	Guests   *guest.Registry
	Fleet    *fleet.Fleet
	Pools    *volume.Pools
	Networks *network.Networks
	// Secrets are the secrets that rules may name; nil: there are none.
	Secrets *secret.Secrets
	Log     *slog.Logger
}

// Authorizer decides what clients may do, by the current rules. A nil Authorizer has no rules, so every admitted
// client may do everything.
type Authorizer struct {
	Config
	rules atomic.Pointer[Rules] // nil: every admitted client may do everything

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the rules change

	reserved reservations
	// routeInto is network.RouteInto; tests replace it.
	routeInto func(p netip.Prefix, but string) (device string, err error)
}

// New makes an Authorizer, and refuses invalid rules.
func New(c Config) (*Authorizer, error) {
	g := &Authorizer{Config: c, changed: make(chan struct{}), routeInto: network.RouteInto}
	g.reserved.existing = g.objectsLike
	if c.File == "" {
		return g, nil
	}
	return g, g.Reload()
}

// Reload reads the rules again. Invalid rules change nothing.
func (g *Authorizer) Reload() error {
	if g == nil || g.File == "" {
		return nil
	}
	r, err := ReadRules(g.File)
	if err != nil {
		return err
	}
	failpoint.Reach("access.read")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rules.Store(r)
	close(g.changed)
	g.changed = make(chan struct{})
	g.Log.Info("access rules in force", "file", g.File, "rules", len(r.list))
	return nil
}

// Changed returns a channel that is closed at the next change of the rules. A permission that outlives one call, such
// as that of a stream, must then be checked again. A nil channel never closes.
func (g *Authorizer) Changed() <-chan struct{} {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// HasRules says whether there are rules. With rules the socket's group no longer admits a client.
func (g *Authorizer) HasRules() bool { return g != nil && g.rules.Load() != nil }

// Admit admits a client that some rule names.
func (g *Authorizer) Admit(w Principal) error {
	if !g.HasRules() || g.rules.Load().Knows(w) {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "%s is not admitted: no rule of %s names this client", w, g.File)
}

// AdmitRemote admits a client of another host. With rules, one of them must name it; without rules, its subject
// must match a glob. Without globs every subject is admitted.
func (g *Authorizer) AdmitRemote(w Principal, allow []string) error {
	if g.HasRules() {
		return g.Admit(w)
	}
	if len(allow) == 0 || slices.ContainsFunc(allow, func(glob string) bool { return fleet.Matches(glob, w.Subject) }) {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "no --tls-allow admits %s", w)
}

// Check returns an error that names the missing right if a client may not do something.
func (g *Authorizer) Check(w Principal, v Permission, o Resource) error {
	if !g.HasRules() || v == Open {
		return nil
	}
	return g.rules.Load().Check(w, v, o)
}

// May is Check without an error message, for lists.
func (g *Authorizer) May(w Principal, v Permission, o Resource) bool {
	if !g.HasRules() || w.Trusted() {
		return true
	}
	_, yes := g.rules.Load().Allows(w, v, o)
	return yes
}

// Rule returns the name of the rule that allows an action; empty: none was needed.
func (g *Authorizer) Rule(w Principal, v Permission, o Resource) string {
	if !g.HasRules() {
		return ""
	}
	rule, _ := g.rules.Load().Allows(w, v, o)
	return rule
}

// Restricted says whether rules restrict the client, so that its documents must be checked.
func (g *Authorizer) Restricted(w Principal) bool { return g.HasRules() && !w.Trusted() }

// Guest returns the resource for a guest.
func (g *Authorizer) Guest(of *guest.Guest) Resource { return GuestResource(g.Fleet.MemberOf(of)) }

// GuestResource returns the resource for a guest of a set. The labels are unknown while its first definition is under
// way, or if its marks cannot be parsed.
func GuestResource(m fleet.Member) Resource {
	return Resource{Kind: Guest, Name: m.View.Name, member: m, labelsUnknown: m.View.Current() == nil || m.Problem != ""}
}

// GuestByUUID returns the resource for the guest with a UUID. A missing guest is a resource that only rules for
// everything cover.
func (g *Authorizer) GuestByUUID(uuid string) Resource {
	if found, err := g.Guests.ByUUID(uuid); err == nil {
		return g.Guest(found)
	}
	return Resource{Kind: Everything, Name: uuid}
}

// GuestByName is GuestByUUID for a name.
func (g *Authorizer) GuestByName(name string) Resource {
	if found, err := g.Guests.ByName(name); err == nil {
		return g.Guest(found)
	}
	return Resource{Kind: Everything, Name: name}
}

// LimitPaths limits the paths that a call may open to the places of the rules. CheckDocument alone is not enough: the
// header of an image may name other files than the guest's definition does.
func (g *Authorizer) LimitPaths(sc scope.Scope, w Principal, v Permission, o Resource) scope.Scope {
	if !g.Restricted(w) {
		return sc
	}
	p := g.rules.Load().allowedUsesFor(g, w, v, o)
	if p.Anywhere {
		return sc
	}
	return sc.Within(p.Places)
}

// Current returns an object in its current state.
func (g *Authorizer) Current(o Resource) Resource {
	if o.Kind != Guest || o.member.View == nil {
		return o
	}
	return g.GuestByUUID(o.member.View.UUID)
}

// CanSeeEvent says whether a client may be told about an event of a guest that had this name. It must be allowed to
// see the guest as it is now, and a guest of that name. For a removed guest only the name counts.
func (g *Authorizer) CanSeeEvent(w Principal, name, uuid string) bool {
	now := g.GuestByUUID(uuid)
	if now.Kind != Guest {
		return g.May(w, Read, RemovedGuest(name, uuid))
	}
	return g.May(w, Read, now) && (now.Name == name || g.May(w, Read, g.Renamed(uuid, name)))
}

// Renamed returns a guest as it would be under another name.
func (g *Authorizer) Renamed(uuid, name string) Resource {
	was := g.GuestByUUID(uuid)
	o := NewGuest(name, uuid, was.member.Labels)
	o.labelsUnknown = was.labelsUnknown
	return o
}

// CheckMarks checks that a client may change a guest's marks to those of doc, a document under the prefix key. The
// client must have the right to define the resulting guest. Marks that cannot be parsed count as none.
func (g *Authorizer) CheckMarks(w Principal, uuid, key, doc string) error {
	if !g.Restricted(w) {
		return nil
	}
	metadata, err := xmltree.SetMetadataElement("", fleet.Namespace, key, doc) // in the form that is stored
	if err != nil {
		return err
	}
	o := g.GuestByUUID(uuid)
	marks, unread := fleet.ReadMarks(metadata) // none, with an error
	made, rules := NewGuest(o.Name, uuid, marks.Labels), g.rules.Load()
	made.labelsUnknown = unread != nil
	if err := rules.Check(w, Define, made); err != nil {
		return err
	}
	return cmp.Or(rules.checkMarkedVolumes(w, marks, o), g.CheckPriority(w, marks.Priority, o), g.CheckShares(w, marks.Memory.Shares, o))
}

// PoolByUUID returns the resource for a pool. Only rules for everything cover a missing one.
func (g *Authorizer) PoolByUUID(uuid string) Resource {
	if p, err := g.Pools.ByUUID(uuid); err == nil {
		return Resource{Kind: Pool, Name: p.Name()}
	}
	return Resource{Kind: Everything, Name: uuid}
}

// NetworkByUUID returns the resource for a network, as PoolByUUID.
func (g *Authorizer) NetworkByUUID(uuid string) Resource {
	if n, err := g.Networks.ByUUID(uuid); err == nil {
		return Resource{Kind: Network, Name: n.Name()}
	}
	return Resource{Kind: Everything, Name: uuid}
}

// CheckEverything checks that a rule for everything, with images: any, gives the client a permission. what is the
// object in the error.
func (g *Authorizer) CheckEverything(w Principal, v Permission, what string) error {
	return g.requireEverything(w, v, what)
}
