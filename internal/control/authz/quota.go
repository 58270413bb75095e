package authz

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// atMost is the key of bounds in the file of rules.
const atMost = "at most"

// usage is the amount that objects take, or that a rule gives as their bound; in a rule 0 is no bound. A guest takes
// the maximum of its definitions, whether it runs or not: the memory up to its balloon's limit, and the processors
// that can be plugged in.
type usage struct{ guests, memory, vcpus, interfaces, definitions, networks, pools, volumes uint64 } // memory and definitions in bytes

// defaultDefinitions bounds the bytes of definitions for a rule with named objects that gives no bound: the
// daemon holds them in memory, several times over.
const defaultDefinitions = 64 << 20

// measures are the parts of a usage.
var measures = []struct {
	word string // the word in the file of rules
	of   func(*usage) *uint64
	say  func(uint64) string
	// kinds are the kinds of objects that count, each kind separately. verbs are the permissions to create or
	// enlarge them.
	kinds []Kind
	verbs []Permission
}{
	{"guests", func(s *usage) *uint64 { return &s.guests }, counted("guest"), []Kind{Guest}, []Permission{Define, Change}},
	{"memory", func(s *usage) *uint64 { return &s.memory }, func(n uint64) string { return inUnits(n) + " of memory" }, []Kind{Guest}, []Permission{Define, Change}},
	{"vcpus", func(s *usage) *uint64 { return &s.vcpus }, counted("vCPU"), []Kind{Guest}, []Permission{Define, Change}},
	{"interfaces", func(s *usage) *uint64 { return &s.interfaces }, counted("interface"), []Kind{Guest}, []Permission{Define, Change}},
	{"definitions", func(s *usage) *uint64 { return &s.definitions }, func(n uint64) string { return inUnits(n) + " of definitions" }, []Kind{Guest, Network}, []Permission{Define, Change, Networks}},
	{"networks", func(s *usage) *uint64 { return &s.networks }, counted("network"), []Kind{Network}, []Permission{Networks}},
	{"pools", func(s *usage) *uint64 { return &s.pools }, counted("pool"), []Kind{Pool}, []Permission{Pools}},
	{"volumes", func(s *usage) *uint64 { return &s.volumes }, counted("volume"), []Kind{Pool}, []Permission{Volumes}},
}

func counted(what string) func(uint64) string {
	return func(n uint64) string {
		if n == 1 {
			return "1 " + what
		}
		return strconv.FormatUint(n, 10) + " " + what + "s"
	}
}

// inUnits formats a number of bytes in the largest unit that divides it.
func inUnits(n uint64) string {
	unit := 0
	for n > 0 && n%1024 == 0 && unit < 3 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%d %s", n, [...]string{"bytes", "KiB", "MiB", "GiB"}[unit])
}

// parseQuota parses the value of "at most".
func parseQuota(node *yaml.Node) (most usage, err error) {
	words := make([]string, len(measures))
	for i, m := range measures {
		words[i] = m.word
	}
	given, err := fields(node, strconv.Quote(atMost), words...)
	if err != nil {
		return most, err
	}
	if len(given) == 0 {
		return most, ruleError(node, "%q is empty; remove it, or give a number of guests, interfaces, networks, pools or volumes, how much memory or how many vcpus", atMost)
	}
	for _, m := range measures {
		value := given[m.word]
		if value == nil {
			continue
		}
		n, err := strconv.ParseUint(value.Value, 10, 32)
		inBytes := m.word == "memory" || m.word == "definitions"
		if inBytes {
			n, err = fleet.ParseSize(value.Value)
		}
		switch {
		case err != nil && inBytes:
			return most, ruleError(value, "%v", err)
		case err != nil || n == 0:
			return most, ruleError(value, "%q is no number of %s; from 1 on", value.Value, m.word)
		}
		*m.of(&most) = n
	}
	return most, nil
}

