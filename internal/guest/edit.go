package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Affect says which definitions a change is for. Neither means the live one of a running guest, or else the
// stored one.
type Affect struct{ Live, Config bool }

// resolve decides which definitions a change affects. It runs in the loop.
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

// edit changes the stored definition, the running guest, or both. stored returns the changed definition. If
// the running guest is changed, live plans that change. config is the changed stored definition, which must
// follow once the change is done. Nil: it is not to be changed.
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
			if err := g.bounded(sc, config); err != nil {
				return nil, err
			}
			g.fence(sc, config)
		}
		if !a.Live {
			return nil, g.redefine(config)
		}
		if a.Config { // otherwise the running guest would have what cannot be stored
			if err := g.keepAhead(); err != nil {
				return nil, err
			}
		}
		return live(config)
	})
}
