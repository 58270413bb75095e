package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Tiles and clones are made and removed by operations: see package operation. After a kill, the next daemon
// undoes an unfinished tile or clone from its record.

// operationsName names the fleet in the records of its operations.
const operationsName = "fleet"

var fleetKinds = operation.Kinds[*Fleet]{tileCreateKind, tileRemoveKind, cloneKind, templateKind}

// openOperations opens the fleet's operations. If their records cannot be read, no new operation is begun: it
// might use the volumes of an unread one.
func (f *Fleet) openOperations() {
	stored := operation.StoreJournal{Store: f.store}
	life, stop := context.WithCancelCause(context.Background())
	f.stop = stop
	c := operation.Config[*Fleet]{Owner: f, Name: operationsName, Kinds: fleetKinds, Stored: stored, PerObject: true, Log: f.log, Life: life}
	all, err := stored.ReadAll()
	if err == nil {
		err = all[operationsName].Damaged
	}
	if err == nil {
		f.ops, err = operation.Open(c, all[operationsName].Records)
	}
	if err != nil {
		f.ops = operation.New(c)
		f.blocked = fault.Wrap(err, fault.Failed, fault.Store, "cannot make or remove tiles and clones: the records of unfinished ones cannot be read")
		f.log.Error("records of unfinished tiles and clones not readable; new ones refused", "error", err)
	}
}

// Recover undoes unfinished tiles and clones of earlier daemons. It is called before clients are served. If
// ctx ends first, the rest is retried until Close.
func (f *Fleet) Recover(ctx context.Context) {
	if err := f.ops.Recover(ctx); err != nil {
		f.log.Error("unfinished tile or clone not settled; it is tried again", "error", err)
	}
}

// Close ends the retries. The next daemon continues them.
func (f *Fleet) Close() {
	f.stop(nil)
	f.ops.Close()
}

// Operations lists the open operations.
func (f *Fleet) Operations() []operation.OwnedStatus { return f.ops.List("", "") }

// hasOperationOn says whether an operation works on an object.
func (f *Fleet) hasOperationOn(object string) bool {
	for _, op := range f.ops.Operations() {
		if op.Has(object) {
			return true
		}
	}
	return false
}

// perform runs an operation and returns its result.
func (f *Fleet) perform(ctx context.Context, sc scope.Scope, kind string, w operation.Work, p *operationObjects, note string) Result {
	op, err := f.begin(sc, kind, w, p.objects())
	if err == nil {
		err = op.Run(ctx)
	}
	switch {
	case err == nil:
		return Result{Outcome: Done, Note: note}
	case op == nil:
	case op.Status().State == operation.Owed:
		err = fmt.Errorf("%w; the remains will be removed as soon as possible", err)
	case p.Kept != "":
		err = fmt.Errorf("%w; what was made is kept, because it is in use: %s", err, p.Kept)
	case ctx.Err() != nil:
		return Result{Outcome: Cancelled, Error: err}
	}
	return Result{Outcome: Failed, Error: err}
}

func (f *Fleet) begin(sc scope.Scope, kind string, w operation.Work, objects []string) (*operation.Operation, error) {
	if f.blocked != nil {
		return nil, f.blocked
	}
	op, err := f.ops.Begin(sc, kind, w, operation.Record{Objects: objects})
	if conflict, is := errors.AsType[*operation.Conflict](err); is {
		return nil, fault.New(fault.Busy, fault.Domain, "another call is making or removing one of its guests or volumes (%s); try again when that has ended", conflict.With.Kind)
	}
	return op, err
}