// usageOfGuest returns the usage of a guest with these definitions, of which nil ones are missing. written is their
// stored size in bytes.
func usageOfGuest(written uint64, definitions ...*domain.Definition) usage {
	s := usage{guests: 1, definitions: written}
	for _, d := range definitions {
		if d != nil {
			// I/O threads count as vCPUs: they take the host's processors and thread IDs in the same way.
			s.memory, s.vcpus = max(s.memory, d.Memory, d.Memory+d.MemoryBeside()), max(s.vcpus, uint64(d.VCPUs.Max), uint64(d.IOThreads))
			s.interfaces = max(s.interfaces, queues(d))
		}
	}
	return s
}

// queues counts the queues of all interfaces. Each queue has files and a thread of the host. An interface counts as
// at least one, because a bridge can have only 1,023 ports.
func queues(d *domain.Definition) (n uint64) {
	for _, nic := range d.Devices.NICs {
		n += uint64(min(max(nic.Queues, 1), 1<<20)) // a sum of absurd numbers must not overflow
	}
	return n
}

// atLeast returns the maximum in each measure.
func (s usage) atLeast(other usage) usage {
	for _, m := range measures {
		*m.of(&s) = max(*m.of(&s), *m.of(&other))
	}
	return s
}

// plus adds without overflow.
func (s usage) plus(other usage) usage {
	for _, m := range measures {
		sum, carry := bits.Add64(*m.of(&s), *m.of(&other), 0)
		*m.of(&s) = sum | -carry
	}
	return s
}

// checkQuota refuses bounds without effect, which would make the author of a rule feel safe.
func (s usage) checkQuota(r *rule, node *yaml.Node) error {
	named := map[Kind]int{Guest: len(r.guests), Network: len(r.networks), Pool: len(r.pools)}
	for _, m := range measures {
		switch {
		case *m.of(&s) == 0:
		case !slices.ContainsFunc(m.verbs, r.may.has):
			return ruleError(node, "rule %q has %q for %s but gives no right to make or enlarge them; that is the right %q", r.name, atMost, m.word, m.verbs[0])
		case r.namesObjects && !slices.ContainsFunc(m.kinds, func(k Kind) bool { return named[k] > 0 }):
			return ruleError(node, "rule %q has %q for %s but names no object that counts; name some, or remove the bound", r.name, atMost, m.word)
		}
	}
	return nil
}

// reservations are the objects that calls under way are about to make. They count in addition to the existing
// objects, so that concurrent calls cannot together exceed a bound.
type reservations struct {
	existing func(like Resource) []objectUsage // returns all objects of the same kind; never waits

	mu      sync.Mutex
	pending map[*reservation][]objectUsage
}

// objectUsage is an object with its usage, as it is or as a call would make it.
type objectUsage struct {
	object Resource
	key    string // identifies the object
	usage  usage
}

// objectsLike returns all existing objects of the kind of like.
func (g *Authorizer) objectsLike(like Resource) (all []objectUsage) {
	switch like.Kind {
	case Guest:
		for _, m := range g.Fleet.All() {
			all = append(all, objectUsage{GuestResource(m), m.View.UUID, usageOfGuest(m.View.Written, m.View.Active, m.View.Inactive)})
		}
	case Network:
		for _, n := range g.Networks.List() {
			all = append(all, usageOfObject(Resource{Kind: Network, Name: n.Name(), definitionBytes: n.View().Written()}))
		}
	case Pool:
		for _, p := range g.Pools.List() {
			if like.Part == "" {
				all = append(all, usageOfObject(Resource{Kind: Pool, Name: p.Name()}))
				continue
			}
			volumes, _ := p.Volumes() // the volumes of an inactive pool are unknown, and none can be made
			for _, v := range volumes {
				all = append(all, usageOfObject(Resource{Kind: Pool, Name: p.Name(), Part: v.Name}))
			}
		}
	case Anything, Everything:
	}
	return all
}

