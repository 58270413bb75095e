package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// bounded asks the client's quota about the guest's changed definition. A nil definition is allowed.
func (g *Guest) bounded(sc scope.Scope, def *domain.Definition) error {
	return askBound(sc, g.uuid, def, g.record.Submitted)
}

// boundStart asks the client's quota about a start. The definition of a saved image is completed first, so
// that it counts as much as if it were defined. The weights in a managed image are left out, because they
// were checked when the guest got them.
func (g *Guest) boundStart(sc scope.Scope, def *domain.Definition, submitted string, from *savedImage) error {
	if from == nil {
		return askBound(sc, g.uuid, def, submitted)
	}
	whole, err := completed(def)
	if err != nil {
		return err
	}
	if from.managed {
		whole.Tune.Shares, whole.Blkio.Weight = 0, 0
	}
	return askBound(sc, g.uuid, whole, submitted)
}

// askBound reserves the quota of the scope for a definition and the document that it came from.
func askBound(sc scope.Scope, uuid string, def *domain.Definition, submitted string) error {
	if def == nil || sc.Check() == nil && sc.Limits() == nil {
		return sc.Check()
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	return sc.ReserveGuest(uuid, def, uint64(len(text)+len(submitted)))
}

// Allows asks the quota of the scope about a definition as Define would, and stores nothing.
func (r *Registry) Allows(ctx context.Context, sc scope.Scope, def *domain.Definition, submitted string) error {
	uuid := cmp.Or(def.UUID, def.Name) // for a new guest, any name that no other guest has
	if g, err := r.ByName(def.Name); err == nil {
		uuid = g.uuid
	}
	return askBound(sc, uuid, def, submitted)
}
