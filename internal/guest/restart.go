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

const maxRestartPause = 5 * time.Minute

// crashCountReset is how long a guest must run before its next crash counts as the first again.
const crashCountReset = 2 * maxRestartPause

// maxAutostartTries is how often a start at boot is tried, which takes about an hour.
const maxAutostartTries = 20

// restartPause returns the pause before the start that follows the nth crash in a row.
func restartPause(n int) time.Duration {
	pause := time.Duration(0)
	for ; n > 1 && pause < maxRestartPause; n-- {
		pause = max(machine.FirstPause, 2*pause)
	}
	return min(pause, maxRestartPause)
}

// recordCrash records, beside the loop, that a guest is to be started again.
func recordCrash(r *machine.Registry, uuid string) {
	d := machine.PendingStart{Boot: r.Boot, Crashed: true}
	r.PendingStarts.Mu.Lock()
	r.PendingStarts.Left[uuid] = d
	r.PendingStarts.Mu.Unlock()
	if err := r.Store.Put(machine.PendingStartKind, uuid, d); err != nil {
		r.Log.Error("cannot record that a crashed guest must be started again", "uuid", uuid, "error", err)
	}
	failpoint.Reach("revive.noted")
}

// restartGuest starts the guest after its pause. It runs in the loop.
func restartGuest(g *machine.Guest, why string) {
	v := &g.Restarts
	v.Stop()
	if time.Since(v.LastCrash) > crashCountReset {
		v.Crashes = 0
	}
	v.Crashes++
	v.LastCrash = time.Now()
	pause := restartPause(v.Crashes)
	v.Message = fmt.Sprintf("%s (crash %d in a row, at %s); on_crash requests a restart, which is tried after %v; cancel it with virsh destroy %s",
		why, v.Crashes, v.LastCrash.UTC().Format(time.TimeOnly+" MST"), pause, fault.Word(g.Record.Name))
	g.Log.Warn("guest crashed; starting it again after a pause", "cause", why, "crashes", v.Crashes, "pause", pause)
	scheduleStart(g, pause)
}

// scheduleStart starts the guest after a pause. It runs in the loop.
func scheduleStart(g *machine.Guest, pause time.Duration) {
	v := &g.Restarts
	ctx, cancel := context.WithCancelCause(g.Reg.Life)
	v.Cancel = func() { cancel(errors.New("it is started or given up")) }
	g.Publish()
	go startAfterPause(ctx, g, scope.Daemon("the restart of a guest that crashed"), pause)
}

// startAfterPause starts the guest after a pause, unless ctx ends: the guest was started otherwise, or the
// start was given up.
func startAfterPause(ctx context.Context, g *machine.Guest, sc scope.Scope, pause time.Duration) {
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
		if ctx.Err() != nil || !isStartWanted(g) {
			return nil, fault.New(fault.Aborted, fault.Domain, "the pending start was cancelled")
		}
		return launch.PlanAnyStart(g, launch.StartOptions{})
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	_ = g.Change(ctx, sc, "", func() error { // otherwise it is gone
		if ctx.Err() == nil {
			onStartFailed(g, err)
		}
		return nil
	})
}

// isStartWanted reports whether the pending start is still wanted. It runs in the loop.
func isStartWanted(g *machine.Guest) bool {
	if g.Restarts.Boot {
		d, is := g.Reg.IsStartPending(g.UUID)
		return is && g.Inactive != nil && (d.Once || g.Record.Autostart)
	}
	return g.Inactive != nil && lifecycle.RestartsOnCrash(g.Inactive.OnCrash)
}

// onStartFailed decides how to go on after a failed start. It runs in the loop.
func onStartFailed(g *machine.Guest, err error) {
	if fault.Is(err, fault.Aborted) || g.Instance != nil {
		g.CancelRestart()
		return
	}
	if g.Restarts.Boot {
		retryAutostart(g, err)
		return
	}
	restartGuest(g, err.Error())
}

// retryAutostart repeats a failed start at boot. It runs in the loop.
func retryAutostart(g *machine.Guest, err error) {
	v := &g.Restarts
	v.Stop()
	*v = machine.Restarts{Boot: true, Crashes: v.Crashes + 1}
	const said = "cannot start a guest that is marked for autostart"
	if v.Crashes >= maxAutostartTries {
		g.Reg.HasStarted(g.UUID)
		v.Message = fmt.Sprintf("autostart failed (%v) after %d tries and was given up; start the domain manually", err, v.Crashes)
		g.Log.Error(said+"; giving up", "error", err, "tries", v.Crashes)
		g.Publish()
		return
	}
	pause := restartPause(v.Crashes + 1)
	v.Message = fmt.Sprintf("autostart failed (%v; try %d, at %s) and is tried again after %v; cancel it with virsh destroy %s",
		err, v.Crashes, time.Now().UTC().Format(time.TimeOnly+" MST"), pause, fault.Word(g.Record.Name))
	g.Log.Error(said, "error", err, "tries", v.Crashes, "pause", pause)
	scheduleStart(g, pause)
}