// usageOfObject returns the usage of a network, a pool or a volume.
func usageOfObject(o Resource) objectUsage {
	c := objectUsage{object: o, key: o.String()}
	switch {
	case o.Kind == Network:
		c.usage.networks, c.usage.definitions = 1, o.definitionBytes
	case o.Kind == Pool && o.Part != "":
		c.usage.volumes = 1
	case o.Kind == Pool:
		c.usage.pools = 1
	}
	return c
}

// reservation is one call of a client that rules restrict.
type reservation struct {
	authorizer      *Authorizer
	principal       Principal
	quotaPermission Permission   // the rules that give it bound the call
	permissions     []Permission // all permissions of the call
	ended           bool         // guarded by the lock of the reservations
}

// Scope returns the scope of a call that has the permission v, and those in also. The call's reservations count
// against the client's bounds until done is called; then the objects themselves can be counted. The scope may open
// files anywhere until LimitPaths limits it.
func (g *Authorizer) Scope(w Principal, v Permission, also ...Permission) (_ scope.Scope, done func()) {
	if !g.Restricted(w) {
		return scope.Daemon("a client that no rules restrict"), func() {}
	}
	t := &reservation{authorizer: g, principal: w, quotaPermission: v, permissions: append(slices.Clip(also), v)}
	if v != Change { // a start gives a guest no more than its definition allows
		t.quotaPermission = Define
	}
	return scope.Client(w.String(), scope.Anywhere, t), t.end
}

// ReserveNew checks a network or a pool that a call is to make against the bounds. One that exists already takes
// nothing more.
func (g *Authorizer) ReserveNew(sc scope.Scope, v Permission, o Resource) error {
	t, _ := sc.Limits().(*reservation)
	if t == nil || (v != Networks || o.Kind != Network) && (v != Pools || o.Kind != Pool) {
		return sc.Check()
	}
	return t.reserve(v, usageOfObject(o))
}

// ReserveVolume implements scope.Limits: it counts a volume to be made.
func (t *reservation) ReserveVolume(pool, name string) error {
	return t.reserve(Volumes, usageOfObject(Resource{Kind: Pool, Name: pool, Part: name}))
}

// ReserveNetwork implements scope.Limits: it counts a changed network.
func (t *reservation) ReserveNetwork(name string, written uint64) error {
	return t.reserve(Networks, usageOfObject(Resource{Kind: Network, Name: name, definitionBytes: written}))
}

func (t *reservation) end() {
	s := &t.authorizer.reserved
	s.mu.Lock()
	defer s.mu.Unlock()
	t.ended = true
	delete(s.pending, t)
}

// OpenSecret implements scope.Limits.
func (t *reservation) OpenSecret(pool, secret string) error {
	return t.authorizer.checkDecrypt(t.principal, pool, secret)
}

// Authorize implements scope.Limits: it checks the permissions of the call again when the guest's turn has come. By
// then other clients may have changed the guest's name or labels. A guest that is still being made belongs to no
// other client, so it needs no check.
func (t *reservation) Authorize(uuid string) error {
	o := t.authorizer.GuestByUUID(uuid)
	if o.Kind != Guest || o.member.View.Current() == nil {
		return nil
	}
	o.Found = "with the UUID " + uuid // the client may know it by another name
	for _, v := range t.permissions {
		if !v.ofGuests() {
			continue
		}
		if err := t.authorizer.Check(t.principal, v, o); err != nil {
			return err
		}
	}
	return nil
}

// Recheck returns a scope that also checks the content of a call again when a guest's turn has come, by judge. By then
// other clients may have removed a file that the guest was allowed to keep. Or two clients may together give a guest
// a name and labels that neither may give. on is the guest of the call's document, if there is one.
func (g *Authorizer) Recheck(sc scope.Scope, on Resource, judge func(uuid string) error) scope.Scope {
	t, _ := sc.Limits().(*reservation)
	if t == nil {
		return sc
	}
	return sc.WithAuthorize(func(uuid string) error {
		if err := t.Authorize(uuid); err != nil {
			return err
		}
		if now := g.GuestByUUID(uuid); now.Kind != Guest || now.member.View.Current() == nil {
			if on.replaces { // only what the guest already named may stay
				return fault.New(fault.WrongState, fault.Domain, "%s was undefined before this change; try again", on)
			}
			return nil
		}
		return judge(uuid)
	})
}

