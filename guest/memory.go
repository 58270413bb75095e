package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
)

// SetMemory changes how much memory the guest has, in bytes, up to its maximum:
// through the balloon while it runs. The guest follows in its own time.
func (g *Guest) SetMemory(ctx context.Context, bytes uint64, a Affect) error {
	return g.perform(ctx, "", domain.JobModify, modifyLimit, func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		if a.Config {
			if err := g.setConfigMemory(bytes); err != nil {
				return nil, err
			}
		}
		if !a.Live {
			return nil, nil
		}
		r := g.run
		if bytes > r.def.Memory {
			return nil, tooMuch(bytes, r.def.Memory)
		}
		if b := r.def.Devices.Balloon; b == nil || b.Model == "none" {
			return nil, fault.New(fault.WrongState, fault.Domain, "cannot change the memory of a running domain that has no balloon device")
		}
		return func(ctx context.Context) (settle, error) {
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			return nil, s.Execute(ctx, "balloon", map[string]any{"value": bytes}, nil)
		}, nil
	})
}

func tooMuch(want, most uint64) error {
	return fault.New(fault.Invalid, fault.Call, "cannot set memory of %d KiB: more than the domain's maximum of %d KiB", want>>10, most>>10)
}

func (g *Guest) setConfigMemory(bytes uint64) error {
	if bytes > g.inactive.Memory {
		return tooMuch(bytes, g.inactive.Memory)
	}
	def := g.inactive.Clone()
	def.CurrentMemory = bytes
	return g.redefine(def)
}

// SetMaxMemory changes the memory that the next start gives the guest, in
// bytes. That of a running guest is fixed.
func (g *Guest) SetMaxMemory(ctx context.Context, bytes uint64, a Affect) error {
	return g.change(ctx, "", func() error {
		a, err := g.resolve(a)
		if err != nil {
			return err
		}
		if a.Live {
			return fault.New(fault.WrongState, fault.Domain, "cannot resize the maximum memory on an active domain")
		}
		if len(g.inactive.CPU.Cells) > 0 {
			return fault.New(fault.Unsupported, fault.Config, "the memory of a domain with NUMA cells is theirs; change the cells")
		}
		def := g.inactive.Clone()
		def.Memory = bytes
		def.CurrentMemory = min(def.CurrentMemory, bytes)
		return g.redefine(def)
	})
}

// SetStatsPeriod says how often the guest reports on its memory, in seconds; 0
// stops it.
func (g *Guest) SetStatsPeriod(ctx context.Context, seconds uint, a Affect) error {
	return g.perform(ctx, "", domain.JobModify, modifyLimit, func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		setPeriod := func(d *domain.Definition) {
			if d.Devices.Balloon != nil {
				d.Devices.Balloon.StatsPeriod = seconds
			}
		}
		if a.Config {
			def := g.inactive.Clone()
			setPeriod(def)
			if err := g.redefine(def); err != nil {
				return nil, err
			}
		}
		if !a.Live {
			return nil, nil
		}
		r := g.run
		path, err := balloonPath(r.def.Devices.Balloon)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (settle, error) {
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			args := map[string]any{"path": path, "property": "guest-stats-polling-interval", "value": seconds}
			if err := s.Execute(ctx, "qom-set", args, nil); err != nil {
				return nil, err
			}
			return func() error { g.setActive(setPeriod); g.keepActive(); return nil }, nil
		}, nil
	})
}

// balloonPath is where QEMU's object tree has the balloon.
func balloonPath(b *device.Balloon) (string, error) {
	if b == nil || b.Model == "none" || b.Alias == "" {
		return "", fault.New(fault.WrongState, fault.Domain, "the domain has no balloon device")
	}
	return "/machine/peripheral/" + b.Alias, nil
}
