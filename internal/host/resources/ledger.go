package resources

import (
	"maps"
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Ledger keeps what each running guest holds of the host. It refuses only what cannot work: more memory than
// the host has, missing huge pages, a processor that another guest holds exclusively. Other memory may be
// overcommitted.
type Ledger struct {
	inventory *Inventory
	// Limits are the host's limits that needs are checked against; nil for none. It is set before the ledger
	// is used.
	Limits *Limits

	mu   sync.Mutex
	held map[string]topology.Reservation
}

// NewLedger makes an empty ledger. A daemon that adopts guests adds them with Restore.
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

// Reserve records what a guest is about to take and checks its need against the host's limits. The caller
// chooses the key, guest. fault.NoCapacity gives the sums. The guest holds what was granted until Release.
func (l *Ledger) Reserve(guest string, want topology.Reservation, need Need) error {
	facts := l.inventory.Facts()
	if want.Memory > facts.Memory {
		return fault.New(fault.NoCapacity, fault.Host, "the guest wants %s of memory and this host has %s in total",
			formatBytes(want.Memory), formatBytes(facts.Memory))
	}
	if missing := want.CPUs.Minus(facts.Topology.Online); !missing.IsEmpty() {
		return fault.New(fault.NoCapacity, fault.Host, "the guest wants exclusive use of processors %s, and %s are offline", want.CPUs, missing)
	}
	// The pools are read before the lock is taken: reading may be slow.
	pools, err := l.readPools(want.Pages)
	if err != nil {
		return err
	}
	if err := l.addIfFits(guest, want, pools); err != nil {
		return err
	}
	need.Pages = want.Pages
	if err := l.Limits.reserve(guest, need); err != nil {
		l.Release(guest)
		return err
	}
	return nil
}

func (l *Ledger) addIfFits(guest string, want topology.Reservation, pools map[poolID]topology.PagePool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.held[guest]; twice {
		return fault.New(fault.Exists, fault.Host, "guest %q already has a reservation on this host", guest)
	}
	if err := l.checkPages(want.Pages, pools); err != nil {
		return err
	}
	if err := l.checkCPUs(want.CPUs); err != nil {
		return err
	}
	l.held[guest] = want
	return nil
}

// Extend records what a running guest is about to take in addition, with the checks of Reserve.
func (l *Ledger) Extend(guest string, by topology.Reservation) error {
	facts := l.inventory.Facts()
	pools, err := l.readPools(by.Pages)
	if err != nil {
		return err
	}
	if err := l.extendIfFits(guest, by, pools, facts.Memory); err != nil {
		return err
	}
	if err := l.Limits.extend(guest, by.Pages); err != nil {
		l.Reduce(guest, by)
		return err
	}
	return nil
}

func (l *Ledger) extendIfFits(guest string, by topology.Reservation, pools map[poolID]topology.PagePool, most uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, is := l.held[guest]
	if !is {
		return fault.New(fault.WrongState, fault.Host, "guest %q has no reservation to extend", guest)
	}
	sum := held.Plus(by)
	if sum.Memory > most {
		return fault.New(fault.NoCapacity, fault.Host, "the guest would have %s of memory and this host has %s in total", formatBytes(sum.Memory), formatBytes(most))
	}
	if err := l.checkPages(by.Pages, pools); err != nil {
		return err
	}
	l.held[guest] = sum
	return nil
}

// Add records what a running guest has in addition, without a check.
func (l *Ledger) Add(guest string, has topology.Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, is := l.held[guest]; is {
		l.held[guest] = held.Plus(has)
	}
}

// Reduce gives back a part of a guest's reservation. A guest without one is no error.
func (l *Ledger) Reduce(guest string, by topology.Reservation) {
	l.Limits.reduce(guest, by.Pages)
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, is := l.held[guest]; is {
		l.held[guest] = held.Minus(by)
	}
}

// Started says that a guest has taken its share of the host's limits: the kernel counts it from now on.
func (l *Ledger) Started(guest string) { l.Limits.started(guest) }

// Restore records what an adopted guest holds, including its share of the host's limits, without a check.
func (l *Ledger) Restore(guest string, holds topology.Reservation, has Need) {
	has.Pages = holds.Pages
	l.Limits.restore(guest, has)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[guest] = holds
}

// Release gives back a guest's reservation. A guest without one is no error.
func (l *Ledger) Release(guest string) {
	l.Limits.release(guest)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, guest)
}

// Held returns a copy of the reservations by guest.
func (l *Ledger) Held() map[string]topology.Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.held)
}

// poolID names a pool: the pages of one size in one cell or in all cells.
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
			if i <= 0 { // the first pool holds the base pages
				return nil, fault.New(fault.NoCapacity, fault.Host, "this host has no huge pages of %s", formatBytes(d.Size))
			}
			pools[poolID{cell, d.Size}] = list[i]
		}
	}
	return pools, nil
}

// checkPages checks each demand against its cell's pool and against the whole host's. The pages must be free
// now, and the pool must be large enough for this guest and the guests that hold pages of it.
func (l *Ledger) checkPages(demands []topology.PageDemand, pools map[poolID]topology.PagePool) error {
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
				want[id], formatBytes(id.size), where, left, pool.Total, pool.Free, held[id], pool.Total+want[id]-left, kernel.HugePageDir(id.cell, id.size))
		}
	}
	return nil
}

// sumPages sums demands by cell and for the whole host.
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

func (l *Ledger) checkCPUs(want topology.CPUSet) error {
	for guest, r := range l.held {
		if taken := r.CPUs.Intersect(want); !taken.IsEmpty() {
			return fault.New(fault.NoCapacity, fault.Host, "the guest wants exclusive use of processors %s, and guest %q has %s", want, guest, taken)
		}
	}
	return nil
}