// ReserveGuest implements scope.Limits: it counts a guest as its definition makes it.
func (t *reservation) ReserveGuest(uuid string, def *domain.Definition, written uint64) error {
	if err := t.authorizer.checkWeights(t.principal, def, t.authorizer.GuestByUUID(uuid)); err != nil {
		return err
	}
	one := objectUsage{NewGuest(def.Name, uuid, nil), uuid, usageOfGuest(written, def)}
	if marks, err := fleet.ReadMarks(def.Metadata); err == nil { // marks that cannot be parsed count as none
		one.object = NewGuest(def.Name, uuid, marks.Labels)
	}
	return t.reserve(t.quotaPermission, one)
}

// reserve records an object that a call is to make, if a rule has room for it. A rule that gives the right without
// bounds always has room. For a client without any such rule, other checks decide.
func (t *reservation) reserve(v Permission, one objectUsage) error {
	rules := t.authorizer.rules.Load()
	if rules == nil {
		return nil
	}
	s := &t.authorizer.reserved
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ended {
		return fault.New(fault.Aborted, fault.Call, "the call that was to make %s has already ended", one.object)
	}
	var full error
	for _, r := range rules.list {
		if !r.may.has(v) || !r.covers(one.object) || !r.isFor(t.principal) {
			continue
		}
		err := s.checkRoom(r, one)
		if err == nil {
			if s.pending == nil {
				s.pending = map[*reservation][]objectUsage{}
			}
			s.pending[t] = append(s.pending[t], one)
			return nil
		}
		full = cmp.Or(full, err)
	}
	return fault.Wrap(full, fault.NoCapacity, fault.Domain, "%s may not have %s of this size", t.principal, one.object)
}

// checkRoom refuses an object for which a rule has no room. An object may keep its usage, even if that exceeds the
// rule's present bounds.
func (s *reservations) checkRoom(r *rule, one objectUsage) error {
	if !r.quota.boundsAny(one.usage) { // counting is skipped if it is not needed: there may be very many objects
		return nil
	}
	others, had := s.totals(r, one)
	for _, m := range measures {
		most, want, other := *m.of(&r.quota), *m.of(&one.usage), *m.of(&others)
		if most == 0 || want <= *m.of(&had) || want <= most && other <= most-want {
			continue
		}
		return fault.New(fault.NoCapacity, fault.Domain, "rule %q gives at most %s together; this one takes %s and the others have %s; "+
			"remove some or make them smaller, or ask the administrator of the rules", r.name, m.say(most), m.say(want), m.say(other))
	}
	return nil
}

// boundsAny says whether the bounds apply to any part of an object's usage.
func (s usage) boundsAny(one usage) bool {
	for _, m := range measures {
		if *m.of(&s) > 0 && *m.of(&one) > 0 {
			return true
		}
	}
	return false
}

// totals returns the usage of the objects that a rule covers, whichever client made them: of the object itself as it
// is, and of all others of its kind together. The caller holds the lock.
func (s *reservations) totals(r *rule, but objectUsage) (others, had usage) {
	by := map[string]usage{}
	for _, c := range s.existing(but.object) {
		if r.covers(c.object) {
			by[c.key] = c.usage
		}
	}
	had = by[but.key]
	for _, made := range s.pending {
		for _, c := range made {
			if r.covers(c.object) {
				by[c.key] = by[c.key].atLeast(c.usage)
			}
		}
	}
	for key, one := range by {
		if key != but.key {
			others = others.plus(one)
		}
	}
	return others, had
}
