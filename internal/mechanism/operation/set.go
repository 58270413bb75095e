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

// Config says whose operations a Set has, and what it needs of that owner.
type Config[O any] struct {
	Owner O
	// Name is the owner's in its records.
	Name  string
	Kinds Kinds[O]
	// Files keep records that need not outlive the boot; nil: Stored keeps all.
	Files  Journal
	Stored Journal
	// Boot is the present boot of the host.
	Boot string
	Log  *slog.Logger
	// Unanswered reports whether an error means that a step may still be carried out. Nil: none does.
	Unanswered func(error) bool
	// Apart says that the owner has many things. Operations are in each other's way only
	// where they share an object, and one that is owed leaves its objects to a new one.
	Apart bool
	// Behind is why the owner's own record does not say yet all that is so. Nothing
	// is begun then, and records stay. Nil: it always does.
	Behind func() error
	// Turn has what the runner does beside its callers (what is owed, what is woken) wait
	// until the owner has time for it, and then do it. An error says that it had none: what is
	// owed is tried later. Nil: such steps need no turn.
	Turn func(ctx context.Context, do func() error) error
	// Life ends with the daemon. What is owed is not tried after it.
	Life context.Context
}

// Set is the open operations of one owner. Its methods may be called from anywhere.
type Set[O any] struct {
	Config[O]
	retries sync.WaitGroup

	mu   sync.Mutex
	open []*Operation
	// ended are records that are removed once the owner is not behind any more.
	ended []*Operation
}

// New makes a set without operations.
func New[O any](c Config[O]) *Set[O] { return &Set[O]{Config: c} }

// ErrUnknown is in the error of Open for a record that this daemon cannot read.
var ErrUnknown = errors.New("a later daemon began an operation that this one does not know; start that version again")

