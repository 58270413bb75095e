package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// bounded asks for a guest's changed definition. Of a nil one there is nothing to ask.
func (g *Guest) bounded(ctx context.Context, sc scope.Scope, def *domain.Definition) error {
	return askBound(ctx, sc, g.uuid, def, g.record.Submitted)
}

// boundStart asks for a start. What a saved image says is used as it is said, and takes what it would
// if it was defined. The weights in a guest's own image were asked for when it was given them.
func (g *Guest) boundStart(ctx context.Context, sc scope.Scope, def *domain.Definition, submitted string, from *savedImage) error {
	if from == nil {
		return askBound(ctx, sc, g.uuid, def, submitted)
	}
	whole, err := completed(def)
	if err != nil {
		return err
	}
	if from.managed {
		whole.Tune.Shares, whole.Blkio.Weight = 0, 0
	}
	return askBound(ctx, sc, g.uuid, whole, submitted)
}

// askBound asks for a definition that was given as a document.
func askBound(ctx context.Context, sc scope.Scope, uuid string, def *domain.Definition, submitted string) error {
	if def == nil || sc.Check() == nil && sc.Limits() == nil {
		return sc.Check()
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	return sc.ReserveGuest(uuid, def, uint64(len(text)+len(submitted)))
}

// Allows asks for a definition as defining it would, and defines nothing.
func (r *Registry) Allows(ctx context.Context, sc scope.Scope, def *domain.Definition, submitted string) error {
	uuid := cmp.Or(def.UUID, def.Name) // of what is new any word will do that is no other's
	if g, err := r.ByName(def.Name); err == nil {
		uuid = g.uuid
	}
	return askBound(ctx, sc, uuid, def, submitted)
}
