package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// action is how a verb is done to a set and to one guest of it.
type action struct {
	order direction
	// strict skips those whose turn comes after one that failed.
	strict bool
	// waits says that the end of guests is waited for.
	waits bool
	// needsMarks refuses a guest whose marks cannot be read: its place is unknown.
	needsMarks bool
	// there says that a guest is in the wanted state already.
	there func(*guest.Guest) bool
	// do does it. A result without outcome is done, or failed if it has an error.
	do func(ctx context.Context, t *turn) Result
}

// turn is one guest's part of a run.
type turn struct {
	*run
	guest *guest.Guest
	// cancelled ends when the run is to end: who waits for a guest's own doing
	// stops waiting.
	cancelled context.Context
}

func (t *turn) options() *Options { return &t.request.Options }

// actions are the verbs that are done to guests which are there. Pulling the plug
// keeps to the order and is not stopped by it, nor by an order that goes in a
// circle: it is what is left when nothing else helps.
var actions = map[Verb]action{
	Start:    {order: upwards, strict: true, needsMarks: true, there: active, do: start},
	Restore:  {order: upwards, strict: true, needsMarks: true, there: active, do: restore},
	Shutdown: {order: backward, strict: true, waits: true, there: inactive, do: shutdown},
	Destroy:  {order: backward, there: inactive, do: destroy},
	Save:     {order: backward, strict: true, there: off, do: save},
	Suspend:  {there: paused, do: plain((*guest.Guest).Suspend)},
	Resume:   {there: running, do: plain((*guest.Guest).Resume)},
	Reboot:   {there: never, do: reboot},
	Reset:    {there: never, do: plain((*guest.Guest).Reset)},
	Undefine: {there: undefined, do: undefine},
	Set:      {needsMarks: true, there: never, do: set},
}

func active(g *guest.Guest) bool    { return g.View().State.Active() }
func never(*guest.Guest) bool       { return false }
func undefined(g *guest.Guest) bool { return !g.View().Persistent }

// inactive is a guest that has no process and does not wait for one either, as one does that has crashed and is to be
// started again.
func inactive(g *guest.Guest) bool { return off(g) && !g.View().Due }

// off is a guest that has no process and is not just being given one.
func off(g *guest.Guest) bool {
	switch g.Job().Kind {
	case domain.JobStart, domain.JobRestore:
		return false
	}
	return !active(g)
}

func paused(g *guest.Guest) bool { return g.View().IsPaused() }

// running does not believe what a monitor said that no longer answers.
func running(g *guest.Guest) bool {
	v := g.View()
	return (v.State == domain.Running || v.State == domain.Blocked) && v.StuckSince.IsZero()
}

func plain(do func(*guest.Guest, context.Context, scope.Scope) error) func(context.Context, *turn) Result {
	return func(ctx context.Context, t *turn) Result { return Result{Error: do(t.guest, ctx, t.scope)} }
}

func start(ctx context.Context, t *turn) Result {
	o := t.options()
	return Result{Error: t.guest.Start(ctx, t.scope, guest.StartOptions{
		Paused: o.Paused, ForceBoot: o.ForceBoot, BypassCache: o.BypassCache, Priority: t.fleet.Of(t.guest).Marks.Priority,
	})}
}

func restore(ctx context.Context, t *turn) Result {
	if v := t.guest.View(); !v.ManagedSave {
		return Result{Error: fault.New(fault.WrongState, fault.Domain, "domain %q has no saved image to continue from; start it", v.Name)}
	}
	if t.options().ForceBoot {
		return Result{Error: fault.New(fault.Invalid, fault.Call, "restore cannot discard the saved image; use start for that")}
	}
	return start(ctx, t)
}

func destroy(ctx context.Context, t *turn) Result {
	return Result{Error: t.guest.Destroy(ctx, t.scope, t.options().Graceful)}
}

func save(ctx context.Context, t *turn) Result {
	return Result{Error: t.guest.ManagedSave(ctx, t.scope, guest.SaveOptions{BypassCache: t.options().BypassCache})}
}

func reboot(ctx context.Context, t *turn) Result {
	return Result{Error: t.guest.Reboot(ctx, t.scope, t.options().Mode)}
}

func undefine(ctx context.Context, t *turn) Result {
	o := t.options()
	err := t.guest.Undefine(ctx, t.scope, guest.UndefineOptions{ManagedSave: o.ManagedSave, NVRAM: o.NVRAM, KeepNVRAM: o.KeepNVRAM, TPM: o.TPM})
	if err == nil && t.guest.View().State.Active() {
		return Result{Note: "it is transient now, and gone when it ends"}
	}
	return Result{Error: err}
}

// usualPatience is how long a guest may take to turn itself off, where the
// request says nothing.
const usualPatience = 90 * time.Second

// shutdown asks a guest and waits until it has turned itself off. With a grace it
// loses its power after that.
func shutdown(ctx context.Context, t *turn) Result {
	grace := t.options().Grace
	if t.guest.View().Due { // there is nobody to ask
		return Result{Error: t.guest.Destroy(ctx, t.scope, false), Note: "it was about to be started again, and is not"}
	}
	err := askAndWait(ctx, t)
	switch {
	case err == nil || inactive(t.guest):
		return Result{}
	case t.cancelled.Err() != nil:
		return Result{Outcome: Cancelled, Error: context.Cause(t.cancelled), Note: "it was asked to turn itself off"}
	case grace == 0 || ctx.Err() != nil:
		return Result{Error: err}
	}
	if failure := t.guest.Destroy(ctx, t.scope, false); failure != nil {
		return Result{Error: failure, Note: err.Error()}
	}
	return Result{Note: fmt.Sprintf("destroyed: %v", err)}
}

func askAndWait(ctx context.Context, t *turn) error {
	v := t.guest.View()
	if v.State == domain.Paused {
		return fault.New(fault.WrongState, fault.Domain, "domain %q is paused and cannot turn itself off; resume it, or destroy it", v.Name)
	}
	patience := t.options().Grace
	if patience == 0 && t.request.Timeout == 0 {
		patience = usualPatience
	}
	if patience > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, patience, fault.New(fault.Timeout, fault.Domain,
			"domain %q was asked to turn itself off and did not within %v", v.Name, patience))
		defer stop()
	}
	ended, forget := t.endings.expect(t.guest)
	defer forget()
	if err := t.guest.Shutdown(ctx, t.scope, t.options().Mode); err != nil {
		return err
	}
	ctx, stop := until(ctx, t.cancelled)
	defer stop()
	return wait(ctx, t.guest, ended)
}

// until ends ctx when another one ends.
func until(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func set(ctx context.Context, t *turn) Result {
	return t.fleet.set(ctx, t.scope, t.guest, t.settings, t.request.Sees)
}
