package rpc

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fairqueue"
)

// RunFair runs a long computation, such as writing a document, when the fair queue gives the client a
// processor. So a client with many such calls does not delay the others. It must not wait for anything.
func RunFair[T any](ctx context.Context, do func() (T, error)) (done T, err error) {
	err = fairqueue.Do(ctx, func() (err error) {
		done, err = do()
		return err
	})
	return done, err
}
