package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// PinIOThread binds an iothread of the guest to CPUs of the host. An empty set removes the binding.
func PinIOThread(ctx context.Context, g *machine.Guest, sc scope.Scope, id uint, to topology.CPUSet, a machine.Affect) error {
	if err := sc.Check(); err != nil {
		return err
	}
	def, err := g.Definition(a)
	if err != nil {
		return err
	}
	if id == 0 || id > def.IOThreads {
		return fault.New(fault.Invalid, fault.Call, "the domain has no iothread %d", id)
	}
	return Tune(ctx, g, sc, a, func(d *domain.Definition) error {
		setPin(&d.Tune.IOThreadPins, id, to)
		return nil
	})
}
