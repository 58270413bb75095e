package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/domain"
)

// Bound says whether a guest may become as a definition has it, or start so; an error
// refuses it before anything is changed. It is asked in the guest's loop, too, and must
// not wait for anything.
type Bound func(uuid string, def *domain.Definition) error

// boundKey is where a context keeps what bounds the guests of its client.
type boundKey struct{}

// WithBound has every definition that is stored, started or grown under ctx asked for.
func WithBound(ctx context.Context, b Bound) context.Context {
	return context.WithValue(ctx, boundKey{}, b)
}

// bounded asks for a guest's new definition. Of a nil one there is nothing to ask.
func (g *Guest) bounded(ctx context.Context, def *domain.Definition) error {
	b, _ := ctx.Value(boundKey{}).(Bound)
	if b == nil || def == nil {
		return nil
	}
	return b(g.uuid, def)
}

// Allows asks for a definition as defining it would, and defines nothing.
func (r *Registry) Allows(ctx context.Context, def *domain.Definition) error {
	b, _ := ctx.Value(boundKey{}).(Bound)
	if b == nil {
		return nil
	}
	uuid := cmp.Or(def.UUID, def.Name) // of what is new any word will do that is no other's
	if g, err := r.ByName(def.Name); err == nil {
		uuid = g.uuid
	}
	return b(uuid, def)
}
