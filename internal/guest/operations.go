package guest

import (
	"context"
	"errors"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A change of a running guest in several steps is an operation: see package operation. Each kind has a file
// with its payload and steps; this file connects the runner to the guest. Only the runner recovers
// interrupted operations: adoption, reconnection and the end of QEMU know no kinds.

// guestOperations are the kinds of operations on a running guest.
var guestOperations = operation.Kinds[*run]{
	attachKind, blockCommitKind, cleanupKind, detachKind, dumpKind, iothreadKind, mediaKind, saveKind, updateKind,
}

// noAnswer reports whether QEMU may still carry out an unanswered command.
func noAnswer(err error) bool {
	var silent *qmp.NoAnswer
	return errors.As(err, &silent) || fault.Is(err, fault.Unresponsive)
}

// giveOperations gives a run the operations of its records, or none.
func (r *Registry) giveOperations(to *run, records []operation.Record) (err error) {
	to.reg = r
	to.ops, err = operation.Open(operation.Config[*run]{
		Owner: to, Name: to.UUID, Kinds: r.kinds,
		Files: operation.Files{Dir: to.dir}, Stored: operation.Stored{Store: r.store},
		Boot: r.Boot, Log: to.log, Life: r.life,
		Unanswered: noAnswer, Behind: to.unwrittenCause, Turn: to.unlessEnded,
	}, records)
	return err
}

// Operations lists the open operations of all running guests, and the removals after undefinitions.
func (r *Registry) Operations() (all []operation.Listed) {
	for _, set := range r.undefinitionSets() {
		for _, op := range set.Operations() {
			u := op.Work().(*undefinition)
			all = append(all, operation.Listed{Status: op.Status(), Name: u.Name, UUID: u.UUID})
		}
	}
	for _, g := range r.All() {
		if run := g.live.Load(); run != nil {
			all = append(all, run.ops.List(g.Name(), g.uuid)...)
		}
	}
	return all
}

// perform begins an operation and runs its steps, beside the loop. It closes a session on which QEMU does
// not answer, so that the next session can ask.
func (r *run) perform(ctx context.Context, sc scope.Scope, kind string, w operation.Work, objects ...string) error {
	op, err := r.beginOperation(ctx, sc, kind, w, objects...)
	if err != nil {
		return err
	}
	return r.advance(ctx, op)
}

// beginOperation begins an operation. It waits for conflicting operations that are running, and fails if
// one waits for QEMU.
func (r *run) beginOperation(ctx context.Context, sc scope.Scope, kind string, w operation.Work, objects ...string) (*operation.Operation, error) {
	for {
		op, err := r.ops.Begin(sc, kind, w, operation.Record{Objects: objects})
		var conflict *operation.Conflict
		if !errors.As(err, &conflict) {
			return op, err
		}
		if conflict.Admission != operation.Wait || conflict.With.State != operation.Running {
			return nil, r.explainConflict(conflict)
		}
		select { // for example for the cleanup of a device that is gone
		case <-conflict.Moved():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// advance runs the next steps of an operation.
func (r *run) advance(ctx context.Context, op *operation.Operation) error {
	err := op.Run(ctx)
	if s := r.session.Load(); s != nil && op.Status().State == operation.Unanswered {
		s.Close()
	}
	return err
}

// admits refuses a change outside of operations that an open operation conflicts with.
func (r *run) admits(class operation.Class, objects ...string) error {
	var conflict *operation.Conflict
	if err := r.ops.Admits(class, objects...); errors.As(err, &conflict) && conflict.Admission == operation.Refuse {
		return r.explainConflict(conflict)
	}
	return nil
}

// explainConflict returns the error for an operation that an open one conflicts with.
func (r *run) explainConflict(c *operation.Conflict) error {
	switch {
	case c.With.State == operation.Unanswered:
		return fault.New(fault.Busy, fault.Domain, "a change of domain %q was interrupted, and is finished when its QEMU answers; try again then", r.Name)
	case c.Admission == operation.Wait:
		return fault.New(fault.Busy, fault.Domain, "an earlier operation (%s) on domain %q is not finished; try again later: %v", c.With.Kind, r.Name, c.With.Cause)
	}
	return fault.New(fault.WrongState, fault.Domain, "domain %q has a %s in progress; end it or wait for it first", r.Name, c.With.Kind)
}

// inLoop runs do in the guest's loop, for an operation. If the loop does not run yet, or no longer, only
// the caller uses the guest, and do runs at once.
func (r *run) inLoop(ctx context.Context, do func(*Guest) error) error {
	if r.guest == nil || r.alone {
		return do(r.guest)
	}
	return r.guest.change(ctx, scope.Daemon("a step of an operation"), "", func() error { return do(r.guest) })
}

// unlessEnded runs do for an operation of a running guest. After the guest has ended, the rest of a save or
// dump is left to giveBackLater, with everything else that the guest held. It must not run beside the
// guest's next run: a file of the same name may then belong to another save.
func (r *run) unlessEnded(_ context.Context, do func() error) error {
	if r.settling.Load() && r.ops.HasClass(operation.Move) {
		return errWithheld
	}
	return do()
}

// endOperations settles the operations that were open when QEMU ended.
func (r *run) endOperations(ctx context.Context) error {
	if r.ops == nil {
		return nil
	}
	r.settling.Store(true)
	return r.ops.End(ctx, operation.TheProcess)
}

// followOnce changes the stored definition as an operation did the running one. It keeps what others have
// stored since, and does nothing if it has been done before. It runs in the loop. A change that no longer
// fits the definition is a final error. A store that takes no changes is not.
func (g *Guest) followOnce(sc scope.Scope, id string, change func(config *domain.Definition) (*domain.Definition, error)) error {
	if g == nil || g.inactive == nil || slices.Contains(g.record.Followed, id) {
		return nil
	}
	config, err := change(g.inactive.Clone())
	if err != nil {
		return operation.Final(err)
	}
	g.fence(sc, config)
	before := g.record.Followed
	g.record.Followed = append(slices.DeleteFunc(slices.Clone(before), func(id string) bool { return g.run != nil && !g.run.ops.Remembers(id) }), id)
	if err := g.redefine(config); err != nil {
		g.record.Followed = before
		return err
	}
	return nil
}
