package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Tiles and clones are made and removed by operations: see package operation. After a kill the
// next daemon removes an unfinished tile or clone by its record.

// operationsName is the fleet's in the records of its operations.
const operationsName = "fleet"

var fleetKinds = operation.Kinds[*Fleet]{tileCreateKind, tileRemoveKind, cloneKind, templateKind}

// openOperations gives the fleet its operations. If their records cannot be read, no new operation
// begins: it might use the volumes of an unread one.
func (f *Fleet) openOperations() {
	stored := operation.Stored{Store: f.store}
	life, stop := context.WithCancelCause(context.Background())
	f.stop = stop
	c := operation.Config[*Fleet]{Owner: f, Name: operationsName, Kinds: fleetKinds, Stored: stored, Apart: true, Log: f.log, Life: life}
	all, err := stored.ReadAll()
	if err == nil {
		err = all[operationsName].Damaged
	}
	if err == nil {
		f.ops, err = operation.Open(c, all[operationsName].Records)
	}
	if err != nil {
		f.ops = operation.New(c)
		f.barred = fault.Wrap(err, fault.Failed, fault.Store, "no tiles or clones are made or removed: it is not known what was not finished")
		f.log.Error("it is not known which tiles and clones were not finished", "error", err)
	}
}

// Recover removes unfinished tiles and clones of earlier daemons. It is called before clients
// are served. What cannot be removed by the end of ctx is tried again until Close.
func (f *Fleet) Recover(ctx context.Context) {
	if err := f.ops.Recover(ctx); err != nil {
		f.log.Error("a tile or a clone was cut off and cannot be settled", "error", err)
	}
}

// Close ends the retries. The next daemon continues them.
func (f *Fleet) Close() {
	f.stop(nil)
	f.ops.Close()
}

// Operations are those that are open.
func (f *Fleet) Operations() []operation.Listed { return f.ops.List("", "") }

// worksOn reports whether an operation works on an object.
func (f *Fleet) worksOn(object string) bool {
	for _, op := range f.ops.Operations() {
		if op.Has(object) {
			return true
		}
	}
	return false
}

// perform does an operation, and gives what came of it.
func (f *Fleet) perform(ctx context.Context, sc scope.Scope, kind string, w operation.Work, p *parts, note string) Result {
	op, err := f.begin(sc, kind, w, p.objects())
	if err == nil {
		err = op.Run(ctx)
	}
	switch {
	case err == nil:
		return Result{Outcome: Done, Note: note}
	case op == nil:
	case op.Status().State == operation.Owed:
		err = fmt.Errorf("%w; what is left is removed as soon as it can be", err)
	case p.Kept != "":
		err = fmt.Errorf("%w; what was made stays, for somebody has it by now: %s", err, p.Kept)
	case ctx.Err() != nil:
		return Result{Outcome: Cancelled, Error: err}
	}
	return Result{Outcome: Failed, Error: err}
}

func (f *Fleet) begin(sc scope.Scope, kind string, w operation.Work, objects []string) (*operation.Operation, error) {
	if f.barred != nil {
		return nil, f.barred
	}
	op, err := f.ops.Begin(sc, kind, w, operation.Record{Objects: objects})
	if conflict, is := errors.AsType[*operation.Conflict](err); is {
		return nil, fault.New(fault.Busy, fault.Domain, "another call makes or removes a guest or a volume of it (%s); try again when that has ended", conflict.With.Kind)
	}
	return op, err
}
