package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fairqueue"
)

// inTurn does in the client's turn what takes a processor for longer than most
// calls do, such as writing a document. Nothing may be waited for meanwhile.
func inTurn[T any](ctx context.Context, do func() (T, error)) (done T, err error) {
	err = fairqueue.Do(ctx, func() (err error) {
		done, err = do()
		return err
	})
	return done, err
}
