package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Affect says which definition a change is for. Neither means the running guest,
// or the definition of one that is shut off.
type Affect struct{ Live, Config bool }

// resolve settles what a change affects, in the loop.
func (g *Guest) resolve(a Affect) (Affect, error) {
	if !a.Live && !a.Config {
		a.Live = g.run != nil
		a.Config = !a.Live
	}
	if a.Live && g.run == nil {
		return a, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if a.Config && g.inactive == nil {
		return a, fault.New(fault.WrongState, fault.Domain, "transient domains do not have any persistent config")
	}
	return a, nil
}

// edit changes the stored definition, the running guest, or both. Stored gives
// the changed definition; where the guest runs too, live plans the change to it,
// and has the other one follow (nil when it is not asked for) once it is done.
func (g *Guest) edit(ctx context.Context, sc scope.Scope, a Affect, stored func() (*domain.Definition, error), live func(config *domain.Definition) (work, error)) error {
	return g.perform(ctx, sc, "", domain.JobModify, modifyLimit, func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		var config *domain.Definition
		if a.Config {
			if config, err = stored(); err != nil {
				return nil, err
			}
			if err := g.bounded(ctx, sc, config); err != nil {
				return nil, err
			}
			g.fence(ctx, sc, config)
		}
		if !a.Live {
			return nil, g.redefine(config)
		}
		if a.Config { // else the running guest would have what cannot be stored then
			if err := g.keepAhead(); err != nil {
				return nil, err
			}
		}
		return live(config)
	})
}
