package operation

import (
	"context"
	"slices"
	"time"
)

// Pauses between two tries of an owed step: short at first, since most obstacles
// pass in a moment.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Minute
	tryLimit   = 30 * time.Second
)

// retryLater marks the operation as owed, and retries the step with growing pauses until it is done or the daemon
// ends.
func (op *Operation) retryLater(step string, cause error) error {
	op.setState(Owed, step, cause)
	if !op.owedLogged {
		op.owedLogged = true
		op.set.log().Warn("operation step failed; it is tried again", "kind", op.rec.Kind, "step", step, "error", cause)
	}
	if !op.retrying {
		op.retrying = true
		op.set.goRetry(op.retryLoop)
	}
	return cause
}

func (op *Operation) retryLoop() {
	ctx := op.set.life()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-op.wake:
			pause = firstPause
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil || op.retryOnce(ctx) {
			return
		}
	}
}

// retryOnce reports whether nothing is owed any more. The turn is taken before advancing is locked, the
// same order as for an owner that has its turn and calls Run.
func (op *Operation) retryOnce(ctx context.Context) (done bool) {
	if err := op.set.inTurn(ctx, func() error { done = op.tryOwed(ctx); return nil }); err != nil {
		return op.Status().State == Ended // otherwise the next try gets a turn
	}
	return done
}

func (op *Operation) tryOwed(ctx context.Context) (done bool) {
	op.advancing.Lock()
	defer op.advancing.Unlock()
	if op.Status().State == Owed {
		ctx, stop := context.WithTimeout(ctx, tryLimit)
		defer stop()
		op.retryWriteLocked()
		op.useRecordedScope()
		_ = op.advance(ctx) // its state says what became of it
	}
	if op.Status().State == Owed {
		return false
	}
	op.retrying = false
	return true
}

// releaseObjects gives objects of an owed operation to a new one. An operation that is being
// tried right now keeps them.
func (op *Operation) releaseObjects(objects []string) error {
	if op.Status().State != Owed || !shareObject(op.Objects(), objects) || !op.advancing.TryLock() {
		return nil
	}
	defer op.advancing.Unlock()
	if op.Status().State != Owed {
		return nil
	}
	before := op.Objects()
	op.setObjects(slices.DeleteFunc(slices.Clone(before), func(object string) bool { return slices.Contains(objects, object) }))
	err := op.writeRecord()
	if err != nil {
		op.setObjects(before)
	}
	return err
}

func (op *Operation) setObjects(objects []string) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.rec.Objects = objects
}

// wakeRetry makes a retry continue without waiting longer.
func (op *Operation) wakeRetry() {
	select {
	case op.wake <- struct{}{}:
	default:
	}
}

// wakeIfOwed retries an owed step at once.
func (op *Operation) wakeIfOwed() {
	if op.Status().State == Owed {
		op.wakeRetry()
	}
}
