package provision

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// ErrNoBalloon refuses a change of memory of a guest without a balloon.
func ErrNoBalloon() error {
	return fault.New(fault.WrongState, fault.Domain, "the domain has no balloon device")
}

// BalloonPath returns the path of the balloon in QEMU's object tree.
func BalloonPath(b *device.Balloon) (string, error) {
	if b == nil || b.Model == "none" || b.Alias == "" {
		return "", ErrNoBalloon()
	}
	return "/machine/peripheral/" + b.Alias, nil
}

// SetStatsPeriod tells a guest's driver to report its memory every so many seconds; 0: never.
func SetStatsPeriod(ctx context.Context, s *qmp.Session, b *device.Balloon, seconds uint) error {
	path, err := BalloonPath(b)
	if err != nil {
		return err
	}
	return s.Execute(ctx, "qom-set", map[string]any{"path": path, "property": "guest-stats-polling-interval", "value": seconds}, nil)
}

// ModuleDemand returns the host memory that a memory module takes.
func ModuleDemand(def *domain.Definition, m *device.Memory) topology.Reservation {
	size := hugePageSize(def)
	if m.PageSize > 0 {
		if size = m.PageSize; size <= topology.BasePage {
			size = 0
		}
	}
	return pageReservation(def, m.Size, size)
}

// ReserveMemory books a module's memory in the host's ledger. def is the definition without the module. It
// refuses a module that would exceed the guest's hard limit: the kernel would then kill a guest that fitted
// before.
func ReserveMemory(g *machine.Guest, def *domain.Definition, m *device.Memory) error {
	hard := def.MemTune.HardLimit
	if after := def.Memory + m.Size; hard > 0 && def.Memory <= hard && after > hard {
		return fault.New(fault.NoCapacity, fault.Domain,
			"the domain would have %d KiB of memory, more than its hard limit of %d KiB; raise that first: virsh memtune %s --hard-limit %d --live",
			after>>10, hard>>10, fault.Word(def.Name), (after+LockedBeside)>>10)
	}
	return g.Reg.Ledger.Extend(g.UUID, ModuleDemand(def, m))
}

// ReturnMemory returns to the ledger the memory that ReserveMemory booked. It does nothing for other devices.
func ReturnMemory(g *machine.Guest, def *domain.Definition, dev device.Device) {
	if m, ok := dev.(*device.Memory); ok {
		g.Reg.Ledger.Reduce(g.UUID, ModuleDemand(def, m))
	}
}

// FindModules asks QEMU for the guest addresses of memory modules and stores them in the modules. It keeps
// the slots that QEMU was told, and ignores those in QEMU's answer: modules are identified by their slots.
func FindModules(ctx context.Context, s *qmp.Session, modules []*device.Memory) error {
	if len(modules) == 0 {
		return nil
	}
	var answer []struct {
		Data struct {
			ID   string
			Addr uint64
		}
	}
	if err := s.Execute(ctx, "query-memory-devices", nil, &answer); err != nil {
		return err
	}
	for _, m := range modules {
		for _, a := range answer {
			if a.Data.ID == m.Alias {
				at, _ := m.Address.(device.DIMM)
				m.Address = device.DIMM{Slot: at.Slot, Base: a.Data.Addr}
			}
		}
	}
	return nil
}

// Demand returns the host memory that a guest takes. Huge pages are counted on the host cell that they
// will come from, if the definition names one.
func Demand(def *domain.Definition) topology.Reservation {
	whole := pageReservation(def, def.Memory-min(def.ModuleMemory(), def.Memory), hugePageSize(def))
	for _, m := range def.Devices.Memories {
		whole = whole.Plus(ModuleDemand(def, m))
	}
	return whole
}

// hugePageSize returns the size in bytes of the guest's own huge pages. 0: it has base pages.
func hugePageSize(def *domain.Definition) uint64 {
	switch pages := def.Backing.HugePages; {
	case !def.Backing.HasHugePages:
		return 0
	case len(pages) > 0 && pages[0].Size != 0:
		return pages[0].Size
	}
	return 2 << 20
}

// pageReservation returns the reservation of memory in pages of a size; 0: base pages.
func pageReservation(def *domain.Definition, memory, size uint64) topology.Reservation {
	if size == 0 {
		return topology.Reservation{Memory: memory}
	}
	cell := topology.AnyCell
	if def.NUMA.Mode == "strict" && def.NUMA.Nodes.Len() == 1 {
		cell = def.NUMA.Nodes.Max()
	}
	return topology.Reservation{Pages: []topology.PageDemand{{Size: size, Cell: cell, Count: (memory + size - 1) / size}}}
}
