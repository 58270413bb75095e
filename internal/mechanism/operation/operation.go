package operation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// State says what an open operation is doing.
type State int

// States.
const (
	// Running: a step is being done, or is next.
	Running State = iota
	// Waiting: a step waits for the guest, for QEMU or for a client.
	Waiting
	// Unanswered: it is unknown how far it came, until Recover has asked.
	Unanswered
	// Owed: the next step cannot be done now, and is tried again.
	Owed
	// Ended: nothing is left to do.
	Ended
)

var stateNames = [...]string{"running", "waiting", "unanswered", "owed", "ended"}

func (s State) String() string { return stateNames[s] }

// Operation is an open operation. The goroutine that advances it holds advancing; fields that
// others read are guarded by mu.
type Operation struct {
	set      ownerSet
	scope    scope.Scope // of the client that asked, or what its record has of it
	class    Class
	work     Work
	steps    []Step
	decisive int // the index of the decisive step; len(steps): the removal of the record decides

	advancing sync.Mutex
	rec       Record
	next      int  // the step that is done or undone next
	backward  bool // next is undone
	decided   bool // it goes forward, whatever happens to a step
	gone      Gone // whether the process or the boot had ended when it was last advanced
	failures  []error

	mu      sync.Mutex
	state   State
	step    string // the current step
	cause   error  // why it is owed, or unanswered
	result  error  // the result for its client
	since   time.Time
	stopped chan struct{} // closed when it is no longer running or waiting
	wake    chan struct{} // capacity one; tells a retry not to wait longer

	retrying   bool // a goroutine retries the owed step; guarded by advancing
	owedLogged bool // "owed" was logged; guarded by advancing
	unwritten  bool // its record could not be written; guarded by advancing
}

func newOperation(set ownerSet, r Record, class Class, w Work, sc scope.Scope) (*Operation, error) {
	op := &Operation{set: set, scope: sc, rec: r, class: class, work: w, since: r.Began, stopped: make(chan struct{}), wake: make(chan struct{}, 1)}
	if o, is := w.(Opener); is {
		if err := o.Opened(op); err != nil {
			return nil, err
		}
	}
	op.steps = w.Steps()
	op.decisive = slices.IndexFunc(op.steps, func(s Step) bool { return s.Decisive })
	if op.decisive < 0 {
		op.decisive = len(op.steps)
	}
	if op.decisive == 0 && op.steps[0].Probe == nil {
		op.rec.Decided = true
	}
	return op, nil
}

// ID names the operation, also in the records that it has changed.
func (op *Operation) ID() string { return op.rec.ID }

// Scope is that of the client that asked, for steps: they work within it. While the client's call lasts it has the
// client's limits, too. When a step is tried again later, or by the next daemon, it has what the record says.
func (op *Operation) Scope() scope.Scope { return op.scope }

// useRecordedScope limits the steps that follow to what the record says of the scope: the call of the client may
// have ended, and its reservations with it. The caller holds advancing.
func (op *Operation) useRecordedScope() { op.scope = op.rec.Scope.Scope() }

// Kind is the name of its kind.
func (op *Operation) Kind() string { return op.rec.Kind }

// Decided reports whether its record says that it goes forward. It is for Rehold and Opened.
func (op *Operation) Decided() bool { return op.rec.Decided }

// Work returns its work.
func (op *Operation) Work() Work { return op.work }

// Objects returns the objects it works on.
func (op *Operation) Objects() []string {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.rec.Objects
}

// Free says that the operation is done with an object: it no longer blocks others
// there. After a restart this has to be found out again.
func (op *Operation) Free(object string) {
	op.setObjects(slices.DeleteFunc(slices.Clone(op.Objects()), func(o string) bool { return o == object }))
}

// Has reports whether it works on an object. An owed one may have left it to another.
func (op *Operation) Has(object string) bool { return slices.Contains(op.Objects(), object) }

// Status is how far an operation is.
type Status struct {
	Kind    string
	ID      string
	Objects []string
	State   State
	Step    string
	Began   time.Time
	Since   time.Time // it is in this state
	Cause   error     // why it is owed; nil: it is not owed
}

// OwnedStatus is an operation with its owner.
type OwnedStatus struct {
	Status

	Name, UUID string // of the guest or network; both are empty for one on tiles or clones
}

