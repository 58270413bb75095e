package volume

import "context"

// Bound says whether a pool may have one more volume, by its name; an error refuses it before
// anything is made. It must not wait for anything.
type Bound func(pool, name string) error

// boundKey is where a context keeps what bounds the volumes of its client.
type boundKey struct{}

// WithBound has every volume that is made under ctx asked for.
func WithBound(ctx context.Context, b Bound) context.Context {
	return context.WithValue(ctx, boundKey{}, b)
}

func allowed(ctx context.Context, pool, name string) error {
	if b, _ := ctx.Value(boundKey{}).(Bound); b != nil {
		return b(pool, name)
	}
	return nil
}
