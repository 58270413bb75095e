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

// Opening says whether a volume of a pool may be opened with a secret for the client. It must
// not wait for anything.
type Opening func(pool, secret string) error

// openingKey is where a context keeps what its client may have opened.
type openingKey struct{}

// WithOpening has every encrypted volume that is opened under ctx asked for.
func WithOpening(ctx context.Context, o Opening) context.Context {
	return context.WithValue(ctx, openingKey{}, o)
}

func mayOpen(ctx context.Context, pool, secret string) error {
	if o, _ := ctx.Value(openingKey{}).(Opening); o != nil {
		return o(pool, secret)
	}
	return nil
}