// Status returns how far it is.
func (op *Operation) Status() Status {
	op.mu.Lock()
	defer op.mu.Unlock()
	return Status{op.rec.Kind, op.rec.ID, op.rec.Objects, op.state, op.step, op.rec.Began, op.since, op.cause}
}

// Err returns the failure of an operation that has ended or is owed; nil: none.
func (op *Operation) Err() error {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.result
}

// Stopped is closed when the operation has ended, is owed or unanswered. Clients that
// wait for it may continue then.
func (op *Operation) Stopped() <-chan struct{} { return op.stopped }

// setState changes the state and the current step. A client that waits may continue when the state is no longer
// Running or Waiting.
func (op *Operation) setState(s State, step string, cause error) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if s != op.state {
		op.since = time.Now()
	}
	op.state, op.step, op.cause = s, step, cause
	if s > Waiting {
		select {
		case <-op.stopped:
		default:
			close(op.stopped)
		}
	}
}

func (op *Operation) stepName(i int) string {
	if i < 0 || i >= len(op.steps) {
		return ""
	}
	return op.steps[i].Name
}

// goneAfterReboot returns TheBoot if the host has booted since the operation was begun, else Nothing. It does not
// check whether the process has ended.
func (op *Operation) goneAfterReboot(boot string) Gone {
	if boot != "" && op.rec.Boot != boot {
		return TheBoot
	}
	return Nothing
}

// outlivesBoot reports whether the record must outlive the boot.
func (op *Operation) outlivesBoot() bool {
	return slices.ContainsFunc(op.steps, func(s Step) bool { return s.Effect == Lasting })
}

func (op *Operation) journal() Journal {
	files, stored := op.set.journals()
	if files == nil || op.outlivesBoot() {
		return stored
	}
	return files
}

// writeRecord stores the record in its present state.
func (op *Operation) writeRecord() (err error) {
	if op.rec.Payload, err = marshal(op.work); err != nil {
		return err
	}
	return op.journal().Write(op.rec)
}

// Save stores a payload that a step has changed, before that step has any effect.
func (op *Operation) Save() error { return op.writeRecord() }

// retryWrite writes a record whose write failed before.
func (op *Operation) retryWrite() {
	if !op.advancing.TryLock() {
		return // its next step is soon done; the write is tried after it
	}
	defer op.advancing.Unlock()
	if op.Status().State != Ended {
		op.retryWriteLocked()
	}
}

func (op *Operation) retryWriteLocked() {
	if op.unwritten {
		op.unwritten = op.writeRecord() != nil
	}
}

// Run does the next steps, until the operation has ended, waits, or cannot continue.
// It returns a refusal or the error that stopped it. A waiting operation returns nil.
func (op *Operation) Run(ctx context.Context) error { return op.run(ctx, false) }

// run is Run; late says that it is not the client's call that runs it.
func (op *Operation) run(ctx context.Context, late bool) error {
	op.advancing.Lock()
	defer op.advancing.Unlock()
	defer op.markIfPanicked()
	if late {
		op.useRecordedScope()
	}
	switch op.Status().State {
	case Running, Waiting:
		err := op.advance(ctx)
		if err != nil && ctx.Err() != nil && op.Status().State == Unanswered {
			return op.settleAbandoned(ctx, err)
		}
		return err
	case Unanswered:
		return fault.New(fault.Busy, fault.Domain, "the operation %s was cut off; it continues as soon as it is known how far it came", op.rec.Kind)
	case Owed:
		return op.Status().Cause
	}
	return errors.Join(op.failures...)
}

// drainLimit bounds the wait for QEMU after a client has given up. A QEMU that answers takes milliseconds.
const drainLimit = time.Second

// settleAbandoned settles an operation whose client gave up during a step, because of cause. It leaves the
// operation to Recover if QEMU does not answer in time, or if the daemon ends.
func (op *Operation) settleAbandoned(ctx context.Context, cause error) error {
	if op.set.life().Err() != nil {
		return cause
	}
	ctx = context.WithoutCancel(ctx)
	drain, stop := context.WithTimeout(ctx, drainLimit)
	defer stop()
	if op.set.drain(drain) != nil {
		return cause
	}
	ctx, stop = context.WithTimeout(ctx, undoLimit)
	defer stop()
	if op.probe(ctx, op.gone); op.decided {
		return op.Err() // it happened before the client gave up
	}
	return cause
}

