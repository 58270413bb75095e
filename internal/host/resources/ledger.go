package resources

import (
	"maps"
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Ledger keeps the books of what each running guest holds of the host. It
// refuses only what cannot work: more memory than there is, huge pages that
// are missing, a processor that another guest has to itself. Memory may
// otherwise be promised more than once.
type Ledger struct {
	inventory *Inventory
	// Limits are what a guest's needs are held against; nil: nothing. They are set
	// before the books are used.
	Limits *Limits

	mu   sync.Mutex
	held map[string]topology.Reservation
}

// NewLedger makes empty books. A daemon that adopts guests enters them by Restore.
func NewLedger(inventory *Inventory) *Ledger {
	return &Ledger{inventory: inventory, held: map[string]topology.Reservation{}}
}

// CheckNodes refuses to bind memory to nodes that the host does not have.
func (l *Ledger) CheckNodes(nodes topology.CPUSet) error {
	has := l.inventory.Facts().Topology.CellIDs()
	if missing := nodes.Minus(has); !missing.IsEmpty() {
		return fault.New(fault.Unsupported, fault.Config,
			"NUMA node %s is not on this host, which has %s; change the nodesets in numatune and below memory devices", missing, has)
	}
	return nil
}

// Reserve enters what a guest, known by any key of the caller's, is about to
// take, and holds what it needs besides against the host's limits. NoCapacity says
// what is missing, with the sums. What is granted is held until Release.
func (l *Ledger) Reserve(guest string, want topology.Reservation, need Need) error {
	facts := l.inventory.Facts()
	if want.Memory > facts.Memory {
		return fault.New(fault.NoCapacity, fault.Host, "the guest wants %s of memory and this host has %s in all",
			bytes(want.Memory), bytes(facts.Memory))
	}
	if missing := want.CPUs.Minus(facts.Topology.Online); !missing.IsEmpty() {
		return fault.New(fault.NoCapacity, fault.Host, "the guest wants processors %s to itself, of which %s are not online", want.CPUs, missing)
	}
	// The pools are read before the books are locked: reading may be slow.
	pools, err := l.readPools(want.Pages)
	if err != nil {
		return err
	}
	if err := l.enter(guest, want, pools); err != nil {
		return err
	}
	need.Pages = want.Pages
	if err := l.Limits.take(guest, need); err != nil {
		l.Release(guest)
		return err
	}
	return nil
}

func (l *Ledger) enter(guest string, want topology.Reservation, pools map[poolID]topology.PagePool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.held[guest]; twice {
		return fault.New(fault.Exists, fault.Host, "guest %q already holds a part of this host", guest)
	}
	if err := l.admitPages(want.Pages, pools); err != nil {
		return err
	}
	if err := l.admitCPUs(want.CPUs); err != nil {
		return err
	}
	l.held[guest] = want
	return nil
}

// Extend enters what a running guest is about to take besides, as Reserve does.
func (l *Ledger) Extend(guest string, by topology.Reservation) error {
	facts := l.inventory.Facts()
	pools, err := l.readPools(by.Pages)
	if err != nil {
		return err
	}
	if err := l.widen(guest, by, pools, facts.Memory); err != nil {
		return err
	}
	if err := l.Limits.extend(guest, by.Pages); err != nil {
		l.Reduce(guest, by)
		return err
	}
	return nil
}

func (l *Ledger) widen(guest string, by topology.Reservation, pools map[poolID]topology.PagePool, most uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, is := l.held[guest]
	if !is {
		return fault.New(fault.WrongState, fault.Host, "guest %q holds nothing of this host that could be extended", guest)
	}
	sum := held.Plus(by)
	if sum.Memory > most {
		return fault.New(fault.NoCapacity, fault.Host, "the guest would have %s of memory and this host has %s in all", bytes(sum.Memory), bytes(most))
	}
	if err := l.admitPages(by.Pages, pools); err != nil {
		return err
	}
	l.held[guest] = sum
	return nil
}

// Add enters what a running guest has besides, without asking whether it could
// have it.
func (l *Ledger) Add(guest string, has topology.Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, is := l.held[guest]; is {
		l.held[guest] = held.Plus(has)
	}
}

// Reduce gives back a part of what a guest holds. One that holds nothing is fine.
func (l *Ledger) Reduce(guest string, by topology.Reservation) {
	l.Limits.reduce(guest, by.Pages)
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, is := l.held[guest]; is {
		l.held[guest] = held.Minus(by)
	}
}

// Started says that a guest has taken what it reserved of the host's limits: the
// kernel counts it from now on.
func (l *Ledger) Started(guest string) { l.Limits.started(guest) }

// Restore enters what an adopted guest holds already, and what it has taken of the
// host's limits, without asking whether it could have it.
func (l *Ledger) Restore(guest string, holds topology.Reservation, has Need) {
	has.Pages = holds.Pages
	l.Limits.restore(guest, has)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[guest] = holds
}

// Release gives back what a guest held. A guest that holds nothing is fine.
func (l *Ledger) Release(guest string) {
	l.Limits.release(guest)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, guest)
}

