package scope

import "context"

// key is where a context keeps a scope. It goes when every verb takes one.
type key struct{}

// With gives ctx a scope, for verbs that do not take one yet.
func With(ctx context.Context, s Scope) context.Context { return context.WithValue(ctx, key{}, s) }

// From is the scope of ctx. It goes with With.
func From(ctx context.Context) Scope {
	if s, has := ctx.Value(key{}).(Scope); has {
		return s
	}
	return Daemon("a verb that takes no scope yet")
}
