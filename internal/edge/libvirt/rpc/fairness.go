package rpc

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fairqueue"
)

// InTurn runs long computations, such as writing a document, in the client's turn. They
// take a processor for longer than most calls do. They must not wait for anything.
func InTurn[T any](ctx context.Context, do func() (T, error)) (done T, err error) {
	err = fairqueue.Do(ctx, func() (err error) {
		done, err = do()
		return err
	})
	return done, err
}
