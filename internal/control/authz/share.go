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

// atMost is the word for what the objects of a rule may take, all together.
const atMost = "at most"

// share is what objects take, or may: of a rule 0 is no bound. A guest takes the most that
// its definitions let it have, whether it runs or not: memory up to which its balloon
// gives, and processors that can be plugged in.
type share struct{ guests, memory, vcpus, interfaces, definitions, networks, pools, volumes uint64 } // memory and definitions in bytes

// usualDefinitions are the bytes of definitions that a rule for some objects gives which says
// nothing of them: the daemon has them all in its memory, several times over.
const usualDefinitions = 64 << 20

// measures are the parts of a share.
var measures = []struct {
	word string // in the file of rules
	of   func(*share) *uint64
	say  func(uint64) string
	// kinds are of the objects that take of it, each sort by itself, and verbs are what lets
	// them be made, or made larger.
	kinds []Kind
	verbs []Verb
}{
	{"guests", func(s *share) *uint64 { return &s.guests }, counted("guest"), []Kind{Guest}, []Verb{Define, Change}},
	{"memory", func(s *share) *uint64 { return &s.memory }, func(n uint64) string { return inUnits(n) + " of memory" }, []Kind{Guest}, []Verb{Define, Change}},
	{"vcpus", func(s *share) *uint64 { return &s.vcpus }, counted("vCPU"), []Kind{Guest}, []Verb{Define, Change}},
	{"interfaces", func(s *share) *uint64 { return &s.interfaces }, counted("interface"), []Kind{Guest}, []Verb{Define, Change}},
	{"definitions", func(s *share) *uint64 { return &s.definitions }, func(n uint64) string { return inUnits(n) + " of definitions" }, []Kind{Guest, Network}, []Verb{Define, Change, Networks}},
	{"networks", func(s *share) *uint64 { return &s.networks }, counted("network"), []Kind{Network}, []Verb{Networks}},
	{"pools", func(s *share) *uint64 { return &s.pools }, counted("pool"), []Kind{Pool}, []Verb{Pools}},
	{"volumes", func(s *share) *uint64 { return &s.volumes }, counted("volume"), []Kind{Pool}, []Verb{Volumes}},
}

func counted(what string) func(uint64) string {
	return func(n uint64) string {
		if n == 1 {
			return "1 " + what
		}
		return strconv.FormatUint(n, 10) + " " + what + "s"
	}
}

// inUnits writes bytes in the largest unit that leaves no rest.
func inUnits(n uint64) string {
	unit := 0
	for n > 0 && n%1024 == 0 && unit < 3 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%d %s", n, [...]string{"bytes", "KiB", "MiB", "GiB"}[unit])
}

// parseMost understands what stands under "at most".
func parseMost(node *yaml.Node) (most share, err error) {
	words := make([]string, len(measures))
	for i, m := range measures {
		words[i] = m.word
	}
	given, err := fields(node, strconv.Quote(atMost), words...)
	if err != nil {
		return most, err
	}
	if len(given) == 0 {
		return most, wrong(node, "%q is empty; leave it out, or say how many guests, interfaces, networks, pools or volumes, how much memory or how many vcpus", atMost)
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
			return most, wrong(value, "%v", err)
		case err != nil || n == 0:
			return most, wrong(value, "%q is no number of %s; from 1 on", value.Value, m.word)
		}
		*m.of(&most) = n
	}
	return most, nil
}

// shareOf is what a guest takes by its definitions, of which so much is written; those that it
// lacks are nil.
func shareOf(written uint64, definitions ...*domain.Definition) share {
	s := share{guests: 1, definitions: written}
	for _, d := range definitions {
		if d != nil {
			// I/O threads are as good as vCPUs to take a host's processors, and its numbers for threads.
			s.memory, s.vcpus = max(s.memory, d.Memory, d.Memory+d.MemoryBeside()), max(s.vcpus, uint64(d.VCPUs.Max), uint64(d.IOThreads))
			s.interfaces = max(s.interfaces, queues(d))
		}
	}
	return s
}

// queues counts those of all interfaces: each has files and a thread of the host's, and each
// interface, of which a bridge has 1,023, has one at least.
func queues(d *domain.Definition) (n uint64) {
	for _, nic := range d.Devices.NICs {
		n += uint64(min(max(nic.Queues, 1), 1<<20)) // sums of what nobody has must not come round
	}
	return n
}

// atLeast gives the larger one in each measure.
func (s share) atLeast(other share) share {
	for _, m := range measures {
		*m.of(&s) = max(*m.of(&s), *m.of(&other))
	}
	return s
}

