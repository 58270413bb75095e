package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Bound decides, by the client's quota, whether a guest may be changed to a definition or started with it.
// An error refuses it before anything is changed. written is the size in bytes of the definition in the
// store. Bound is also called in the guest's loop, so it must not block.
type Bound func(uuid string, def *domain.Definition, written uint64) error

// boundKey is the context key of the client's Bound.
type boundKey struct{}

// WithBound applies b to every definition that is stored, started or grown under ctx.
func WithBound(ctx context.Context, b Bound) context.Context {
	return context.WithValue(ctx, boundKey{}, b)
}

// Judge decides whether a client may still make its request, when that request is about to begin: the guest
// may have been renamed since. It is called in the guest's loop and must not block.
type Judge func(uuid string) error

// judgeKey is the context key of the Judge of the client's requests.
type judgeKey struct{}

// WithJudge applies j to every request to a guest under ctx, at the moment when the request begins. Work
// that has begun is not judged again.
func WithJudge(ctx context.Context, j Judge) context.Context {
	return context.WithValue(ctx, judgeKey{}, j)
}

// judged reports whether a request under ctx may begin.
func (g *Guest) judged(ctx context.Context) error {
	if j, _ := ctx.Value(judgeKey{}).(Judge); j != nil {
		return j(g.uuid)
	}
	return nil
}

// bounded applies the Bound of ctx to the guest's changed definition. A nil definition is allowed.
func (g *Guest) bounded(ctx context.Context, def *domain.Definition) error {
	return askBound(ctx, g.uuid, def, g.record.Submitted)
}

// boundStart applies the Bound of ctx to a start. The definition of a saved image is completed first, so
// that it counts as much as if it were defined. The weights in a managed image are left out, because they
// were checked when the guest got them.
func (g *Guest) boundStart(ctx context.Context, def *domain.Definition, submitted string, from *savedImage) error {
	if from == nil {
		return askBound(ctx, g.uuid, def, submitted)
	}
	whole, err := completed(def)
	if err != nil {
		return err
	}
	if from.managed {
		whole.Tune.Shares, whole.Blkio.Weight = 0, 0
	}
	return askBound(ctx, g.uuid, whole, submitted)
}

// askBound applies the Bound of ctx to a definition and the document that it came from.
func askBound(ctx context.Context, uuid string, def *domain.Definition, submitted string) error {
	b, _ := ctx.Value(boundKey{}).(Bound)
	if b == nil || def == nil {
		return nil
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	return b(uuid, def, uint64(len(text)+len(submitted)))
}

// Allows applies the Bound of ctx to a definition as Define would, and stores nothing.
func (r *Registry) Allows(ctx context.Context, def *domain.Definition, submitted string) error {
	uuid := cmp.Or(def.UUID, def.Name) // for a new guest, any name that no other guest has
	if g, err := r.ByName(def.Name); err == nil {
		uuid = g.uuid
	}
	return askBound(ctx, uuid, def, submitted)
}
