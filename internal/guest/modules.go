package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// moduleDemand is what a module of memory takes of the host.
func moduleDemand(def *domain.Definition, m *device.Memory) topology.Reservation {
	size := hugePageSize(def)
	if m.PageSize > 0 {
		if size = m.PageSize; size <= topology.BasePage {
			size = 0
		}
	}
	return ofPages(def, m.Size, size)
}

// reserveMemory enters in the host's books what a module is about to take, for a
// guest that is defined without it. A guest that fits in its hard limit must not be
// ended by the kernel for what was plugged in.
func (g *Guest) reserveMemory(def *domain.Definition, m *device.Memory) error {
	hard := def.MemTune.HardLimit
	if after := def.Memory + m.Size; hard > 0 && def.Memory <= hard && after > hard {
		return fault.New(fault.NoCapacity, fault.Domain,
			"the domain would have %d KiB of memory, more than its hard limit of %d KiB; raise that first: virsh memtune %s --hard-limit %d --live",
			after>>10, hard>>10, fault.Word(def.Name), (after+lockedBeside)>>10)
	}
	return g.reg.Ledger.Extend(g.uuid, moduleDemand(def, m))
}

// returnMemory takes back what reserveMemory entered; of other devices there is
// nothing.
func (g *Guest) returnMemory(def *domain.Definition, dev device.Device) {
	if m, ok := dev.(*device.Memory); ok {
		g.reg.Ledger.Reduce(g.uuid, moduleDemand(def, m))
	}
}

// findModules asks QEMU at which addresses of the guest modules of memory are, and
// notes it in them. In which slots they are QEMU was told, and is not believed: by
// those modules are called.
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
