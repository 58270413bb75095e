package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const lastPause = 5 * time.Minute

// steadyRun is how long a guest must run before its next crash counts as the first again.
const steadyRun = 2 * lastPause

// mostAutostarts is how often a start at boot is tried, which takes about an hour.
const mostAutostarts = 20

// pauseBefore returns the pause before the start that follows the nth crash in a row.
func pauseBefore(n int) time.Duration {
	pause := time.Duration(0)
	for ; n > 1 && pause < lastPause; n-- {
		pause = max(machine.FirstPause, 2*pause)
	}
	return min(pause, lastPause)
}

// noteCrash records, beside the loop, that a guest is to be started again.
func noteCrash(r *machine.Registry, uuid string) {
	d := machine.PendingStart{Boot: r.Boot, Crashed: true}
	r.PendingStarts.Mu.Lock()
	r.PendingStarts.Left[uuid] = d
	r.PendingStarts.Mu.Unlock()
	if err := r.Store.Put(machine.PendingStartKind, uuid, d); err != nil {
		r.Log.Error("cannot record that a crashed guest must be started again", "uuid", uuid, "error", err)
	}
	failpoint.Reach("revive.noted")
}

// startAgain starts the guest after its pause. It runs in the loop.
func startAgain(g *machine.Guest, why string) {
	v := &g.Restarts
	v.Stop()
	if time.Since(v.LastCrash) > steadyRun {
		v.Crashes = 0
	}
	v.Crashes++
	v.LastCrash = time.Now()
	pause := pauseBefore(v.Crashes)
	v.Message = fmt.Sprintf("%s (crash %d in a row, at %s); on_crash requests a restart, which is tried after %v; cancel it with virsh destroy %s",
		why, v.Crashes, v.LastCrash.UTC().Format(time.TimeOnly+" MST"), pause, fault.Word(g.Record.Name))
	g.Log.Warn("guest crashed; starting it again after a pause", "cause", why, "crashes", v.Crashes, "pause", pause)
	startAfter(g, pause)
}

// startAfter starts the guest after a pause. It runs in the loop.
func startAfter(g *machine.Guest, pause time.Duration) {
	v := &g.Restarts
	ctx, cancel := context.WithCancelCause(g.Reg.Life)
	v.Cancel = func() { cancel(errors.New("it is started or given up")) }
	g.Publish()
	go reviveAfter(ctx, g, scope.Daemon("the restart of a guest that crashed"), pause)
}

// reviveAfter starts the guest after a pause, unless ctx ends: the guest was started otherwise, or the
// start was given up.
func reviveAfter(ctx context.Context, g *machine.Guest, sc scope.Scope, pause time.Duration) {
	wait := time.NewTimer(pause)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return
	case <-g.Ended:
		return
	}
	failpoint.Reach("revive.start")
	err := g.Perform(ctx, sc, lifecycle.Start, domain.JobStart, 0, func() (machine.Work, error) {
		if ctx.Err() != nil || !toRevive(g) {
			return nil, fault.New(fault.Aborted, fault.Domain, "the pending start was cancelled")
		}
		return launch.PlanAnyStart(g, launch.StartOptions{})
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	_ = g.Change(ctx, sc, "", func() error { // otherwise it is gone
		if ctx.Err() == nil {
			notRevived(g, err)
		}
		return nil
	})
}

// toRevive reports whether the pending start is still wanted. It runs in the loop.
func toRevive(g *machine.Guest) bool {
	if g.Restarts.Boot {
		d, is := g.Reg.IsStartPending(g.UUID)
		return is && g.Inactive != nil && (d.Once || g.Record.Autostart)
	}
	return g.Inactive != nil && lifecycle.RestartsOnCrash(g.Inactive.OnCrash)
}

// notRevived decides how to go on after a failed start. It runs in the loop.
func notRevived(g *machine.Guest, err error) {
	if fault.Is(err, fault.Aborted) || g.Instance != nil {
		g.CancelRestart()
		return
	}
	if g.Restarts.Boot {
		autostartAgain(g, err)
		return
	}
	startAgain(g, err.Error())
}

// autostartAgain repeats a failed start at boot. It runs in the loop.
func autostartAgain(g *machine.Guest, err error) {
	v := &g.Restarts
	v.Stop()
	*v = machine.Restarts{Boot: true, Crashes: v.Crashes + 1}
	const said = "cannot start a guest that is marked for autostart"
	if v.Crashes >= mostAutostarts {
		g.Reg.HasStarted(g.UUID)
		v.Message = fmt.Sprintf("autostart failed (%v) after %d tries and was given up; start the domain manually", err, v.Crashes)
		g.Log.Error(said+"; giving up", "error", err, "tries", v.Crashes)
		g.Publish()
		return
	}
	pause := pauseBefore(v.Crashes + 1)
	v.Message = fmt.Sprintf("autostart failed (%v; try %d, at %s) and is tried again after %v; cancel it with virsh destroy %s",
		err, v.Crashes, time.Now().UTC().Format(time.TimeOnly+" MST"), pause, fault.Word(g.Record.Name))
	g.Log.Error(said, "error", err, "tries", v.Crashes, "pause", pause)
	startAfter(g, pause)
}
