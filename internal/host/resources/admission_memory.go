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

// Bounds of the books: how many settling guests one reading of the load covers, and how many kinds of guest are
// remembered.
const (
	residentsAtOnce = 32
	maxKinds        = 1024
)

// memoryPromises keeps the memory that guests will touch but have not touched yet. The host cannot give that memory
// away, although the kernel reports it as available.
type memoryPromises struct {
	host     kernel.Memory
	settling map[*settlingGuest]struct{}
	// usage is the resident memory that guests of a kind reached, in bytes.
	usage map[guestKind]uint64
}

// guestKind groups guests that are expected to use the same memory.
type guestKind struct {
	memory        uint64
	paused, whole bool
}

// settlingGuest is a guest that has just started.
type settlingGuest struct {
	pid      int
	kind     guestKind
	expected uint64
	resident uint64
	began    time.Time
	// grownTo is its resident memory at the time grownAt, when it last grew by settleGrowth.
	grownTo   uint64
	grownAt   time.Time
	checkedAt time.Time
	// lastRead and ended are results of readLoad. The goroutine that reads the load writes them without the lock.
	lastRead uint64
	ended    bool
}

func newMemoryPromises() memoryPromises {
	return memoryPromises{settling: map[*settlingGuest]struct{}{}, usage: map[guestKind]uint64{}}
}

// setHost stores the host's memory figures.
func (m *memoryPromises) setHost(now kernel.Memory) { m.host = now }

// reserve is the memory kept for the host itself, in bytes.
func (m *memoryPromises) reserve() uint64 { return min(m.host.Total/32, 4<<30) }

// usable is the part of available memory and swap that guests can get. Half of the swap counts: guests on swap
// are slow, and the host needs some too.
func (m *memoryPromises) usable(available, swap uint64) uint64 {
	sum := available + swap/2
	return sum - min(m.reserve(), sum)
}

// expected is the memory a guest touches soon after its start: its size, unless others of its kind took less.
func (m *memoryPromises) expected(q StartRequest) uint64 {
	full := q.Memory + emulatorMemory
	if q.Whole {
		return full
	}
	if seen, ok := m.usage[kindOf(q)]; ok {
		return min(full, seen+seen/4)
	}
	if q.Paused {
		return min(full, emulatorMemory+pausedMemory)
	}
	return full
}

// minimum is the memory that must be available even if no other guest is starting. For a kind that was never
// seen it is a quarter: few guests touch all their memory, and memory may be overcommitted.
func (m *memoryPromises) minimum(q StartRequest) uint64 {
	if _, seen := m.usage[kindOf(q)]; seen || q.Whole {
		return m.expected(q)
	}
	return m.expected(q) / 4
}

func kindOf(q StartRequest) guestKind { return guestKind{q.Memory, q.Paused, q.Whole} }

// refuseNeverFitting refuses a guest that would not fit on an empty host.
func (m *memoryPromises) refuseNeverFitting(q StartRequest) error {
	if m.host.Total == 0 {
		return nil // the host has not been read
	}
	if all := m.usable(m.host.Total, m.host.SwapTotal); m.minimum(q) > all {
		return fault.New(fault.NoCapacity, fault.Host, "the guest takes %s of memory at once, and this host has %s for guests in all",
			formatMiB(m.minimum(q)), formatMiB(all))
	}
	return nil
}

// promised is the memory that launches and settling guests will still touch, in bytes.
func (m *memoryPromises) promised(launches map[*launch]struct{}) (sum uint64) {
	for p := range launches {
		sum += p.expected
	}
	for g := range m.settling {
		sum += g.expected - min(g.resident, g.expected)
	}
	return sum
}

// hasSettling says whether guests are settling, which may free memory.
func (m *memoryPromises) hasSettling() bool { return len(m.settling) > 0 }

// promiseOrRefuse returns the memory promised to a guest, or an error that says why there is too little. A guest that
// starts alone may start with less than expected; the next one is measured against the result.
func (m *memoryPromises) promiseOrRefuse(q StartRequest, launches map[*launch]struct{}) (expected uint64, err error) {
	expected = m.expected(q)
	if m.host.Total == 0 {
		return expected, nil
	}
	room, promised := m.usable(m.host.Available, m.host.SwapFree), m.promised(launches)
	wanted := expected
	if len(launches) == 0 && len(m.settling) == 0 {
		wanted = m.minimum(q)
	}
	if wanted+promised <= room {
		return expected, nil
	}
	return 0, fault.New(fault.NoCapacity, fault.Host,
		"the guest takes about %s of memory, and of %s that are available (%s of swap, %s kept back for the host) %s are promised to guests that are starting; stop a guest, or give this one less memory",
		formatMiB(wanted), formatMiB(m.host.Available), formatMiB(m.host.SwapFree), formatMiB(m.reserve()), formatMiB(promised))
}

// addSettling records a guest that has started and now touches its promised memory. A paused guest has touched
// all of it.
func (m *memoryPromises) addSettling(p *launch, pid int, resident uint64, now time.Time) {
	g := &settlingGuest{pid: pid, kind: kindOf(p.StartRequest), expected: p.expected, resident: resident, lastRead: resident, grownTo: resident, began: now, grownAt: now, checkedAt: now}
	if p.Paused {
		m.recordUsage(g)
		return
	}
	m.settling[g] = struct{}{}
}

// oldestSettling returns the settling guests that were checked longest ago.
func (m *memoryPromises) oldestSettling() []*settlingGuest {
	all := make([]*settlingGuest, 0, len(m.settling))
	for g := range m.settling {
		all = append(all, g)
	}
	if len(all) > residentsAtOnce {
		slices.SortFunc(all, func(a, b *settlingGuest) int { return a.checkedAt.Compare(b.checkedAt) })
		all = all[:residentsAtOnce]
	}
	return all
}

// updateSettling applies the results of readLoad and drops guests that have settled. Guests that were not checked
// stay, because their memory is unknown.
func (m *memoryPromises) updateSettling(found []*settlingGuest, now time.Time) {
	for _, g := range found {
		g.checkedAt = now
		if g.lastRead > g.grownTo+settleGrowth {
			g.grownTo, g.grownAt = g.lastRead, now
		}
		g.resident = max(g.resident, g.lastRead)
		switch {
		case g.ended:
			delete(m.settling, g)
		case now.Sub(g.began) > settleMost, now.Sub(g.grownAt) > settleCalm:
			m.recordUsage(g)
			delete(m.settling, g)
		}
	}
}

// recordUsage stores the memory that a guest of a kind reached: the recent maximum.
func (m *memoryPromises) recordUsage(g *settlingGuest) {
	if g.resident == 0 {
		return
	}
	if len(m.usage) >= maxKinds {
		clear(m.usage)
	}
	old := m.usage[g.kind]
	m.usage[g.kind] = max(g.resident, old-old/16)
}

// formatMiB prints a size rounded down to MiB.
func formatMiB(n uint64) string { return formatBytes(n >> 20 << 20) }
