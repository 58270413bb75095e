package resources

import (
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Memory that a QEMU process takes in addition to the guest's, and memory that a guest touches before it runs,
// in bytes. Both are estimates for the first guest of a kind; earlier guests of the kind give better figures.
const (
	emulatorMemory = 32 << 20
	pausedMemory   = 32 << 20
)

// A guest that has started settles for settleMost at the longest, or until its resident memory has grown by at
// most settleGrowth within settleCalm.
const (
	settleMost   = 60 * time.Second
	settleCalm   = 5 * time.Second
	settleGrowth = 4 << 20
)

// Bounds of the books: how many settling guests one look reads, and how many kinds of guest are remembered.
const (
	residentsAtOnce = 32
	maxKinds        = 1024
)

// promises keeps the memory that guests will touch but have not touched yet. The host cannot give that memory
// away, although the kernel reports it as available.
type promises struct {
	host     kernel.Memory
	settling map[*settler]struct{}
	// seen is the resident memory that guests of a kind reached, in bytes.
	seen map[guestKind]uint64
}

// guestKind groups guests that are expected to use the same memory.
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
	// mark is its resident memory at the time grown, when it last grew by settleGrowth.
	mark   uint64
	grown  time.Time
	looked time.Time
	// read and gone are results of a look. The goroutine that looks writes them without the lock.
	read uint64
	gone bool
}

func newPromises() promises {
	return promises{settling: map[*settler]struct{}{}, seen: map[guestKind]uint64{}}
}

// see stores the host's memory figures.
func (m *promises) see(now kernel.Memory) { m.host = now }

// reserve is the memory kept for the host itself, in bytes.
func (m *promises) reserve() uint64 { return min(m.host.Total/32, 4<<30) }

// usable is the part of available memory and swap that guests can get. Half of the swap counts: guests on swap
// are slow, and the host needs some too.
func (m *promises) usable(available, swap uint64) uint64 {
	sum := available + swap/2
	return sum - min(m.reserve(), sum)
}

// expected is the memory a guest touches soon after its start: its size, unless others of its kind took less.
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

// least is the memory that must be available even if no other guest is starting. For a kind that was never
// seen it is a quarter: few guests touch all their memory, and memory may be overcommitted.
func (m *promises) least(q StartRequest) uint64 {
	if _, seen := m.seen[kindOf(q)]; seen || q.Whole {
		return m.expected(q)
	}
	return m.expected(q) / 4
}

func kindOf(q StartRequest) guestKind { return guestKind{q.Memory, q.Paused, q.Whole} }

// impossible refuses a guest that would not fit on an empty host.
func (m *promises) impossible(q StartRequest) error {
	if m.host.Total == 0 {
		return nil // the host has not been read
	}
	if all := m.usable(m.host.Total, m.host.SwapTotal); m.least(q) > all {
		return fault.New(fault.NoCapacity, fault.Host, "the guest takes %s of memory at once, and this host has %s for guests in all",
			mebibytes(m.least(q)), mebibytes(all))
	}
	return nil
}

// promised is the memory that launches and settling guests will still touch, in bytes.
func (m *promises) promised(launches map[*place]struct{}) (sum uint64) {
	for p := range launches {
		sum += p.expected
	}
	for g := range m.settling {
		sum += g.expected - min(g.resident, g.expected)
	}
	return sum
}

// settles says whether guests are settling, which may free memory.
func (m *promises) settles() bool { return len(m.settling) > 0 }

// admit returns the memory promised to a guest, or an error that says why there is too little. A guest that
// starts alone may start with less than expected; the next one is measured against the result.
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

// launched records a guest that has started and now touches its promised memory. A paused guest has touched
// all of it.
func (m *promises) launched(p *place, pid int, resident uint64, now time.Time) {
	g := &settler{pid: pid, kind: kindOf(p.StartRequest), expected: p.expected, resident: resident, read: resident, mark: resident, began: now, grown: now, looked: now}
	if p.Paused {
		m.learn(g)
		return
	}
	m.settling[g] = struct{}{}
}

// oldest returns the settling guests whose last look is longest ago.
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

// settle applies the results of a look and drops guests that have settled. Guests that were not looked at
// stay, because their memory is unknown.
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

// learn stores the memory that a guest of a kind reached: the recent maximum.
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

// mebibytes prints a size rounded down to MiB.
func mebibytes(n uint64) string { return bytes(n >> 20 << 20) }
