package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// verbAction is how a verb works on a set and on each of its guests.
type verbAction struct {
	order direction
	// strict skips the dependents of a guest that failed.
	strict bool
	// waitsForEnd says that the verb waits for guests to end.
	waitsForEnd bool
	// needsMarks refuses a guest whose marks cannot be parsed: its order is unknown.
	needsMarks bool
	// isDone says that a guest is in the wanted state already.
	isDone func(*guest.Guest) bool
	// do applies the verb. A result without outcome means done, or failed if it has an error.
	do func(ctx context.Context, t *guestTurn) Result
}

// guestTurn is one guest's part of a run.
type guestTurn struct {
	*run
	guest *guest.Guest
	// cancelled ends when the run is cancelled: a turn that waits for the guest's own action then stops
	// waiting.
	cancelled context.Context
}

func (t *guestTurn) options() *Options { return &t.request.Options }

// actions are the verbs on existing guests. Destroy follows the order, but neither a failure nor a dependency
// cycle stops it: it is the last resort.
var actions = map[Verb]verbAction{
	Start:    {order: dependenciesFirst, strict: true, needsMarks: true, isDone: active, do: start},
	Restore:  {order: dependenciesFirst, strict: true, needsMarks: true, isDone: active, do: restore},
	Shutdown: {order: dependentsFirst, strict: true, waitsForEnd: true, isDone: inactive, do: shutdown},
	Destroy:  {order: dependentsFirst, isDone: inactive, do: destroy},
	Save:     {order: dependentsFirst, strict: true, isDone: hasNoProcess, do: save},
	Suspend:  {isDone: paused, do: withoutOptions(guest.Suspend)},
	Resume:   {isDone: running, do: withoutOptions(guest.Resume)},
	Reboot:   {isDone: never, do: reboot},
	Reset:    {isDone: never, do: withoutOptions(guest.Reset)},
	Undefine: {isDone: undefined, do: undefine},
	Set:      {needsMarks: true, isDone: never, do: set},
}

func active(g *guest.Guest) bool    { return g.View().State.Active() }
func never(*guest.Guest) bool       { return false }
func undefined(g *guest.Guest) bool { return !g.View().Persistent }

// inactive says that a guest has no process and no pending start. A guest that crashed and will be restarted
// has a pending start.
func inactive(g *guest.Guest) bool { return hasNoProcess(g) && !g.View().StartPending }

// hasNoProcess says that a guest has no process and none is being started.
func hasNoProcess(g *guest.Guest) bool {
	switch g.Job().Kind {
	case domain.JobStart, domain.JobRestore:
		return false
	}
	return !active(g)
}

func paused(g *guest.Guest) bool { return guest.IsPaused(g.View()) }

// running ignores the last state of a monitor that no longer answers.
func running(g *guest.Guest) bool {
	v := g.View()
	return (v.State == domain.Running || v.State == domain.Blocked) && v.StuckSince.IsZero()
}

// withoutOptions makes a verb of a function that takes no options.
func withoutOptions(do func(context.Context, *guest.Guest, scope.Scope) error) func(context.Context, *guestTurn) Result {
	return func(ctx context.Context, t *guestTurn) Result { return Result{Error: do(ctx, t.guest, t.scope)} }
}

func start(ctx context.Context, t *guestTurn) Result {
	o := t.options()
	return Result{Error: launch.Start(ctx, t.guest, t.scope, launch.StartOptions{
		Paused: o.Paused, ForceBoot: o.ForceBoot, BypassCache: o.BypassCache, Priority: t.fleet.MemberOf(t.guest).Marks.Priority,
	})}
}

func restore(ctx context.Context, t *guestTurn) Result {
	if v := t.guest.View(); !v.ManagedSave {
		return Result{Error: fault.New(fault.WrongState, fault.Domain, "domain %q has no saved image to continue from; start it", v.Name)}
	}
	if t.options().ForceBoot {
		return Result{Error: fault.New(fault.Invalid, fault.Call, "restore cannot discard the saved image; use start for that")}
	}
	return start(ctx, t)
}

func destroy(ctx context.Context, t *guestTurn) Result {
	return Result{Error: guest.Destroy(ctx, t.guest, t.scope, t.options().Graceful)}
}

func save(ctx context.Context, t *guestTurn) Result {
	return Result{Error: savestate.ManagedSave(ctx, t.guest, t.scope, savestate.SaveOptions{BypassCache: t.options().BypassCache})}
}

func reboot(ctx context.Context, t *guestTurn) Result {
	return Result{Error: guest.Reboot(ctx, t.guest, t.scope, t.options().Mode)}
}

func undefine(ctx context.Context, t *guestTurn) Result {
	o := t.options()
	err := guest.Undefine(ctx, t.guest, t.scope, guest.UndefineOptions{ManagedSave: o.ManagedSave, NVRAM: o.NVRAM, KeepNVRAM: o.KeepNVRAM, TPM: o.TPM})
	if err == nil && t.guest.View().State.Active() {
		return Result{Note: "it is transient now, and gone when it ends"}
	}
	return Result{Error: err}
}

// shutdownTimeout is how long a guest may take to shut down by default.
const shutdownTimeout = 90 * time.Second

// shutdown asks a guest to shut down and waits until it has. With a grace it destroys the guest after that.
func shutdown(ctx context.Context, t *guestTurn) Result {
	grace := t.options().Grace
	if t.guest.View().StartPending { // the guest has no process to ask
		return Result{Error: guest.Destroy(ctx, t.guest, t.scope, false), Note: "it was about to be started again, and is not"}
	}
	err := askAndWait(ctx, t)
	switch {
	case err == nil || inactive(t.guest):
		return Result{}
	case t.cancelled.Err() != nil:
		return Result{Outcome: Cancelled, Error: context.Cause(t.cancelled), Note: "it was asked to shut down"}
	case grace == 0 || ctx.Err() != nil:
		return Result{Error: err}
	}
	if failure := guest.Destroy(ctx, t.guest, t.scope, false); failure != nil {
		return Result{Error: failure, Note: err.Error()}
	}
	return Result{Note: fmt.Sprintf("destroyed: %v", err)}
}

func askAndWait(ctx context.Context, t *guestTurn) error {
	v := t.guest.View()
	if v.State == domain.Paused {
		return fault.New(fault.WrongState, fault.Domain, "domain %q is paused and cannot shut down; resume it, or destroy it", v.Name)
	}
	patience := t.options().Grace
	if patience == 0 && t.request.Timeout == 0 {
		patience = shutdownTimeout
	}
	if patience > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, patience, fault.New(fault.Timeout, fault.Domain,
			"domain %q was asked to shut down and did not within %v", v.Name, patience))
		defer stop()
	}
	ended, forget := t.endWatcher.watch(t.guest)
	defer forget()
	if err := guest.Shutdown(ctx, t.guest, t.scope, t.options().Mode); err != nil {
		return err
	}
	ctx, stop := cancelWith(ctx, t.cancelled)
	defer stop()
	return waitForEnd(ctx, t.guest, ended)
}

// cancelWith cancels ctx when another context ends.
func cancelWith(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func set(ctx context.Context, t *guestTurn) Result {
	return t.fleet.applySettings(ctx, t.scope, t.guest, t.settings, t.request.Sees)
}