// Held gives a copy of the books.
func (l *Ledger) Held() map[string]topology.Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.held)
}

// poolID names a pool: the pages of one size in one cell or in all of them.
type poolID struct {
	cell int
	size uint64
}

func (l *Ledger) readPools(demands []topology.PageDemand) (map[poolID]topology.PagePool, error) {
	pools := map[poolID]topology.PagePool{}
	for _, d := range demands {
		for _, cell := range []int{d.Cell, topology.AnyCell} {
			if _, have := pools[poolID{cell, d.Size}]; have {
				continue
			}
			list, err := l.inventory.root.HostPages()
			if cell != topology.AnyCell {
				list, err = l.inventory.Pages(cell)
			}
			if err != nil {
				return nil, fault.Wrap(err, fault.NoCapacity, fault.Host, "cannot count the huge pages of cell %d", cell)
			}
			i := slices.IndexFunc(list, func(p topology.PagePool) bool { return p.Size == d.Size })
			if i <= 0 { // the first pool is the base pages
				return nil, fault.New(fault.NoCapacity, fault.Host, "this host has no huge pages of %s", bytes(d.Size))
			}
			pools[poolID{cell, d.Size}] = list[i]
		}
	}
	return pools, nil
}

// admitPages holds each demand against its cell's pool and against the whole
// host's: the pages must be free now, and the pool must be large enough for this
// guest beside those that hold pages of it.
func (l *Ledger) admitPages(demands []topology.PageDemand, pools map[poolID]topology.PagePool) error {
	want := sumPages(demands)
	held := map[poolID]uint64{}
	for _, r := range l.held {
		for id, count := range sumPages(r.Pages) {
			held[id] += count
		}
	}
	for _, d := range demands {
		for _, id := range []poolID{{d.Cell, d.Size}, {topology.AnyCell, d.Size}} {
			pool := pools[id]
			left := min(pool.Free, pool.Total-min(held[id], pool.Total))
			if want[id] <= left {
				continue
			}
			where := "this host"
			if id.cell != topology.AnyCell {
				where = "cell " + topology.CPUs(id.cell).String()
			}
			return fault.New(fault.NoCapacity, fault.Host,
				"the guest wants %d huge pages of %s and %s has %d left (%d in all, %d free, %d held by other guests); get more with: echo %d > %s/nr_hugepages",
				want[id], bytes(id.size), where, left, pool.Total, pool.Free, held[id], pool.Total+want[id]-left, kernel.HugePageDir(id.cell, id.size))
		}
	}
	return nil
}

// sumPages adds demands up by cell, and for the whole host.
func sumPages(demands []topology.PageDemand) map[poolID]uint64 {
	sums := map[poolID]uint64{}
	for _, d := range demands {
		sums[poolID{topology.AnyCell, d.Size}] += d.Count
		if d.Cell != topology.AnyCell {
			sums[poolID{d.Cell, d.Size}] += d.Count
		}
	}
	return sums
}

func (l *Ledger) admitCPUs(want topology.CPUSet) error {
	for guest, r := range l.held {
		if taken := r.CPUs.Intersect(want); !taken.IsEmpty() {
			return fault.New(fault.NoCapacity, fault.Host, "the guest wants processors %s to itself, of which guest %q has %s", want, guest, taken)
		}
	}
	return nil
}
