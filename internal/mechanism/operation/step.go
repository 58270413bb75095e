package operation

import (
	"context"
	"errors"
)

// Lifetime says how long the effect of a step lasts, shortest first.
type Lifetime int

// Lifetimes. After the end of QEMU effects of Process are gone, and
// after a reboot those of Boot, too.
const (
	Process Lifetime = iota
	Boot
	Lasting
)

// Step is one step of an operation. Do and Undo may be repeated, by this daemon
// or another, whatever the earlier results were.
type Step struct {
	// Name is unique within the kind. The step's fail points are <kind>.<name> and the same
	// with .done, .undo and .undone.
	Name string
	// Effect is how long the result of Do needs care. The effect of the decisive step
	// lasts as long as those of the steps after it.
	Effect Lifetime
	// Decisive marks the one step from which on an operation goes forward. Without
	// such a step the removal of the record decides.
	Decisive bool
	// Waits says that Do may return ErrWaiting. Recovery continues at the first such
	// step when Probe says NotYet.
	Waits bool
	Do    func(context.Context) error
	// Undo reverts the possible effects of Do; nil: there are none to revert.
	Undo func(context.Context) error
	// Probe asks on which side of the decisive step the world is. It is not called if the
	// effect of that step has gone: the step then counts as not made.
	Probe func(ctx context.Context, gone Gone) (Verdict, error)
}

// Gone says whether the process or the boot has ended since an operation was begun.
type Gone int

// Values of Gone.
const (
	Nothing Gone = iota
	TheProcess
	TheBoot
)

// outlives reports whether an effect is still there.
func (l Lifetime) outlives(g Gone) bool { return int(l) >= int(g) }

// Verdict is the answer of a Probe.
type Verdict int

// Verdicts.
const (
	// Never: the decisive step was not made and will not be; the operation goes back.
	Never Verdict = iota
	// NotYet: it may still be made, and the steps before the first waiting one were made; the
	// operation keeps waiting.
	NotYet
	// Happened: it was made; the operation goes forward.
	Happened
)

var verdictNames = [...]string{"not made", "not made yet", "made"}

func (v Verdict) String() string { return verdictNames[v] }

// ErrWaiting is what Do of a waiting step returns. The operation is waiting
// then, and continues at this step after Wake.
var ErrWaiting = errors.New("the operation waits")

// final is an error that a retry cannot fix.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks the error of a step after the decisive one as one that a retry
// cannot fix. The operation reports it and continues with the next step.
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
