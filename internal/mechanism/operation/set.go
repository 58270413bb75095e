package operation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Config holds the owner of a Set, and everything that the Set needs from the owner.
type Config[O any] struct {
	Owner O
	// Name is the owner's name in the records.
	Name  string
	Kinds Kinds[O]
	// Files keeps records that need not outlive the boot; nil: Stored keeps all.
	Files  Journal
	Stored Journal
	// Boot is the present boot of the host.
	Boot string
	Log  *slog.Logger
	// Unanswered reports whether an error means that a step may still be carried out. Nil: no error does.
	Unanswered func(error) bool
	// Drain waits until QEMU has carried out all that it was asked. It is called when a client gives up during a
	// step: the operation is then settled before the client has its answer. Nil, or an error: it waits for Recover.
	Drain func(context.Context) error
	// PerObject says that the owner has many objects. Operations block each other only if
	// they share an object, and an owed one leaves its objects to a new one.
	PerObject bool
	// OwnerOutdated returns why the owner's own record is not up to date. While it does,
	// nothing is begun, and records stay. Nil: it always is.
	OwnerOutdated func() error
	// Turn runs the work that the runner does without a caller (owed or woken steps) once
	// the owner has time for it. An error means that it had none, and the owed step is
	// tried later. Nil: such steps need no turn.
	Turn func(ctx context.Context, do func() error) error
	// Life ends with the daemon. Nothing that is owed is tried after it.
	Life context.Context
}

// Set holds the open operations of one owner. Its methods may be called concurrently.
type Set[O any] struct {
	Config[O]
	retries sync.WaitGroup

	mu   sync.Mutex
	open []*Operation
	// ended are operations whose records are removed once the owner is not behind any more.
	ended []*Operation
}

// New makes a set without operations.
func New[O any](c Config[O]) *Set[O] { return &Set[O]{Config: c} }

// ErrUnknown is in the error of Open for a record that this daemon cannot read.
var ErrUnknown = errors.New("a later daemon began an operation that this one does not know; start that version again")

// Open makes the set of an owner with the operations in its records. They
// are unanswered until Recover or End. After an error the owner must not be used.
func Open[O any](c Config[O], records []Record) (*Set[O], error) {
	s := New(c)
	for _, r := range records {
		k, known := c.Kinds.find(r.Kind)
		if !known {
			return nil, fmt.Errorf("%w (%s of kind %q)", ErrUnknown, r.ID, r.Kind)
		}
		w, err := k.decodeWork(c.Owner, r)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		op, err := newOperation(s, r, k.Class, w, r.Scope.Scope())
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		op.state = Unanswered
		s.open = append(s.open, op)
	}
	return s, nil
}

// Rehold makes open operations hold the resources that they held in an earlier daemon.
func (s *Set[O]) Rehold() {
	for _, op := range s.Operations() {
		if w, is := op.work.(Reholder); is {
			w.Rehold()
		}
	}
}

// Begin writes the record of a new operation. Run does its steps, within the scope.
func (s *Set[O]) Begin(sc scope.Scope, kind string, w Work, asked Record) (*Operation, error) {
	if s.OwnerOutdated != nil {
		if err := s.OwnerOutdated(); err != nil {
			return nil, err
		}
	}
	op, err := s.prepare(sc, kind, w, asked)
	if err != nil {
		return nil, err
	}
	if s.PerObject {
		for _, open := range s.Operations() {
			if err := open.releaseObjects(op.rec.Objects); err != nil {
				return nil, err
			}
		}
	}
	op.advancing.Lock()
	defer op.advancing.Unlock()
	if err := s.addUnlessConflict(op); err != nil {
		return nil, err
	}
	if err := op.writeRecord(); err != nil {
		s.forget(op)
		op.setState(Ended, "", nil) // for others that wait for it
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot record the operation before its first step (%s)", kind)
	}
	return op, nil
}

// ForceBegin begins an operation for an event that has already happened. It goes
// forward from its first step. It begins despite conflicting operations, and also if its
// record cannot be written: the write is tried again with the owner's record or the next step.
func (s *Set[O]) ForceBegin(sc scope.Scope, kind string, w Work, asked Record) (*Operation, error) {
	op, err := s.prepare(sc, kind, w, asked)
	if err != nil {
		return nil, err
	}
	op.decided = true
	if err := op.writeRecord(); err != nil {
		s.Log.Error("operation not recorded; the write is tried again", "kind", kind, "error", err)
		op.unwritten = true
	}
	s.add(op)
	return op, nil
}

