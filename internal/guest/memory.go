package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// SetMemory sets the guest's memory in bytes, up to its maximum. For a running guest it sets the balloon,
// which the guest follows in its own time.
func (g *Guest) SetMemory(ctx context.Context, sc scope.Scope, bytes uint64, a Affect) error {
	return g.edit(ctx, sc, a, func() (*domain.Definition, error) {
		if bytes > g.inactive.Memory {
			return nil, tooMuch(bytes, g.inactive.Memory)
		}
		config := g.inactive.Clone()
		config.CurrentMemory = bytes
		return config, nil
	}, func(config *domain.Definition) (work, error) {
		return g.planMemory(bytes, config)
	})
}

// planMemory plans to set the balloon. QEMU reports how the guest follows. Without a change of the stored
// definition this is one command, so it needs no operation.
func (g *Guest) planMemory(bytes uint64, config *domain.Definition) (work, error) {
	r := g.run
	if bytes > r.def.Memory {
		return nil, tooMuch(bytes, r.def.Memory)
	}
	if b := r.def.Devices.Balloon; b == nil || b.Model == "none" {
		return nil, fault.New(fault.WrongState, fault.Domain, "cannot change the memory of a running domain that has no balloon device")
	}
	if config != nil {
		return g.update(&update{Balloon: &bytes}, r.def, config)
	}
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		s, err := r.monitor()
		if err == nil {
			err = s.Execute(ctx, "balloon", map[string]any{"value": bytes}, nil)
		}
		return nil, err
	}, nil
}

func tooMuch(want, most uint64) error {
	return fault.New(fault.Invalid, fault.Call, "cannot set memory of %d KiB: more than the domain's maximum of %d KiB", want>>10, most>>10)
}

// SetMaxMemory sets the memory of the next start, in bytes. That of a running guest is fixed.
func (g *Guest) SetMaxMemory(ctx context.Context, sc scope.Scope, bytes uint64, a Affect) error {
	return g.change(ctx, sc, "", func() error {
		a, err := g.resolve(a)
		if err != nil {
			return err
		}
		if a.Live {
			return fault.New(fault.WrongState, fault.Domain, "cannot resize the maximum memory on an active domain")
		}
		if len(g.inactive.CPU.Cells) > 0 {
			return fault.New(fault.Unsupported, fault.Config, "the memory of a domain with NUMA cells is the sum of the cells; change the cells")
		}
		def := g.inactive.Clone()
		def.Memory = bytes
		def.CurrentMemory = min(def.CurrentMemory, bytes)
		if err := g.bounded(sc, def); err != nil {
			return err
		}
		return g.redefine(def)
	})
}

// SetStatsPeriod sets how often, in seconds, the guest reports on its memory. 0 stops the reports.
func (g *Guest) SetStatsPeriod(ctx context.Context, sc scope.Scope, seconds uint, a Affect) error {
	return g.Tune(ctx, sc, a, func(d *domain.Definition) error {
		if b := d.Devices.Balloon; b == nil || b.Model == "none" {
			return errNoBalloon()
		}
		d.Devices.Balloon.StatsPeriod = seconds
		return nil
	})
}

func errNoBalloon() error {
	return fault.New(fault.WrongState, fault.Domain, "the domain has no balloon device")
}

// balloonPath returns the path of the balloon in QEMU's object tree.
func balloonPath(b *device.Balloon) (string, error) {
	if b == nil || b.Model == "none" || b.Alias == "" {
		return "", errNoBalloon()
	}
	return "/machine/peripheral/" + b.Alias, nil
}