// markIfPanicked marks an operation whose step panicked as unanswered.
func (op *Operation) markIfPanicked() {
	if s := op.Status(); s.State == Running {
		op.setState(Unanswered, s.Step, nil)
	}
}

// Abort undoes an operation that is not decided yet. It reports whether it could.
func (op *Operation) Abort(ctx context.Context, cause error) (bool, error) {
	op.advancing.Lock()
	defer op.advancing.Unlock()
	if s := op.Status().State; s != Waiting || op.decided {
		return false, nil
	}
	return true, op.undoFrom(ctx, op.next, cause)
}

// advance continues in the present direction.
func (op *Operation) advance(ctx context.Context) error {
	if op.backward {
		return op.undoSteps(ctx)
	}
	return op.doSteps(ctx)
}

// doSteps does the steps from next on, and ends the operation after the last one.
func (op *Operation) doSteps(ctx context.Context) error {
	for ; op.next < len(op.steps); op.next++ {
		s := &op.steps[op.next]
		if !s.Effect.outlives(op.gone) {
			continue
		}
		op.setState(Running, s.Name, nil)
		err := op.doStep(ctx, s)
		if err == nil && op.next == op.decisive {
			err = op.decide()
		}
		if err != nil {
			if done, err := op.handleFailure(ctx, s, err); !done {
				return err
			}
		}
	}
	return op.finish(ctx)
}

// handleFailure handles a step that was not done. Done says that the next step follows all the same.
func (op *Operation) handleFailure(ctx context.Context, s *Step, err error) (done bool, _ error) {
	switch {
	case s.Waits && errors.Is(err, ErrWaiting):
		op.setState(Waiting, s.Name, nil)
		return false, nil
	case !op.decided && op.set.unanswered(err):
		op.setState(Unanswered, s.Name, err)
		return false, err
	case !op.decided:
		return false, op.undoFrom(ctx, op.next, err)
	case isFinal(err):
		op.set.log().Warn("operation step failed for good; next step follows", "kind", op.rec.Kind, "step", s.Name, "error", err)
		op.failures = append(op.failures, err)
		return true, nil
	}
	return false, op.retryLater(s.Name, err)
}

func (op *Operation) doStep(ctx context.Context, s *Step) error {
	if s.Do == nil {
		return nil
	}
	if err := failpoint.Err(op.rec.Kind + "." + s.Name); err != nil {
		return err
	}
	err := s.Do(ctx)
	if err == nil {
		failpoint.Reach(op.rec.Kind + "." + s.Name + ".done")
	}
	return err
}

// decide records that the operation goes forward from now on, if nothing else tells so.
func (op *Operation) decide() error {
	if op.rec.Decided || op.steps[op.decisive].Probe != nil || op.decisive == len(op.steps)-1 {
		op.decided = true
		return nil
	}
	op.rec.Decided = true
	err := op.writeRecord()
	op.decided, op.rec.Decided = err == nil, err == nil
	return err
}

// endsByRemoval reports whether the next daemon undoes the operation as long as the record exists.
func (op *Operation) endsByRemoval() bool {
	last := len(op.steps) - 1
	return !op.backward && !op.rec.Decided && (op.decisive > last || op.decisive == last && op.steps[last].Probe == nil)
}

