// Package resources knows the machine that guests run on: its facts (Inventory), its devices (Devices), and
// the memory and processors that each guest holds (Ledger).
//
// Descriptions are snapshots with the time of their reading. A reader gets the last one at once and never
// waits for another reader. Counters that change all the time (free memory, processor times) are read on
// demand; each costs one small file.
//
// What belongs here: the host as guests and clients see it, and the books of what guests hold. What does not:
// reading the kernel's files (room kernel), choosing a host for a guest, documents (the edges).
package resources

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Facts describe the host at one moment. They are shared: do not change them.
type Facts struct {
	// Read is when the facts were read; time.Since(Read) is their age.
	Read time.Time
	// Arch is the architecture as uname prints it.
	Arch string
	// UUID identifies the machine. It is the firmware's, else the installation's, else this boot's (in a fresh
	// container), else the zero UUID.
	UUID     uuid.UUID
	Topology topology.Host
	CPU      kernel.Processor
	// Memory is the kernel's usable RAM in bytes.
	Memory uint64
	// Firmware is nil on a machine without SMBIOS.
	Firmware *kernel.DMI
	// IOMMU says that devices can be assigned to guests.
	IOMMU bool
}

// factsAge is the age at which facts are read again. Processors are rarely added or removed.
const factsAge = 10 * time.Second

// Inventory describes the host.
type Inventory struct {
	root  kernel.Root
	facts snapshot[Facts]
}

// NewInventory reads the host for the first time.
func NewInventory(root kernel.Root) (*Inventory, error) {
	inv := &Inventory{root: root}
	inv.facts.age, inv.facts.read = factsAge, inv.readFacts
	return inv, inv.facts.refresh()
}

// Facts returns the last description and refreshes it when it is old. If another reader is refreshing it or
// the kernel refuses, the caller gets the old description with its time.
func (inv *Inventory) Facts() *Facts { return inv.facts.get() }

// Refresh reads the description again.
func (inv *Inventory) Refresh() error { return inv.facts.refresh() }

func (inv *Inventory) readFacts() (*Facts, error) {
	facts := &Facts{Read: time.Now(), Arch: kernel.Arch(), IOMMU: inv.root.IOMMU()}
	h, err := inv.root.Topology()
	if err != nil {
		return nil, err
	}
	facts.Topology = *h
	if facts.CPU, err = inv.root.Processor(); err != nil {
		return nil, err
	}
	memory, err := inv.root.Memory()
	if err != nil {
		return nil, err
	}
	facts.Memory = memory.Total
	if firmware, err := inv.root.DMI(); err == nil {
		facts.Firmware = &firmware
	}
	facts.UUID = hostUUID(facts.Firmware, inv.root.MachineID(), inv.root.BootID())
	return facts, nil
}

// hostUUID prefers the firmware's UUID, unless the maker left it blank: then all its digits are the same.
func hostUUID(firmware *kernel.DMI, others ...string) uuid.UUID {
	if firmware != nil {
		if id, err := uuid.Parse(firmware.UUID); err == nil && !isPlaceholderUUID(id) {
			return id
		}
	}
	for _, other := range others {
		if id, err := uuid.Parse(other); err == nil {
			return id
		}
	}
	return uuid.UUID{}
}

func isPlaceholderUUID(id uuid.UUID) bool {
	for _, b := range id {
		if b != id[0] || b>>4 != b&0xf {
			return false
		}
	}
	return true
}

// Memory returns the host's current use of memory.
func (inv *Inventory) Memory() (kernel.Memory, error) { return inv.root.Memory() }

// PageSharing returns the state of the kernel's merging of equal pages (KSM).
func (inv *Inventory) PageSharing() (kernel.KSM, error) { return inv.root.KSM() }

// SetPageSharing changes it. Settings that are nil stay.
func (inv *Inventory) SetPageSharing(s kernel.KSMSettings) error { return inv.root.SetKSM(s) }

// HugePool returns the pool of huge pages of one size, in bytes, in one cell.
func (inv *Inventory) HugePool(cell int, size uint64) (kernel.HugePool, error) {
	return inv.root.HugePool(cell, size)
}

// SetHugePool resizes it, and returns what the kernel gave.
func (inv *Inventory) SetHugePool(cell int, size, pages uint64) (kernel.HugePool, error) {
	return inv.root.SetHugePool(cell, size, pages)
}

// CellMemory returns a cell's current use of memory.
func (inv *Inventory) CellMemory(cell int) (kernel.Memory, error) {
	if _, ok := inv.Facts().Topology.Cell(cell); !ok {
		return kernel.Memory{}, fault.New(fault.Invalid, fault.Host, "this host has no cell %d; its cells are %s", cell, inv.Facts().Topology.CellIDs())
	}
	memory, err := inv.root.NodeMemory(cell)
	if fault.Is(err, fault.NotFound) {
		return inv.root.Memory() // a kernel without NUMA nodes has everything in cell 0
	}
	return memory, err
}

// Pages returns a cell's page pools, by ascending page size.
func (inv *Inventory) Pages(cell int) ([]topology.PagePool, error) {
	pools, err := inv.root.Pages(cell)
	if _, ok := inv.Facts().Topology.Cell(cell); ok && fault.Is(err, fault.NotFound) {
		return inv.root.HostPages()
	}
	return pools, err
}

// CPUTimes returns the processors' times since boot.
func (inv *Inventory) CPUTimes() (kernel.CPUTimes, error) { return inv.root.CPUTimes() }

// snapshot keeps the last value that read returned. It suits values that are cheap to share and somewhat slow
// to read.
type snapshot[T any] struct {
	age  time.Duration
	read func() (*T, error)

	last    atomic.Pointer[T]
	at      atomic.Pointer[time.Time] // when last was stored
	reading sync.Mutex                // held while read runs
}

// get returns the last value. The caller refreshes it if it is old and no other goroutine does. If there is no
// value yet, the caller waits.
func (s *snapshot[T]) get() *T {
	if s.last.Load() == nil {
		s.reading.Lock() // until the goroutine that reads has stored it
		defer s.reading.Unlock()
		if s.last.Load() == nil {
			_ = s.store()
		}
		return s.last.Load()
	}
	if time.Since(*s.at.Load()) > s.age && s.reading.TryLock() {
		defer s.reading.Unlock()
		_ = s.store() // on failure the old value stays, with its time
	}
	return s.last.Load()
}

// refresh reads a value, after any read that is under way.
func (s *snapshot[T]) refresh() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.store()
}

func (s *snapshot[T]) store() error {
	value, err := s.read()
	if err != nil {
		return err
	}
	now := time.Now()
	s.at.Store(&now)
	s.last.Store(value)
	return nil
}