// plus adds, up to the largest number there is.
func (s share) plus(other share) share {
	for _, m := range measures {
		sum, carry := bits.Add64(*m.of(&s), *m.of(&other), 0)
		*m.of(&s) = sum | -carry
	}
	return s
}

// check refuses bounds that bound nothing.
func (s share) check(r *rule, node *yaml.Node) error {
	named := map[Kind]int{Guest: len(r.guests), Network: len(r.networks), Pool: len(r.pools)}
	for _, m := range measures {
		switch {
		case *m.of(&s) == 0:
		case !slices.ContainsFunc(m.verbs, r.may.has):
			return wrong(node, "rule %q says %q of %s, and lets nobody make or enlarge what takes of that; that is the right %q", r.name, atMost, m.word, m.verbs[0])
		case r.some && !slices.ContainsFunc(m.kinds, func(k Kind) bool { return named[k] > 0 }):
			return wrong(node, "rule %q says %q of %s, and names none that take of that; name some, or leave it out", r.name, atMost, m.word)
		}
	}
	return nil
}

// shares are what calls under way are about to make. Whoever asks counts that beside what is
// there, so that of several at once none slips under a bound.
type shares struct {
	there func(like Object) []claim // all objects of one sort; never waits

	mu     sync.Mutex
	claims map[*taking][]claim
}

// claim is one object as it is, or will be.
type claim struct {
	object Object
	key    string // by which it is known for the same one
	share  share
}

// alike gives all objects of the sort of one.
func (g *Gate) alike(like Object) (all []claim) {
	switch like.Kind {
	case Guest:
		for _, m := range g.Fleet.All() {
			all = append(all, claim{Of(m), m.View.UUID, shareOf(m.View.Written, m.View.Active, m.View.Inactive)})
		}
	case Network:
		for _, n := range g.Networks.List() {
			all = append(all, claimOf(Object{Kind: Network, Name: n.Name(), written: n.View().Written()}))
		}
	case Pool:
		for _, p := range g.Pools.List() {
			if like.Part == "" {
				all = append(all, claimOf(Object{Kind: Pool, Name: p.Name()}))
				continue
			}
			volumes, _ := p.Volumes() // of a pool that does not run nobody knows any, nor makes one
			for _, v := range volumes {
				all = append(all, claimOf(Object{Kind: Pool, Name: p.Name(), Part: v.Name}))
			}
		}
	case Anything, Everything:
	}
	return all
}

// claimOf is a claim to an object that is no guest.
func claimOf(o Object) claim {
	c := claim{object: o, key: o.String()}
	switch {
	case o.Kind == Network:
		c.share.networks, c.share.definitions = 1, o.written
	case o.Kind == Pool && o.Part != "":
		c.share.volumes = 1
	case o.Kind == Pool:
		c.share.pools = 1
	}
	return c
}

// taking is one call of a client that the rules hold.
type taking struct {
	gate  *Gate
	who   Who
	verb  Verb   // by which it is bounded
	asked []Verb // those of the call
	over  bool   // guarded by the lock of the shares
}

// Scope is what a call of a client may do. The rules hold what it makes to what they give the client at
// most: the call's reservations count until done, when the objects themselves are there to be counted.
// The call is by the verb, and by what else it takes. The places of files are held by Fence.
func (g *Gate) Scope(w Who, v Verb, also ...Verb) (_ scope.Scope, done func()) {
	if !g.Held(w) {
		return scope.Daemon("a client that no rules hold"), func() {}
	}
	t := &taking{gate: g, who: w, verb: v, asked: append(slices.Clip(also), v)}
	if v != Change { // a start, too, makes no more of a guest than whoever may define it could
		t.verb = Define
	}
	return scope.Client(w.String(), scope.Anywhere, t), t.end
}

// Make holds a call to what the rules leave room for, of a network or a pool that a
// document is to make. One that is there already takes no more.
func (g *Gate) Make(sc scope.Scope, v Verb, o Object) error {
	t, _ := sc.Limits().(*taking)
	if t == nil || (v != Networks || o.Kind != Network) && (v != Pools || o.Kind != Pool) {
		return sc.Check()
	}
	return t.take(v, claimOf(o))
}

// ReserveVolume implements scope.Limits: it takes a volume that is to be made.
func (t *taking) ReserveVolume(pool, name string) error {
	return t.take(Volumes, claimOf(Object{Kind: Pool, Name: pool, Part: name}))
}

// ReserveNetwork implements scope.Limits: it takes what a changed network will be.
func (t *taking) ReserveNetwork(name string, written uint64) error {
	return t.take(Networks, claimOf(Object{Kind: Network, Name: name, written: written}))
}

func (t *taking) end() {
	s := &t.gate.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	t.over = true
	delete(s.claims, t)
}

