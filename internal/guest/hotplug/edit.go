package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Resolve decides which definitions a change affects. It runs in the loop.
func Resolve(g *machine.Guest, a machine.Affect) (machine.Affect, error) {
	if !a.Live && !a.Config {
		a.Live = g.Instance != nil
		a.Config = !a.Live
	}
	if a.Live && g.Instance == nil {
		return a, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if a.Config && g.Inactive == nil {
		return a, fault.New(fault.WrongState, fault.Domain, "transient domains do not have any persistent config")
	}
	return a, nil
}

// edit changes the stored definition, the running guest, or both. stored returns the changed definition. If
// the running guest is changed, live plans that change. config is the changed stored definition, which must
// follow once the change is done. Nil: it is not to be changed.
func edit(ctx context.Context, g *machine.Guest, sc scope.Scope, a machine.Affect, stored func() (*domain.Definition, error), live func(config *domain.Definition) (machine.Work, error)) error {
	return g.Perform(ctx, sc, "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		a, err := Resolve(g, a)
		if err != nil {
			return nil, err
		}
		var config *domain.Definition
		if a.Config {
			if config, err = stored(); err != nil {
				return nil, err
			}
			if err := g.ReserveQuota(sc, config); err != nil {
				return nil, err
			}
			provision.SetPathLimits(g, sc, config)
		}
		if !a.Live {
			return nil, provision.Redefine(g, config)
		}
		if a.Config { // otherwise the running guest would have what cannot be stored
			if err := g.StoreAhead(); err != nil {
				return nil, err
			}
		}
		return live(config)
	})
}
