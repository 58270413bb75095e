package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A guest whose QEMU ends unexpectedly, or is killed by another program, is started again if its on_crash
// says so: at once the first time, then after growing pauses. The store records this before any resource of
// the ended process is released, so that the next daemon starts the guest if this one is killed. A failed
// start at the host's boot, for lack of a pool or network for example, is repeated in the same way.

// The pauses before the starts. The first start is made at once.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// steadyRun is how long a guest must run before its next crash counts as the first again.
	steadyRun = 2 * lastPause
	// mostAutostarts is how often a start at boot is tried, which takes about an hour.
	mostAutostarts = 20
)

// pauseBefore returns the pause before the start that follows the nth crash in a row.
func pauseBefore(n int) time.Duration {
	pause := time.Duration(0)
	for ; n > 1 && pause < lastPause; n-- {
		pause = max(firstPause, 2*pause)
	}
	return min(pause, lastPause)
}

// revival holds a guest's crashes and its pending start.
type revival struct {
	boot    bool // the pending start is one at boot, without a crash
	crashes int  // crashes without a steady run in between; or failed starts at boot
	last    time.Time
	cause   string // how the last process ended
	words   string // for an administrator; empty: no crash
	cancel  func() // nil: no start is pending
}

// stop cancels the pending start.
func (v *revival) stop() {
	if v.cancel != nil {
		v.cancel()
		v.cancel = nil
	}
}

// noteCrash records, beside the loop, that a guest is to be started again.
func (r *Registry) noteCrash(uuid string) {
	d := due{Boot: r.Boot, Crashed: true}
	r.dues.mu.Lock()
	r.dues.left[uuid] = d
	r.dues.mu.Unlock()
	if err := r.store.Put(dueKind, uuid, d); err != nil {
		r.log.Error("cannot record that a crashed guest must be started again", "uuid", uuid, "error", err)
	}
	failpoint.Reach("revive.noted")
}

// startAgain starts the guest after its pause. It runs in the loop.
func (g *Guest) startAgain(why string) {
	v := &g.revival
	v.stop()
	if time.Since(v.last) > steadyRun {
		v.crashes = 0
	}
	v.crashes++
	v.last = time.Now()
	pause := pauseBefore(v.crashes)
	v.words = fmt.Sprintf("%s (crash %d in a row, at %s); on_crash requests a restart, which is tried after %v; cancel it with virsh destroy %s",
		why, v.crashes, v.last.UTC().Format(time.TimeOnly+" MST"), pause, fault.Word(g.record.Name))
	g.log.Warn("guest crashed; starting it again after a pause", "cause", why, "crashes", v.crashes, "pause", pause)
	g.startAfter(pause)
}

// startAfter starts the guest after a pause. It runs in the loop.
func (g *Guest) startAfter(pause time.Duration) {
	v := &g.revival
	ctx, cancel := context.WithCancelCause(g.reg.life)
	v.cancel = func() { cancel(errors.New("it is started or given up")) }
	g.publish()
	go g.reviveAfter(ctx, scope.Daemon("the restart of a guest that crashed"), pause)
}

// reviveAfter starts the guest after a pause, unless ctx ends: the guest was started otherwise, or the
// start was given up.
func (g *Guest) reviveAfter(ctx context.Context, sc scope.Scope, pause time.Duration) {
	wait := time.NewTimer(pause)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return
	case <-g.ended:
		return
	}
	failpoint.Reach("revive.start")
	err := g.perform(ctx, sc, lifecycle.Start, domain.JobStart, 0, func() (work, error) {
		if ctx.Err() != nil || !g.toRevive() {
			return nil, fault.New(fault.Aborted, fault.Domain, "the pending start was cancelled")
		}
		return g.planAnyStart(StartOptions{})
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	_ = g.change(ctx, sc, "", func() error { // otherwise it is gone
		if ctx.Err() == nil {
			g.notRevived(err)
		}
		return nil
	})
}

// toRevive reports whether the pending start is still wanted. It runs in the loop.
func (g *Guest) toRevive() bool {
	if g.revival.boot {
		d, is := g.reg.isDue(g.uuid)
		return is && g.inactive != nil && (d.Once || g.record.Autostart)
	}
	return g.inactive != nil && lifecycle.Revives(g.inactive.OnCrash)
}

// notRevived decides how to go on after a failed start. It runs in the loop.
func (g *Guest) notRevived(err error) {
	if fault.Is(err, fault.Aborted) || g.run != nil {
		g.giveUpRevival()
		return
	}
	if g.revival.boot {
		g.autostartAgain(err)
		return
	}
	g.startAgain(err.Error())
}

// autostartAgain repeats a failed start at boot. It runs in the loop.
func (g *Guest) autostartAgain(err error) {
	v := &g.revival
	v.stop()
	*v = revival{boot: true, crashes: v.crashes + 1}
	const said = "cannot start a guest that is marked for autostart"
	if v.crashes >= mostAutostarts {
		g.reg.hasRun(g.uuid)
		v.words = fmt.Sprintf("autostart failed (%v) after %d tries and was given up; start the domain manually", err, v.crashes)
		g.log.Error(said+"; giving up", "error", err, "tries", v.crashes)
		g.publish()
		return
	}
	pause := pauseBefore(v.crashes + 1)
	v.words = fmt.Sprintf("autostart failed (%v; try %d, at %s) and is tried again after %v; cancel it with virsh destroy %s",
		err, v.crashes, time.Now().UTC().Format(time.TimeOnly+" MST"), pause, fault.Word(g.record.Name))
	g.log.Error(said, "error", err, "tries", v.crashes, "pause", pause)
	g.startAfter(pause)
}

// giveUpRevival cancels a pending start and leaves the guest shut off. It runs in the loop.
func (g *Guest) giveUpRevival() {
	g.revival.stop()
	g.revival = revival{}
	g.reg.hasRun(g.uuid)
	g.publish()
}

// revived records that the guest runs again.
func (g *Guest) revived() {
	v := &g.revival
	if v.boot {
		v.stop()
		*v = revival{}
	}
	if v.cancel == nil {
		return
	}
	v.stop()
	v.words = fmt.Sprintf("started again after its QEMU had ended unexpectedly (crash %d in a row, at %s)", v.crashes, v.last.UTC().Format(time.TimeOnly+" MST"))
}
