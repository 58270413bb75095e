package access

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/fleet"
	"github.com/lodge-kvm/lodge/guest"
)

// atMost is the word for what the guests of a rule may take, all together.
const atMost = "at most"

// share is what guests take, or may: of a rule 0 is no bound. A guest takes the most that
// its definitions let it have, whether it runs or not: memory up to which its balloon
// gives, and processors that can be plugged in.
type share struct{ guests, memory, vcpus uint64 } // memory in bytes

// measures are the parts of a share.
var measures = []struct {
	word string // in the file of rules
	of   func(*share) *uint64
	say  func(uint64) string
}{
	{"guests", func(s *share) *uint64 { return &s.guests }, func(n uint64) string { return counted(n, "guest") }},
	{"memory", func(s *share) *uint64 { return &s.memory }, func(n uint64) string { return inUnits(n) + " of memory" }},
	{"vcpus", func(s *share) *uint64 { return &s.vcpus }, func(n uint64) string { return counted(n, "vCPU") }},
}

func counted(n uint64, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.FormatUint(n, 10) + " " + what
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
		return most, wrong(node, "%q is empty; leave it out, or say how many guests, how much memory or how many vcpus", atMost)
	}
	for _, m := range measures {
		value := given[m.word]
		if value == nil {
			continue
		}
		n, err := strconv.ParseUint(value.Value, 10, 32)
		if m.word == "memory" {
			n, err = fleet.ParseSize(value.Value)
		}
		switch {
		case err != nil && m.word == "memory":
			return most, wrong(value, "%v", err)
		case err != nil || n == 0:
			return most, wrong(value, "%q is no number of %s; from 1 on", value.Value, m.word)
		}
		*m.of(&most) = n
	}
	return most, nil
}

// shareOf is what a guest takes by its definitions; those that it lacks are nil.
func shareOf(definitions ...*domain.Definition) share {
	s := share{guests: 1}
	for _, d := range definitions {
		if d != nil {
			s.memory, s.vcpus = max(s.memory, d.Memory), max(s.vcpus, uint64(d.VCPUs.Max))
		}
	}
	return s
}

// atLeast gives the larger one in each measure.
func (s share) atLeast(other share) share {
	return share{max(s.guests, other.guests), max(s.memory, other.memory), max(s.vcpus, other.vcpus)}
}

// plus adds, up to the largest number there is.
func (s share) plus(other share) share {
	add := func(a, b uint64) uint64 {
		sum, carry := bits.Add64(a, b, 0)
		return sum | -carry
	}
	return share{add(s.guests, other.guests), add(s.memory, other.memory), add(s.vcpus, other.vcpus)}
}

// shares are what calls under way are about to make of guests. Whoever asks counts those
// beside the guests that are there, so that of several at once none slips under a bound.
type shares struct {
	there func() []fleet.Member // never waits

	mu     sync.Mutex
	claims map[*taking][]claim
}

// claim is one guest as it will be.
type claim struct {
	guest Object
	uuid  string
	share share
}

// taking is one call of a client that the rules hold.
type taking struct {
	gate *Gate
	who  Who
	verb Verb
	over bool // guarded by the lock of the shares
}

// Bound holds what a call makes of guests to what the rules give its client at most. It
// counts until done, when the guests themselves are there to be counted.
func (g *Gate) Bound(ctx context.Context, w Who, v Verb) (_ context.Context, done func()) {
	if !g.Held(w) {
		return ctx, func() {}
	}
	if v != Change { // a start, too, makes no more of a guest than whoever may define it could
		v = Define
	}
	t := &taking{gate: g, who: w, verb: v}
	return guest.WithBound(ctx, t.take), t.end
}

func (t *taking) end() {
	s := &t.gate.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	t.over = true
	delete(s.claims, t)
}

// take notes what a guest will be, if a rule leaves room for that. A rule that gives the
// right without bounds leaves all there is; of a client without any such rule it is for
// others to say what it may do.
func (t *taking) take(uuid string, def *domain.Definition) error {
	rules := t.gate.rules.Load()
	if rules == nil {
		return nil
	}
	one := claim{guest: NewGuest(def.Name, uuid, nil), uuid: uuid, share: shareOf(def)}
	if marks, err := fleet.ReadMarks(def.Metadata); err == nil { // ones that cannot be read are none
		one.guest = NewGuest(def.Name, uuid, marks.Labels)
	}
	s := &t.gate.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.over {
		return fault.New(fault.Aborted, fault.Call, "the call that was to make domain %q so has ended", def.Name)
	}
	var full error
	for _, r := range rules.list {
		if !r.may.has(t.verb) || !r.covers(one.guest) || !r.isFor(t.who) {
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
	return fault.Wrap(full, fault.NoCapacity, fault.Domain, "%s may not have domain '%s' so", t.who, def.Name)
}

// fits says whether a rule has room for a guest. What it has already it may keep, also
// where that is more than the rule would give now.
func (s *shares) fits(r *rule, one claim) error {
	if (r.most == share{}) {
		return nil
	}
	others, had := s.taken(r, one.uuid)
	for _, m := range measures {
		most, want, other := *m.of(&r.most), *m.of(&one.share), *m.of(&others)
		if most == 0 || want <= *m.of(&had) || want <= most && other <= most-want {
			continue
		}
		return fault.New(fault.NoCapacity, fault.Domain, "rule %q gives its guests at most %s together; this one takes %s and the others have %s; "+
			"undefine some or make them smaller, or ask whoever keeps the rules", r.name, m.say(most), m.say(want), m.say(other))
	}
	return nil
}

// taken counts what the guests that a rule is about have, whoever made them: all but one,
// and that one. It is called with the lock held.
func (s *shares) taken(r *rule, but string) (others, had share) {
	by := map[string]share{}
	for _, m := range s.there() {
		if r.covers(Of(m)) {
			by[m.View.UUID] = shareOf(m.View.Active, m.View.Inactive)
		}
	}
	had = by[but]
	for _, claims := range s.claims {
		for _, c := range claims {
			if r.covers(c.guest) {
				by[c.uuid] = by[c.uuid].atLeast(c.share)
			}
		}
	}
	for uuid, one := range by {
		if uuid != but {
			others = others.plus(one)
		}
	}
	return others, had
}
