package operation

import (
	"context"
	"errors"
)

// Lifetime says how long the effect of a step lasts, the shortest first.
type Lifetime int

// Lifetimes. After the end of QEMU what lasts as long as Process is gone, and
// after a reboot what lasts as long as Boot, too.
const (
	Process Lifetime = iota
	Boot
	Lasting
)

// Step is one step of an operation. Do and Undo may be repeated, by this daemon
// or another, whatever became of them before.
type Step struct {
	// Name is unique within the kind. The fail points <kind>.<name>, with .done,
	// .undo and .undone behind it, are those of the step.
	Name string
	// Effect is how long what Do makes has to be looked after. That of the decisive step
	// lasts as long as those of the steps behind it.
	Effect Lifetime
	// Decisive marks the one step from which on an operation goes forward. Where no
	// step is, the removal of the record decides.
	Decisive bool
	// Waits says that Do may return ErrWaiting. Recovery continues at the first such
	// step when Probe says NotYet.
	Waits bool
	Do    func(context.Context) error
	// Undo takes back what Do may have made; nil: there is nothing to take back.
	Undo func(context.Context) error
	// Probe asks on which side of the decisive step the world is. Where the effect of
	// that step has gone it is not asked: the step was never made.
	Probe func(ctx context.Context, gone Gone) (Verdict, error)
}

// Gone says what has ended since an operation was begun.
type Gone int

// What may be gone.
const (
	Nothing Gone = iota
	TheProcess
	TheBoot
)

// outlives reports whether an effect is still there.
func (l Lifetime) outlives(g Gone) bool { return int(l) >= int(g) }

// Verdict is what a Probe found.
type Verdict int

// Verdicts.
const (
	// Never: the decisive step was not made and will not be; the operation goes back.
	Never Verdict = iota
	// NotYet: it may still be made, and the steps before the first that waits were; the
	// operation waits on.
	NotYet
	// Happened: it was made; the operation goes forward.
	Happened
)

var verdictNames = [...]string{"not made", "not made yet", "made"}

func (v Verdict) String() string { return verdictNames[v] }

// ErrWaiting is what Do of a step that waits returns: the operation is waiting
// then, and continues at this step when somebody wakes it.
var ErrWaiting = errors.New("the operation waits")

// final is an error that no repetition mends.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks the error of a step behind the decisive one as one that no
// repetition mends. The operation reports it and continues with the next step.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

func isFinal(err error) bool {
	var f final
	return errors.As(err, &f)
}
