package site

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// silence is how long a guest may answer nothing. Emulated ones on a full host take
// seconds; one that takes minutes hangs.
const silence = 2 * time.Minute

// soon bounds a question that any guest answers.
func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, silence, fault.New(fault.Unresponsive, fault.Agent, "the guest has answered nothing for %s", silence))
}

// heed gives a context that ends when the guest answers nothing any more: what works
// in a guest that hangs would never end. The caller ends it when the work has.
func (m *steered) heed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(silence / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			ask, stop := soon(ctx)
			_, err := m.session.Clock(ask)
			if err != nil {
				end(fault.Wrap(err, fault.Unresponsive, fault.Agent, "the guest does not answer"))
			}
			stop()
		}
	}()
	return ctx, func() { end(context.Canceled) }
}