func (s *Set[O]) prepare(sc scope.Scope, kind string, w Work, asked Record) (*Operation, error) {
	k, known := s.Kinds.find(kind)
	if !known {
		return nil, fault.New(fault.Internal, fault.Domain, "there is no kind of operation called %q", kind)
	}
	if err := sc.Check(); err != nil {
		return nil, err
	}
	r := asked
	r.ID, r.Kind, r.Version, r.Owner, r.Boot, r.Began = uuid.NewString(), kind, k.Version, s.Name, s.Boot, time.Now()
	r.Scope = sc.Record()
	return newOperation(s, r, k.Class, w, sc)
}

// addUnlessConflict adds a new operation, unless another one conflicts with it.
func (s *Set[O]) addUnlessConflict(op *Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conflictLocked(op); err != nil {
		return err
	}
	s.open = append(s.open, op)
	return nil
}

func (s *Set[O]) forget(op *Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(o *Operation) bool { return o == op })
}

func (s *Set[O]) add(op *Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, op)
}

// Operations returns the open ones, oldest first.
func (s *Set[O]) Operations() []*Operation {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.open)
}

// List returns the open ones, with the name and the UUID of their owner.
func (s *Set[O]) List(name, uuid string) (all []OwnedStatus) {
	for _, op := range s.Operations() {
		all = append(all, OwnedStatus{op.Status(), name, uuid})
	}
	return all
}

// MayHaveRecord reports whether the next daemon may find a record of the operation with an ID.
func (s *Set[O]) MayHaveRecord(id string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	is := func(op *Operation) bool { return op.rec.ID == id }
	return slices.ContainsFunc(s.open, is) || slices.ContainsFunc(s.ended, is)
}

// Has reports whether an operation of a kind is open.
func (s *Set[O]) Has(kind string) bool {
	return slices.ContainsFunc(s.Operations(), func(op *Operation) bool { return op.rec.Kind == kind })
}

// HasClass reports whether an operation of a class is open.
func (s *Set[O]) HasClass(c Class) bool {
	return slices.ContainsFunc(s.Operations(), func(op *Operation) bool { return op.class == c })
}

// Find returns the open operation of a kind that works on an object; nil: there is none.
func (s *Set[O]) Find(kind, object string) *Operation {
	for _, op := range s.Operations() {
		if op.rec.Kind == kind && op.Has(object) {
			return op
		}
	}
	return nil
}

// Conflict is the error of Begin if another operation blocks it.
type Conflict struct {
	Admission Admission
	With      Status
	op        *Operation
}

// Stopped is closed when the other operation is neither running nor waiting.
func (c *Conflict) Stopped() <-chan struct{} { return c.op.stopped }

func (c *Conflict) Error() string {
	return fmt.Sprintf("operation %s of kind %s is in the way", c.With.ID, c.With.Kind)
}

// CheckConflict refuses an action that may not run beside the open operations, as Begin does.
func (s *Set[O]) CheckConflict(class Class, objects ...string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflictLocked(&Operation{class: class, rec: Record{Objects: objects}})
}

// conflictLocked returns the operation that blocks a new one; nil: none.
func (s *Set[O]) conflictLocked(next *Operation) error {
	var worst Conflict
	for _, op := range s.open {
		status := op.Status()
		verdict := Admit(op.class, status.Objects, next.class, next.rec.Objects)
		if (s.PerObject || status.State == Owed) && !shareObject(status.Objects, next.rec.Objects) {
			verdict = Allow // its visible effect is done; it blocks its own objects only
		}
		if verdict > worst.Admission {
			worst = Conflict{verdict, status, op}
		}
	}
	if worst.Admission == Allow {
		return nil
	}
	return &worst
}

