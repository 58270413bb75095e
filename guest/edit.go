package guest

import (
	"context"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
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
func (g *Guest) edit(ctx context.Context, a Affect, stored func() (*domain.Definition, error), live func(config *following) (work, error)) error {
	return g.perform(ctx, "", domain.JobModify, modifyLimit, func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		var config *following
		if a.Config {
			if config, err = g.planFollowing(ctx, stored); err != nil {
				return nil, err
			}
		}
		if !a.Live {
			return nil, g.redefine(config.to)
		}
		if a.Config { // else the running guest would have what cannot be stored then
			if err := g.keepAhead(); err != nil {
				return nil, err
			}
		}
		return live(config)
	})
}

// following is a change of the stored definition that is made when the running guest has it.
type following struct {
	g      *Guest
	of, to *domain.Definition // as it was when this was planned, and as it is to be
	again  func() (*domain.Definition, error)
	change string // names it in the journal of the other, and in the store
}

// planFollowing plans it. It runs in the loop.
func (g *Guest) planFollowing(ctx context.Context, change func() (*domain.Definition, error)) (f *following, err error) {
	f = &following{g: g, of: g.inactive, change: uuid.NewString()}
	f.again = func() (*domain.Definition, error) {
		def, err := change()
		if err != nil {
			return nil, err
		}
		if err := g.bounded(ctx, def); err != nil {
			return nil, err
		}
		g.fence(ctx, def)
		return def, nil
	}
	f.to, err = f.again()
	return f, err
}

// definition is the stored one as it is to be; nil: it stays.
func (f *following) definition() *domain.Definition {
	if f == nil {
		return nil
	}
	return f.to
}

// store makes the change. What somebody else has stored meanwhile stays but for that. It runs in the
// loop.
func (f *following) store() (err error) {
	if f == nil {
		return nil
	}
	if f.g.inactive != f.of {
		if f.to, err = f.again(); err != nil {
			return err
		}
	}
	return f.g.redefineAfter(f.change, f.to)
}