// OpenSecret implements scope.Limits.
func (t *taking) OpenSecret(pool, secret string) error { return t.gate.opening(t.who, pool, secret) }

// Authorize implements scope.Limits: it judges the call again when a guest's turn for it has come, which may be much later: others may
// have given the guest another name or labels meanwhile. What is only being made is nobody else's.
func (t *taking) Authorize(uuid string) error {
	o := t.gate.GuestByUUID(uuid)
	if o.Kind != Guest || o.member.View.Current() == nil {
		return nil
	}
	o.Found = "with the UUID " + uuid // it may not be called as the client knows it
	for _, v := range t.asked {
		if !v.ofGuests() {
			continue
		}
		if err := t.gate.Check(t.who, v, o); err != nil {
			return err
		}
	}
	return nil
}

// Again has a call judged by what it says, too, when a guest's turn for it has come: others may
// have taken from the guest meanwhile what it names, or have given it the other half of a name and
// labels that are nobody's to give. On is the guest that its document would make, if it has one.
func (g *Gate) Again(sc scope.Scope, on Object, judge func(uuid string) error) scope.Scope {
	t, _ := sc.Limits().(*taking)
	if t == nil {
		return sc
	}
	return sc.Authorizing(func(uuid string) error {
		if err := t.Authorize(uuid); err != nil {
			return err
		}
		if now := g.GuestByUUID(uuid); now.Kind != Guest || now.member.View.Current() == nil {
			if on.replaces { // what it named may stay in it alone
				return fault.New(fault.WrongState, fault.Domain, "%s has been undefined while this was to change it; try again", on)
			}
			return nil
		}
		return judge(uuid)
	})
}

// ReserveGuest implements scope.Limits: it takes what a guest will be.
func (t *taking) ReserveGuest(uuid string, def *domain.Definition, written uint64) error {
	if err := t.gate.weigh(t.who, def, t.gate.GuestByUUID(uuid)); err != nil {
		return err
	}
	one := claim{NewGuest(def.Name, uuid, nil), uuid, shareOf(written, def)}
	if marks, err := fleet.ReadMarks(def.Metadata); err == nil { // ones that cannot be read are none
		one.object = NewGuest(def.Name, uuid, marks.Labels)
	}
	return t.take(t.verb, one)
}

// take notes what an object will be, if a rule leaves room for that. A rule that gives the
// right without bounds leaves all there is; of a client without any such rule it is for
// others to say what it may do.
func (t *taking) take(v Verb, one claim) error {
	rules := t.gate.rules.Load()
	if rules == nil {
		return nil
	}
	s := &t.gate.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.over {
		return fault.New(fault.Aborted, fault.Call, "the call that was to make %s so has ended", one.object)
	}
	var full error
	for _, r := range rules.list {
		if !r.may.has(v) || !r.covers(one.object) || !r.isFor(t.who) {
			continue
		}
		err := s.fits(r, one)
		if err == nil {
			if s.claims == nil {
				s.claims = map[*taking][]claim{}
			}
			s.claims[t] = append(s.claims[t], one)
			return nil
		}
		full = cmp.Or(full, err)
	}
	return fault.Wrap(full, fault.NoCapacity, fault.Domain, "%s may not have %s so", t.who, one.object)
}

// fits says whether a rule has room for an object. What it has already it may keep, also
// where that is more than the rule would give now.
func (s *shares) fits(r *rule, one claim) error {
	if !r.most.bounds(one.share) { // nothing is counted in vain: there may be very many
		return nil
	}
	others, had := s.taken(r, one)
	for _, m := range measures {
		most, want, other := *m.of(&r.most), *m.of(&one.share), *m.of(&others)
		if most == 0 || want <= *m.of(&had) || want <= most && other <= most-want {
			continue
		}
		return fault.New(fault.NoCapacity, fault.Domain, "rule %q gives at most %s together; this one takes %s and the others have %s; "+
			"remove some or make them smaller, or ask whoever keeps the rules", r.name, m.say(most), m.say(want), m.say(other))
	}
	return nil
}

// bounds says whether any of what an object takes is bounded.
func (s share) bounds(one share) bool {
	for _, m := range measures {
		if *m.of(&s) > 0 && *m.of(&one) > 0 {
			return true
		}
	}
	return false
}

// taken counts what the objects that a rule is about have, whoever made them: all of one's
// sort but that, and that one. It is called with the lock held.
func (s *shares) taken(r *rule, but claim) (others, had share) {
	by := map[string]share{}
	for _, c := range s.there(but.object) {
		if r.covers(c.object) {
			by[c.key] = c.share
		}
	}
	had = by[but.key]
	for _, claims := range s.claims {
		for _, c := range claims {
			if r.covers(c.object) {
				by[c.key] = by[c.key].atLeast(c.share)
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
