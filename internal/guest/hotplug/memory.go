package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// SetMemory sets the guest's memory in bytes, up to its maximum. For a running guest it sets the balloon,
// which the guest follows in its own time.
func SetMemory(ctx context.Context, g *machine.Guest, sc scope.Scope, bytes uint64, a machine.Affect) error {
	return edit(ctx, g, sc, a, func() (*domain.Definition, error) {
		if bytes > g.Inactive.Memory {
			return nil, tooMuch(bytes, g.Inactive.Memory)
		}
		config := g.Inactive.Clone()
		config.CurrentMemory = bytes
		return config, nil
	}, func(config *domain.Definition) (machine.Work, error) {
		return planMemory(g, bytes, config)
	})
}

// planMemory plans to set the balloon. QEMU reports how the guest follows. Without a change of the stored
// definition this is one command, so it needs no operation.
func planMemory(g *machine.Guest, bytes uint64, config *domain.Definition) (machine.Work, error) {
	r := g.Instance
	if bytes > r.Definition.Memory {
		return nil, tooMuch(bytes, r.Definition.Memory)
	}
	if b := r.Definition.Devices.Balloon; b == nil || b.Model == "none" {
		return nil, fault.New(fault.WrongState, fault.Domain, "cannot change the memory of a running domain that has no balloon device")
	}
	if config != nil {
		return UpdateWith(g, &UpdateOp{Balloon: &bytes}, r.Definition, config)
	}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		s, err := r.Monitor()
		if err == nil {
			err = setBalloon(ctx, s, bytes)
		}
		if err != nil {
			return nil, err
		}
		return func() error { keepAsked(g, bytes); return nil }, nil
	}, nil
}

// keepAsked records what the guest's user asked for, if the memory arbiter has moved the balloon before.
func keepAsked(g *machine.Guest, bytes uint64) {
	if r := g.Instance; r != nil && r.AskedMemory > 0 {
		r.AskedMemory = bytes
		g.WriteInstance()
		g.Publish()
	}
}

// LendMemory moves the balloon of a running guest for the memory arbiter, to a size in bytes. It is no job: it waits
// for none, and fails if the guest's memory is being moved. What the guest's user asked for is recorded before, so that
// the next daemon knows it.
func LendMemory(ctx context.Context, g *machine.Guest, sc scope.Scope, bytes uint64) error {
	var r *machine.Instance
	err := g.Change(ctx, sc, "", func() error {
		switch r = g.Instance; {
		case r == nil || g.State.Phase != domain.Running || r.Ending():
			return fault.New(fault.WrongState, fault.Domain, "domain %q is not running", g.Record.Name)
		case r.Ops.HasClass(operation.Move):
			return fault.New(fault.Busy, fault.Domain, "the memory of domain %q is being saved or dumped", g.Record.Name)
		case bytes > r.Definition.Memory:
			return tooMuch(bytes, r.Definition.Memory)
		}
		if r.AskedMemory > 0 {
			return nil
		}
		r.AskedMemory = r.Definition.CurrentMemory
		if err := g.WriteInstanceNow(); err != nil {
			r.AskedMemory = 0
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	return setBalloon(ctx, s, bytes)
}

// setBalloon asks the balloon for a size in bytes. The guest follows in its own time.
func setBalloon(ctx context.Context, s *qmp.Session, bytes uint64) error {
	return s.Execute(ctx, "balloon", map[string]any{"value": bytes}, nil)
}

func tooMuch(want, most uint64) error {
	return fault.New(fault.Invalid, fault.Call, "cannot set memory of %d KiB: more than the domain's maximum of %d KiB", want>>10, most>>10)
}

// SetMaxMemory sets the memory of the next start, in bytes. That of a running guest is fixed.
func SetMaxMemory(ctx context.Context, g *machine.Guest, sc scope.Scope, bytes uint64, a machine.Affect) error {
	return g.Change(ctx, sc, "", func() error {
		a, err := Resolve(g, a)
		if err != nil {
			return err
		}
		if a.Live {
			return fault.New(fault.WrongState, fault.Domain, "cannot resize the maximum memory on an active domain")
		}
		if len(g.Inactive.CPU.Cells) > 0 {
			return fault.New(fault.Unsupported, fault.Config, "the memory of a domain with NUMA cells is the sum of the cells; change the cells")
		}
		def := g.Inactive.Clone()
		def.Memory = bytes
		def.CurrentMemory = min(def.CurrentMemory, bytes)
		if err := g.ReserveQuota(sc, def); err != nil {
			return err
		}
		return provision.Redefine(g, def)
	})
}

// SetStatsPeriod sets how often, in seconds, the guest reports on its memory. 0 stops the reports.
func SetStatsPeriod(ctx context.Context, g *machine.Guest, sc scope.Scope, seconds uint, a machine.Affect) error {
	return Tune(ctx, g, sc, a, func(d *domain.Definition) error {
		if b := d.Devices.Balloon; b == nil || b.Model == "none" {
			return provision.ErrNoBalloon()
		}
		d.Devices.Balloon.StatsPeriod = seconds
		return nil
	})
}
