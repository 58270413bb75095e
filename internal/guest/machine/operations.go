package machine

import (
	"context"
	"errors"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// NoAnswer reports whether QEMU may still carry out an unanswered command.
func NoAnswer(err error) bool {
	var silent *qmp.NoAnswer
	return errors.As(err, &silent) || fault.Is(err, fault.Unresponsive)
}

// SetOperations gives an instance the operations of its records, or none.
func (r *Registry) SetOperations(to *Instance, records []operation.Record) (err error) {
	to.Reg = r
	to.Ops, err = operation.Open(operation.Config[*Instance]{
		Owner: to, Name: to.UUID, Kinds: r.Kinds,
		Files: operation.FileJournal{Dir: to.Dir}, Stored: operation.StoreJournal{Store: r.Store},
		Boot: r.Boot, Log: to.Log, Life: r.Life,
		Unanswered: NoAnswer, Drain: to.drainMonitor, OwnerOutdated: to.unwrittenCause, Turn: to.unlessEnded,
	}, records)
	return err
}

// drainMonitor waits until QEMU has answered all earlier commands of this session: it answers in order.
func (r *Instance) drainMonitor(ctx context.Context) error {
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	return s.Execute(ctx, "query-status", nil, nil)
}

// Perform begins an operation and runs its steps, beside the loop. It closes a session on which QEMU does
// not answer, so that the next session can ask.
func (r *Instance) Perform(ctx context.Context, sc scope.Scope, kind string, w operation.Work, objects ...string) error {
	op, err := r.BeginOperation(ctx, sc, kind, w, objects...)
	if err != nil {
		return err
	}
	return r.Advance(ctx, op)
}

// BeginOperation begins an operation. It waits for conflicting operations that are running, and fails if
// one waits for QEMU.
func (r *Instance) BeginOperation(ctx context.Context, sc scope.Scope, kind string, w operation.Work, objects ...string) (*operation.Operation, error) {
	for {
		op, err := r.Ops.Begin(sc, kind, w, operation.Record{Objects: objects})
		var conflict *operation.Conflict
		if !errors.As(err, &conflict) {
			return op, err
		}
		if conflict.Admission != operation.Wait || conflict.With.State != operation.Running {
			return nil, r.explainConflict(conflict)
		}
		select { // for example for the cleanup of a device that is gone
		case <-conflict.Stopped():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Advance runs the next steps of an operation.
func (r *Instance) Advance(ctx context.Context, op *operation.Operation) error {
	err := op.Run(ctx)
	if s := r.Session.Load(); s != nil && op.Status().State == operation.Unanswered {
		s.Close()
	}
	return err
}

// Admits refuses a change outside of operations that an open operation conflicts with.
func (r *Instance) Admits(class operation.Class, objects ...string) error {
	var conflict *operation.Conflict
	if err := r.Ops.CheckConflict(class, objects...); errors.As(err, &conflict) && conflict.Admission == operation.Refuse {
		return r.explainConflict(conflict)
	}
	return nil
}

// explainConflict returns the error for an operation that an open one conflicts with.
func (r *Instance) explainConflict(c *operation.Conflict) error {
	switch {
	case c.With.State == operation.Unanswered:
		return fault.New(fault.Busy, fault.Domain, "a change of domain %q was interrupted, and is finished when its QEMU answers; try again then", r.Name)
	case c.Admission == operation.Wait:
		return fault.New(fault.Busy, fault.Domain, "an earlier operation (%s) on domain %q is not finished; try again later: %v", c.With.Kind, r.Name, c.With.Cause)
	}
	return fault.New(fault.WrongState, fault.Domain, "domain %q has a %s in progress; end it or wait for it first", r.Name, c.With.Kind)
}

// InLoop runs do in the guest's loop, for an operation. If the loop does not run yet, or no longer, only
// the caller uses the guest, and do runs at once.
func (r *Instance) InLoop(ctx context.Context, do func(*Guest) error) error {
	if r.Guest == nil || r.BeforeLoop {
		return do(r.Guest)
	}
	return r.Guest.Change(ctx, scope.Daemon("a step of an operation"), "", func() error { return do(r.Guest) })
}

// unlessEnded runs do for an operation of a running guest. After the guest has ended, the rest of a save or
// dump is left to RetryReleases, with everything else that the guest held. It must not run beside the
// guest's next instance: a file of the same name may then belong to another save.
func (r *Instance) unlessEnded(_ context.Context, do func() error) error {
	if r.Settling.Load() && r.Ops.HasClass(operation.Move) {
		return ErrReleaseFailed
	}
	return do()
}

// endOperations settles the operations that were open when QEMU ended.
func (r *Instance) endOperations(ctx context.Context) error {
	if r.Ops == nil {
		return nil
	}
	r.Settling.Store(true)
	return r.Ops.End(ctx, operation.TheProcess)
}
