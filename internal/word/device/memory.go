package device

import (
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Memory is a memory module. A guest has it beside the memory of its cells, and it
// can be plugged in and out.
type Memory struct {
	Info
	Model string // dimm
	Size  uint64 // bytes
	Cell  uint   // the guest's NUMA cell that it belongs to
	// Access and Discard are those of memoryBacking where they are not said.
	Access  string // shared, private
	Discard Switch
	// PageSize is in bytes; 0: that of the cell.
	PageSize uint64
	// Nodes of the host that the memory comes from; empty: those of the cell.
	Nodes topology.CPUSet
}

// Kind names the XML element.
func (*Memory) Kind() string { return "memory" }

// MemoryUnit is the unit that sizes of modules are rounded up to, in bytes: QEMU accepts no others.
const MemoryUnit = 2 << 20

// WholeSize is the module's size in whole units.
func (m *Memory) WholeSize() uint64 { return (m.Size + MemoryUnit - 1) / MemoryUnit * MemoryUnit }

// DIMM is a socket for a module of memory. Base is the module's address in the
// guest, 0 until QEMU has chosen it.
type DIMM struct {
	Slot uint
	Base uint64
}

func (DIMM) address()         {}
func (a DIMM) String() string { return fmt.Sprintf("dimm %d", a.Slot) }

// AssignDIMMs gives every module of memory that has no socket the first free one.
func (s *Set) AssignDIMMs() error {
	taken := map[uint]bool{}
	for _, d := range s.All() {
		m, isMemory := d.(*Memory)
		at, inSocket := d.Common().Address.(DIMM)
		switch {
		case inSocket && !isMemory:
			return fault.New(fault.Invalid, fault.XML, "a %s cannot be in a socket for memory", d.Kind())
		case isMemory && !inSocket && m.Address != nil:
			return fault.New(fault.Unsupported, fault.Config, "a memory module of model %s cannot be at %s", m.Model, m.Address)
		case inSocket && taken[at.Slot]:
			return fault.New(fault.Unsupported, fault.Config, "memory device slot '%d' is already being used by another memory device", at.Slot)
		case inSocket:
			taken[at.Slot] = true
		}
	}
	for _, m := range s.Memories {
		if m.Address != nil {
			continue
		}
		at := DIMM{}
		for taken[at.Slot] {
			at.Slot++
		}
		taken[at.Slot], m.Address = true, at
	}
	return nil
}
