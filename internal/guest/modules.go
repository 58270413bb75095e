package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// moduleDemand returns what a memory module takes of the host's memory.
func moduleDemand(def *domain.Definition, m *device.Memory) topology.Reservation {
	size := hugePageSize(def)
	if m.PageSize > 0 {
		if size = m.PageSize; size <= topology.BasePage {
			size = 0
		}
	}
	return ofPages(def, m.Size, size)
}

// reserveMemory books a module's memory in the host's ledger. def is the definition without the module. It
// refuses a module that would exceed the guest's hard limit: the kernel would then kill a guest that fitted
// before.
func (g *Guest) reserveMemory(def *domain.Definition, m *device.Memory) error {
	hard := def.MemTune.HardLimit
	if after := def.Memory + m.Size; hard > 0 && def.Memory <= hard && after > hard {
		return fault.New(fault.NoCapacity, fault.Domain,
			"the domain would have %d KiB of memory, more than its hard limit of %d KiB; raise that first: virsh memtune %s --hard-limit %d --live",
			after>>10, hard>>10, fault.Word(def.Name), (after+lockedBeside)>>10)
	}
	return g.reg.Ledger.Extend(g.uuid, moduleDemand(def, m))
}

// returnMemory takes back what reserveMemory booked. It does nothing for other devices.
func (g *Guest) returnMemory(def *domain.Definition, dev device.Device) {
	if m, ok := dev.(*device.Memory); ok {
		g.reg.Ledger.Reduce(g.uuid, moduleDemand(def, m))
	}
}

// findModules asks QEMU for the guest addresses of memory modules and stores them in the modules. It keeps
// the slots that QEMU was told, and ignores those in QEMU's answer: modules are identified by their slots.
func findModules(ctx context.Context, s *qmp.Session, modules []*device.Memory) error {
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
