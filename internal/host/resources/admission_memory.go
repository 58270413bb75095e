package resources

import (
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// What a guest's process takes beside the guest's memory, and what a guest that
// has not run yet has touched of that, in bytes. Both are estimates for the first
// guest of a kind; what those before it took is better.
const (
	emulatorMemory = 32 << 20
	pausedMemory   = 32 << 20
)

// A guest that has started settles: for settleMost at the longest, and until its
// resident memory has not grown by more than settleGrowth for settleCalm.
const (
	settleMost   = 60 * time.Second
	settleCalm   = 5 * time.Second
	settleGrowth = 4 << 20
)

// Bounds of bookkeeping: how many settling guests are read at a look, and how many
// kinds of guest are remembered.
const (
	residentsAtOnce = 32
	maxKinds        = 1024
)

// promises are the books of memory that guests will touch and have not yet: what
// the host has available now is not what it can give away.
type promises struct {
	host     kernel.Memory
	settling map[*settler]struct{}
	// seen is what guests of a kind came to hold.
	seen map[guestKind]uint64
}

// guestKind are guests of which one tells what to expect of the next.
type guestKind struct {
	memory        uint64
	paused, whole bool
}

// settler is a guest that has just started.
type settler struct {
	pid      int
	kind     guestKind
	expected uint64
	resident uint64
	began    time.Time
	// mark is what it held at the time grown, when it had last grown by
	// settleGrowth.
	mark   uint64
	grown  time.Time
	looked time.Time
	// read and gone are what a look found, written without the lock by the one
	// that looks.
	read uint64
	gone bool
}

func newPromises() promises {
	return promises{settling: map[*settler]struct{}{}, seen: map[guestKind]uint64{}}
}

// see takes in how much memory the host has now.
func (m *promises) see(now kernel.Memory) { m.host = now }

// reserve is kept back for the host itself.
func (m *promises) reserve() uint64 { return min(m.host.Total/32, 4<<30) }

// usable is what guests can get of the memory that is available and of the swap.
// Half of the swap counts: guests on it are slow, and the host needs some too.
func (m *promises) usable(available, swap uint64) uint64 {
	sum := available + swap/2
	return sum - min(m.reserve(), sum)
}

// expected is what a guest comes to touch soon after its start: its size, unless
// others of its kind took less.
func (m *promises) expected(q StartRequest) uint64 {
	full := q.Memory + emulatorMemory
	if q.Whole {
		return full
	}
	if seen, ok := m.seen[kindOf(q)]; ok {
		return min(full, seen+seen/4)
	}
	if q.Paused {
		return min(full, emulatorMemory+pausedMemory)
	}
	return full
}

// least is what must be there even when nobody else is starting: of guests whose
// like was never seen a part only, as few touch all of their memory, and memory
// may be promised more than once.
func (m *promises) least(q StartRequest) uint64 {
	if _, seen := m.seen[kindOf(q)]; seen || q.Whole {
		return m.expected(q)
	}
	return m.expected(q) / 4
}

func kindOf(q StartRequest) guestKind { return guestKind{q.Memory, q.Paused, q.Whole} }

// impossible refuses a guest that would not fit if it were alone.
func (m *promises) impossible(q StartRequest) error {
	if m.host.Total == 0 {
		return nil // nothing is known of the host
	}
	if all := m.usable(m.host.Total, m.host.SwapTotal); m.least(q) > all {
		return fault.New(fault.NoCapacity, fault.Host, "the guest takes %s of memory at once, and this host has %s for guests in all",
			mebibytes(m.least(q)), mebibytes(all))
	}
	return nil
}

// promised is what launches and settling guests will still touch.
func (m *promises) promised(launches map[*place]struct{}) (sum uint64) {
	for p := range launches {
		sum += p.expected
	}
	for g := range m.settling {
		sum += g.expected - min(g.resident, g.expected)
	}
	return sum
}

// settles says whether there are guests whose settling may free memory.
func (m *promises) settles() bool { return len(m.settling) > 0 }

// admit gives what a guest is promised, or says why that is not there. A guest
// that starts alone gets a chance with less: the next one will be told.
func (m *promises) admit(q StartRequest, launches map[*place]struct{}) (expected uint64, err error) {
	expected = m.expected(q)
	if m.host.Total == 0 {
		return expected, nil
	}
	room, promised := m.usable(m.host.Available, m.host.SwapFree), m.promised(launches)
	wanted := expected
	if len(launches) == 0 && len(m.settling) == 0 {
		wanted = m.least(q)
	}
	if wanted+promised <= room {
		return expected, nil
	}
	return 0, fault.New(fault.NoCapacity, fault.Host,
		"the guest takes about %s of memory, and of %s that are available (%s of swap, %s kept back for the host) %s are promised to guests that are starting; stop a guest, or give this one less memory",
		mebibytes(wanted), mebibytes(m.host.Available), mebibytes(m.host.SwapFree), mebibytes(m.reserve()), mebibytes(promised))
}

// launched notes a guest that has started and now touches what it was promised. A
// paused one has touched it all.
func (m *promises) launched(p *place, pid int, resident uint64, now time.Time) {
	g := &settler{pid: pid, kind: kindOf(p.StartRequest), expected: p.expected, resident: resident, read: resident, mark: resident, began: now, grown: now, looked: now}
	if p.Paused {
		m.learn(g)
		return
	}
	m.settling[g] = struct{}{}
}

// oldest are the settling guests that were looked at longest ago.
func (m *promises) oldest() []*settler {
	all := make([]*settler, 0, len(m.settling))
	for g := range m.settling {
		all = append(all, g)
	}
	if len(all) > residentsAtOnce {
		slices.SortFunc(all, func(a, b *settler) int { return a.looked.Compare(b.looked) })
		all = all[:residentsAtOnce]
	}
	return all
}

// settle takes in what a look found, and lets those go that hold what they will.
// Those that were not looked at stay: what they hold is not known.
func (m *promises) settle(found []*settler, now time.Time) {
	for _, g := range found {
		g.looked = now
		if g.read > g.mark+settleGrowth {
			g.mark, g.grown = g.read, now
		}
		g.resident = max(g.resident, g.read)
		switch {
		case g.gone:
			delete(m.settling, g)
		case now.Sub(g.began) > settleMost, now.Sub(g.grown) > settleCalm:
			m.learn(g)
			delete(m.settling, g)
		}
	}
}

// learn remembers what a guest of a kind came to hold: the most of late.
func (m *promises) learn(g *settler) {
	if g.resident == 0 {
		return
	}
	if len(m.seen) >= maxKinds {
		clear(m.seen)
	}
	old := m.seen[g.kind]
	m.seen[g.kind] = max(g.resident, old-old/16)
}

// mebibytes prints a size that nobody wants to the byte.
func mebibytes(n uint64) string { return bytes(n >> 20 << 20) }
