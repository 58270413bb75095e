package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Bound says whether a guest may become as a definition has it, or start so; an error
// refuses it before anything is changed. Written are the bytes that are kept of the
// definition. It is asked in the guest's loop, too, and must not wait for anything.
type Bound func(uuid string, def *domain.Definition, written uint64) error

// boundKey is where a context keeps what bounds the guests of its client.
type boundKey struct{}

// WithBound has every definition that is stored, started or grown under ctx asked for.
func WithBound(ctx context.Context, b Bound) context.Context {
	return context.WithValue(ctx, boundKey{}, b)
}

// Judge says whether a client may do to a guest what it asked for, now that its turn for that has
// come: the guest may be called otherwise by then. It is asked in the guest's loop, and must not
// wait for anything.
type Judge func(uuid string) error

// judgeKey is where a context keeps what judges its client's requests anew.
type judgeKey struct{}

// WithJudge has every request to a guest that is made under ctx judged when its turn comes. What it
// has begun is not.
func WithJudge(ctx context.Context, j Judge) context.Context {
	return context.WithValue(ctx, judgeKey{}, j)
}

// judged says whether a request of ctx may be begun.
func (g *Guest) judged(ctx context.Context) error {
	if j, _ := ctx.Value(judgeKey{}).(Judge); j != nil {
		return j(g.uuid)
	}
	return nil
}

// bounded asks for a guest's changed definition. Of a nil one there is nothing to ask.
func (g *Guest) bounded(ctx context.Context, def *domain.Definition) error {
	return askBound(ctx, g.uuid, def, g.record.Submitted)
}

// boundStart asks for a start. What a saved image says is used as it is said, and takes what it would
// if it was defined. The weights in a guest's own image were asked for when it was given them.
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

// askBound asks for a definition that was given as a document.
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

// Allows asks for a definition as defining it would, and defines nothing.
func (r *Registry) Allows(ctx context.Context, def *domain.Definition, submitted string) error {
	uuid := cmp.Or(def.UUID, def.Name) // of what is new any word will do that is no other's
	if g, err := r.ByName(def.Name); err == nil {
		uuid = g.uuid
	}
	return askBound(ctx, uuid, def, submitted)
}
