package machine

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ReserveQuota reserves the client's quota for the guest's changed definition. A nil definition needs none.
func (g *Guest) ReserveQuota(sc scope.Scope, def *domain.Definition) error {
	return ReserveQuota(sc, g.UUID, def, g.Record.Submitted)
}

// ReserveQuota reserves the quota of the scope for the guest uuid with a definition and the document that it came
// from. The bytes of both texts count. A nil definition needs no quota.
func ReserveQuota(sc scope.Scope, uuid string, def *domain.Definition, submitted string) error {
	if def == nil || sc.Check() == nil && sc.Limits() == nil {
		return sc.Check()
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	return sc.ReserveGuest(uuid, def, uint64(len(text)+len(submitted)))
}

// ReserveQuota reserves the quota of the scope for a definition as Define would, and stores nothing.
func (r *Registry) ReserveQuota(ctx context.Context, sc scope.Scope, def *domain.Definition, submitted string) error {
	uuid := cmp.Or(def.UUID, def.Name) // for a new guest, any name that no other guest has
	if g, err := r.ByName(def.Name); err == nil {
		uuid = g.UUID
	}
	return ReserveQuota(sc, uuid, def, submitted)
}