// Recover probes interrupted operations, and finishes or undoes them by the
// answers. Call it when QEMU or the object can be asked again. An
// error says that one has no answer.
func (s *Set[O]) Recover(ctx context.Context) error {
	var all []error
	open := s.Operations()
	if s.PerObject { // a later effect may depend on an earlier one
		slices.Reverse(open)
	}
	for _, op := range open {
		if op.recover(ctx); op.Status().State == Unanswered {
			all = append(all, fmt.Errorf("cannot find out how far operation %s came: %w", op.rec.Kind, op.Status().Cause))
		}
	}
	return errors.Join(all...)
}

// End settles all operations after the process or the boot has ended since they were
// begun: their remaining effects are done or undone.
func (s *Set[O]) End(ctx context.Context, gone Gone) error {
	var all []error
	for _, op := range slices.Backward(s.Operations()) {
		if op.end(ctx, max(gone, op.goneAfterReboot(s.Boot))); op.Status().State != Ended {
			all = append(all, fmt.Errorf("operation %s has not ended: %w", op.rec.Kind, op.Status().Cause))
		}
	}
	return errors.Join(all...)
}

// OwnerWritten says that the owner's own record is up to date: records of ended operations
// are removed, and records whose write failed are written.
func (s *Set[O]) OwnerWritten() {
	if s == nil {
		return
	}
	s.mu.Lock()
	done, open := s.ended, slices.Clone(s.open)
	s.ended = nil
	s.mu.Unlock()
	for _, op := range done {
		if err := s.removeRecord(op); err != nil {
			s.Log.Error("cannot remove the record of an operation that has ended", "kind", op.rec.Kind, "id", op.rec.ID, "error", err)
			s.removeRecordLater(op)
		}
	}
	for _, op := range open {
		op.retryWrite()
	}
}

// removeRecordLater keeps an ended operation's record for later removal. The next daemon
// would repeat its steps, which is allowed.
func (s *Set[O]) removeRecordLater(op *Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, op)
}

// removeRecord deletes the record of an ended operation.
func (s *Set[O]) removeRecord(op *Operation) error {
	if err := op.journal().Remove(op.rec); err != nil {
		return err
	}
	s.forget(op)
	if w, is := op.work.(Ender); is {
		w.Ended()
	}
	return nil
}

// Wake continues a waiting operation in the background.
func (s *Set[O]) Wake(op *Operation) {
	s.retries.Go(func() { _ = s.inTurn(s.Life, func() error { return op.run(s.Life, true) }) }) // its state holds the result
}

// RetryOwed retries owed operations at once.
func (s *Set[O]) RetryOwed() {
	for _, op := range s.Operations() {
		op.wakeIfOwed()
	}
}

// Close waits for running retries. Life has ended before.
func (s *Set[O]) Close() { s.retries.Wait() }

// ownerSet is the part of a set that its operations use.
type ownerSet interface {
	journals() (files, stored Journal)
	log() *slog.Logger
	unanswered(error) bool
	drain(context.Context) error
	life() context.Context
	finish(*Operation) error
	goRetry(func())
	inTurn(ctx context.Context, do func() error) error
}

func (s *Set[O]) journals() (files, stored Journal) { return s.Files, s.Stored }
func (s *Set[O]) log() *slog.Logger                 { return s.Log }
func (s *Set[O]) life() context.Context             { return s.Life }
func (s *Set[O]) unanswered(err error) bool         { return s.Unanswered != nil && s.Unanswered(err) }

func (s *Set[O]) drain(ctx context.Context) error {
	if s.Drain == nil {
		return errors.ErrUnsupported
	}
	return s.Drain(ctx)
}

func (s *Set[O]) goRetry(f func()) { s.retries.Go(f) }

func (s *Set[O]) inTurn(ctx context.Context, do func() error) error {
	if s.Turn == nil {
		return do()
	}
	return s.Turn(ctx, do)
}

// finish removes an operation and its record. While the owner's own record is
// behind, the operation's record stays.
func (s *Set[O]) finish(op *Operation) error {
	if s.OwnerOutdated == nil {
		return s.removeRecord(op)
	}
	behind := s.OwnerOutdated()
	switch {
	case behind == nil:
		return s.removeRecord(op)
	case op.endsByRemoval():
		return behind
	}
	s.forget(op)
	s.removeRecordLater(op)
	return nil
}

func marshal(w Work) (json.RawMessage, error) { return json.Marshal(w) }
