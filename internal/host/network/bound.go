package network

import "context"

// Bound says whether a network may come to have so many bytes of definitions, by its name; an
// error refuses that before anything is changed. It must not wait for anything.
type Bound func(name string, written uint64) error

// boundKey is where a context keeps what bounds the networks of its client.
type boundKey struct{}

// WithBound has every change of a network's definitions under ctx asked for.
func WithBound(ctx context.Context, b Bound) context.Context {
	return context.WithValue(ctx, boundKey{}, b)
}

func allowed(ctx context.Context, name string, written uint64) error {
	if b, _ := ctx.Value(boundKey{}).(Bound); b != nil {
		return b(name, written)
	}
	return nil
}
