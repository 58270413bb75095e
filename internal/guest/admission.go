package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/resources"
)

// within runs steps in order, all of them within limit (0: no limit). It also ends, between two steps, when
// ctx does.
func within(ctx context.Context, limit time.Duration, steps ...func(context.Context) error) error {
	if limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, fault.New(fault.Timeout, fault.Domain, "it did not complete within %v", limit))
		defer stop()
	}
	for _, step := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			if errors.Is(err, ctx.Err()) {
				return context.Cause(ctx) // the cause says who ended it, and why
			}
			return err
		}
	}
	return nil
}

// limit bounds the last steps. Loading a saved image has no bound: the user can destroy the guest.
func (l *launching) limit() time.Duration {
	if l.from != nil {
		return 0
	}
	return startLimit
}

// runAdmitted waits until the host can take one more launch, and runs QEMU until its monitor answers. The
// wait has no bound: the queue is visible and moves, and a user who does not want to wait destroys the
// guest.
func (l *launching) runAdmitted(ctx context.Context) error {
	release, err := l.g.reg.Starts.Admit(ctx, l.startRequest())
	if err != nil {
		return fmt.Errorf("it was not admitted: %w", err)
	}
	var o resources.Outcome
	defer func() { release(o) }()
	if err := within(ctx, startLimit, l.runQEMU, l.shakeHands); err != nil {
		return err
	}
	o.PID = l.run.PID
	l.g.reg.Ledger.Started(l.run.UUID)
	return nil
}

// startRequest returns what a start needs of the host's memory. Huge pages are not counted: the ledger has
// them already, and they are never free memory. A restored guest touches its memory even if it stays
// paused, so it does not count as paused.
func (l *launching) startRequest() resources.StartRequest {
	def := l.run.def
	return resources.StartRequest{
		Guest: def.UUID, Name: def.Name, Memory: demand(def).Memory, Paused: l.opts.Paused && l.from == nil, Priority: l.opts.Priority,
		Whole: def.Backing.Locked || def.Backing.Allocation == "immediate" || len(def.Devices.HostDevices) > 0,
	}
}