// Open makes the set of an owner with the operations that its records tell of. They
// are unanswered until Recover or End. An error keeps the owner from being used.
func Open[O any](c Config[O], records []Record) (*Set[O], error) {
	s := New(c)
	for _, r := range records {
		k, known := c.Kinds.find(r.Kind)
		if !known {
			return nil, fmt.Errorf("%w (%s of kind %q)", ErrUnknown, r.ID, r.Kind)
		}
		w, err := k.open(c.Owner, r)
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

// Rehold has the work of open operations hold what it held in an earlier daemon.
func (s *Set[O]) Rehold() {
	for _, op := range s.Operations() {
		if w, is := op.work.(Rehold); is {
			w.Rehold()
		}
	}
}

// Begin writes the record of a new operation. Run does its steps, within the scope.
func (s *Set[O]) Begin(sc scope.Scope, kind string, w Work, asked Record) (*Operation, error) {
	if s.Behind != nil {
		if err := s.Behind(); err != nil {
			return nil, err
		}
	}
	op, err := s.prepare(sc, kind, w, asked)
	if err != nil {
		return nil, err
	}
	if s.Apart {
		for _, open := range s.Operations() {
			if err := open.leave(op.rec.Objects); err != nil {
				return nil, err
			}
		}
	}
	op.advancing.Lock()
	defer op.advancing.Unlock()
	if err := s.claim(op); err != nil {
		return nil, err
	}
	if err := op.write(); err != nil {
		s.drop(op)
		op.become(Ended, "", nil) // for those who wait for it
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot write down what is about to be done (%s)", kind)
	}
	return op, nil
}

// Follow begins an operation for something that has happened by itself, and that goes
// forward from its first step. It is begun whatever is in its way, and also where its
// record cannot be written: that is made up for when the owner's own can be, or a step is tried again.
func (s *Set[O]) Follow(sc scope.Scope, kind string, w Work, asked Record) (*Operation, error) {
	op, err := s.prepare(sc, kind, w, asked)
	if err != nil {
		return nil, err
	}
	op.decided = true
	if err := op.write(); err != nil {
		s.Log.Error("what follows cannot be written down for the next daemon; that is tried again", "kind", kind, "error", err)
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

// claim adds a new operation, unless another one is in the way.
func (s *Set[O]) claim(op *Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conflictLocked(op); err != nil {
		return err
	}
	s.open = append(s.open, op)
	return nil
}

func (s *Set[O]) drop(op *Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(o *Operation) bool { return o == op })
}

func (s *Set[O]) add(op *Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, op)
}

// Operations are those that are open, the oldest first.
func (s *Set[O]) Operations() []*Operation {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.open)
}

// List gives those that are open, with the name and the UUID of their owner.
func (s *Set[O]) List(name, uuid string) (all []Listed) {
	for _, op := range s.Operations() {
		all = append(all, Listed{op.Status(), name, uuid})
	}
	return all
}

// Remembers reports whether the next daemon may find a record of the operation of an ID.
func (s *Set[O]) Remembers(id string) bool {
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

// Find gives the open operation of a kind that works on an object; nil: there is none.
func (s *Set[O]) Find(kind, object string) *Operation {
	for _, op := range s.Operations() {
		if op.rec.Kind == kind && op.Has(object) {
			return op
		}
	}
	return nil
}

// Conflict is the error of Begin where another operation is in the way.
type Conflict struct {
	Admission Admission
	With      Status
	op        *Operation
}

// Moved is closed when the other one is no longer running, nor waiting.
func (c *Conflict) Moved() <-chan struct{} { return c.op.moved }

func (c *Conflict) Error() string {
	return fmt.Sprintf("operation %s of kind %s is in the way", c.With.ID, c.With.Kind)
}

// Admits refuses what may not be done beside the operations that are open, as Begin does.
func (s *Set[O]) Admits(class Class, objects ...string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflictLocked(&Operation{class: class, rec: Record{Objects: objects}})
}

// conflictLocked gives what is in the way of a new operation; nil: nothing is.
func (s *Set[O]) conflictLocked(next *Operation) error {
	var worst Conflict
	for _, op := range s.open {
		status := op.Status()
		verdict := Admit(op.class, status.Objects, next.class, next.rec.Objects)
		if (s.Apart || status.State == Owed) && !share(status.Objects, next.rec.Objects) {
			verdict = Go // it has done what others might see, and is in the way of its own objects only
		}
		if verdict > worst.Admission {
			worst = Conflict{verdict, status, op}
		}
	}
	if worst.Admission == Go {
		return nil
	}
	return &worst
}

// Recover asks about operations that were cut off, and finishes or undoes them by
// the answers. It is called when what they are asked of can be asked again. An
// error says that no answer came for one.
func (s *Set[O]) Recover(ctx context.Context) error {
	var all []error
	open := s.Operations()
	if s.Apart { // what goes back may lie upon what was made before
		slices.Reverse(open)
	}
	for _, op := range open {
		if op.recover(ctx); op.Status().State == Unanswered {
			all = append(all, fmt.Errorf("it is not known how far operation %s came: %w", op.rec.Kind, op.Status().Cause))
		}
	}
	return errors.Join(all...)
}

// End settles all operations after the end of the process, or of the boot in which
// they were begun: what is left of them is done or undone.
func (s *Set[O]) End(ctx context.Context, gone Gone) error {
	var all []error
	for _, op := range slices.Backward(s.Operations()) {
		if op.end(ctx, max(gone, op.gone(s.Boot))); op.Status().State != Ended {
			all = append(all, fmt.Errorf("operation %s has not ended: %w", op.rec.Kind, op.Status().Cause))
		}
	}
	return errors.Join(all...)
}

// Written says that the owner's own record says all now: records of operations that
// have ended are removed, and those that could not be written are.
func (s *Set[O]) Written() {
	if s == nil {
		return
	}
	s.mu.Lock()
	done, open := s.ended, slices.Clone(s.open)
	s.ended = nil
	s.mu.Unlock()
	for _, op := range done {
		if err := s.remove(op); err != nil {
			s.Log.Error("cannot remove the record of an operation that has ended", "kind", op.rec.Kind, "id", op.rec.ID, "error", err)
			s.stays(op)
		}
	}
	for _, op := range open {
		op.writeLate()
	}
}

// stays has the record of an operation that has ended removed later. The next daemon
// would repeat its steps, and each may be.
func (s *Set[O]) stays(op *Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, op)
}

// remove forgets the record of an operation that has ended.
func (s *Set[O]) remove(op *Operation) error {
	if err := op.journal().Remove(op.rec); err != nil {
		return err
	}
	s.drop(op)
	if w, is := op.work.(Ender); is {
		w.Ended()
	}
	return nil
}

// Wake continues an operation that waits, beside its caller.
func (s *Set[O]) Wake(op *Operation) {
	s.retries.Go(func() { _ = s.inTurn(s.Life, func() error { return op.Run(s.Life) }) }) // its state says what became of it
}

// Again tries at once what is owed.
func (s *Set[O]) Again() {
	for _, op := range s.Operations() {
		op.again()
	}
}

// Close waits for what is being tried again. Life has ended before.
func (s *Set[O]) Close() { s.retries.Wait() }

// settings is the part of a set that its operations use.
type settings interface {
	journals() (files, stored Journal)
	log() *slog.Logger
	unanswered(error) bool
	life() context.Context
	finish(*Operation) error
	goRetry(func())
	inTurn(ctx context.Context, do func() error) error
}

func (s *Set[O]) journals() (files, stored Journal) { return s.Files, s.Stored }
func (s *Set[O]) log() *slog.Logger                 { return s.Log }
func (s *Set[O]) life() context.Context             { return s.Life }
func (s *Set[O]) unanswered(err error) bool         { return s.Unanswered != nil && s.Unanswered(err) }

func (s *Set[O]) goRetry(f func()) { s.retries.Go(f) }

func (s *Set[O]) inTurn(ctx context.Context, do func() error) error {
	if s.Turn == nil {
		return do()
	}
	return s.Turn(ctx, do)
}

// finish takes an operation out, with its record. While the owner's own record is
// behind, that of the operation stays.
func (s *Set[O]) finish(op *Operation) error {
	if s.Behind == nil {
		return s.remove(op)
	}
	behind := s.Behind()
	switch {
	case behind == nil:
		return s.remove(op)
	case op.endsByRemoval():
		return behind
	}
	s.drop(op)
	s.stays(op)
	return nil
}

func marshal(w Work) (json.RawMessage, error) { return json.Marshal(w) }