// undoFrom undoes the steps up to and including from, because of cause.
func (op *Operation) undoFrom(ctx context.Context, from int, cause error) error {
	op.failures = append(op.failures, cause)
	op.next, op.backward = min(from, len(op.steps)-1), true
	if slices.ContainsFunc(op.steps, func(s Step) bool { return s.Waits }) {
		op.rec.Back = true
		if err := op.writeRecord(); err != nil {
			op.set.log().Warn("cannot record that the operation goes back", "kind", op.rec.Kind, "error", err)
		}
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer stop()
	return op.undoSteps(ctx)
}

// undoLimit bounds the undo that a caller waits for. Longer work is owed.
const undoLimit = 30 * time.Second

// undoSteps undoes the steps from next down to the first, and ends the operation.
func (op *Operation) undoSteps(ctx context.Context) error {
	for ; op.next >= 0; op.next-- {
		if err := op.undoStep(ctx, &op.steps[op.next]); err != nil {
			return errors.Join(errors.Join(op.failures...), op.retryLater(op.stepName(op.next), err))
		}
	}
	return op.finish(ctx)
}

// undoStep undoes one step, if its effect is there.
func (op *Operation) undoStep(ctx context.Context, s *Step) error {
	if s.Undo == nil || !s.Effect.outlives(op.gone) {
		return nil
	}
	op.setState(Running, s.Name, nil)
	failpoint.Reach(op.rec.Kind + "." + s.Name + ".undo")
	err := s.Undo(ctx)
	if err == nil || isFinal(err) {
		failpoint.Reach(op.rec.Kind + "." + s.Name + ".undone")
		return nil
	}
	return fmt.Errorf("cannot undo %s: %w", s.Name, err)
}

// finish ends an operation. If it is done and its record decides by removal, it
// goes back when the record cannot be removed.
func (op *Operation) finish(ctx context.Context) error {
	err := errors.Join(op.failures...)
	if e := op.set.finish(op); e != nil {
		e = fmt.Errorf("cannot remove the record of the operation %s: %w", op.rec.Kind, e)
		switch {
		case op.backward:
			return errors.Join(err, op.retryLater("", e))
		case op.endsByRemoval():
			op.decided = false
			return op.undoFrom(ctx, len(op.steps)-1, e)
		}
		op.rec.Decided = true
		if op.writeRecord() != nil {
			op.rec.Decided = false // then only a Probe tells
		}
		_ = op.retryLater("", e) // the request itself is done
		return err
	}
	op.mu.Lock()
	op.result = err
	op.mu.Unlock()
	op.setState(Ended, "", nil)
	return err
}

// recover asks how far an interrupted operation came, and continues from there.
func (op *Operation) recover(ctx context.Context) {
	if !op.advancing.TryLock() {
		return // it is being advanced, and learns the answer there
	}
	defer op.advancing.Unlock()
	defer op.markIfPanicked()
	op.useRecordedScope()
	switch op.Status().State {
	case Unanswered, Waiting:
		op.probe(ctx, Nothing)
	case Owed:
		op.wakeRetry()
	}
}

// end settles an operation after the process or the boot has ended.
func (op *Operation) end(ctx context.Context, gone Gone) {
	op.advancing.Lock()
	defer op.advancing.Unlock()
	defer op.markIfPanicked()
	op.useRecordedScope()
	switch op.Status().State {
	case Ended:
	case Owed:
		op.gone = gone
		_ = op.advance(ctx) // its state holds the result
	default:
		op.probe(ctx, gone)
	}
}

// probe finds out on which side of the decisive step the operation is, and continues there.
func (op *Operation) probe(ctx context.Context, gone Gone) {
	op.gone = gone
	verdict, err := op.probeDecisive(ctx)
	if err != nil {
		op.setState(Unanswered, op.stepName(op.decisive), err)
		return
	}
	op.set.log().Info("interrupted operation settled", "kind", op.rec.Kind, "id", op.rec.ID, "found", verdict.String())
	switch verdict {
	case Happened:
		op.decided = true
		op.next = op.decisive + 1
		if op.steps[op.decisive].Probe == nil {
			op.next = op.decisive
		}
		_ = op.doSteps(ctx)
	case NotYet:
		op.resumeWait(ctx)
	default:
		op.next, op.backward = min(op.decisive, len(op.steps)-1), true
		_ = op.undoSteps(ctx)
	}
}

// probeDecisive asks the record, or the Probe of the decisive step, whether that step was made.
func (op *Operation) probeDecisive(ctx context.Context) (Verdict, error) {
	if op.rec.Decided {
		return Happened, nil
	}
	if op.rec.Back || op.decisive == len(op.steps) {
		return Never, nil
	}
	s := &op.steps[op.decisive]
	if s.Probe == nil || !s.Effect.outlives(op.gone) {
		return Never, nil
	}
	return s.Probe(ctx, op.gone)
}

// resumeWait undoes the steps after the first one that waits, and continues there.
func (op *Operation) resumeWait(ctx context.Context) {
	first := slices.IndexFunc(op.steps, func(s Step) bool { return s.Waits })
	for i := op.decisive - 1; i > first; i-- {
		if err := op.undoStep(ctx, &op.steps[i]); err != nil {
			op.setState(Unanswered, op.stepName(i), err)
			return
		}
	}
	op.next = max(first, 0)
	_ = op.doSteps(ctx)
}
