package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lifecycle"
)

// A guest whose QEMU ends by itself, or is killed by somebody else, is started again
// where its on_crash says so: at once the first time, and then later and later. That
// it is to be started is noted with the guests that this boot has still to start
// before anything of the ended process is taken away, so that a daemon that is
// killed meanwhile leaves it to the next one.

// Pauses before the starts: the first is made at once.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// steadyRun is how long a guest lives without a crash that is a first one again.
	steadyRun = 2 * lastPause
)

// pauseBefore is how long the start waits that follows the nth crash in a row.
func pauseBefore(n int) time.Duration {
	pause := time.Duration(0)
	for ; n > 1 && pause < lastPause; n-- {
		pause = max(firstPause, 2*pause)
	}
	return min(pause, lastPause)
}

// revival is what is known of a guest's crashes, and the start that waits.
type revival struct {
	crashes int // without a steady run in between
	last    time.Time
	cause   string // how the last process ended
	words   string // for an administrator; empty: there was none
	cancel  func() // nil: no start waits
}

// stop has no start wait any more.
func (v *revival) stop() {
	if v.cancel != nil {
		v.cancel()
		v.cancel = nil
	}
}

// noteCrash notes, beside the loop, that a guest is to be started again.
func (r *Registry) noteCrash(uuid string) {
	d := due{Boot: r.Boot, Crashed: true}
	r.dues.mu.Lock()
	r.dues.left[uuid] = d
	r.dues.mu.Unlock()
	if err := r.store.Put(dueKind, uuid, d); err != nil {
		r.log.Error("cannot note that a crashed guest is to be started again", "uuid", uuid, "error", err)
	}
	failpoint.Reach("revive.noted")
}

// startAgain has the guest started when its pause is over. It runs in the loop.
func (g *Guest) startAgain(why string) {
	v := &g.revival
	v.stop()
	if time.Since(v.last) > steadyRun {
		v.crashes = 0
	}
	v.crashes++
	v.last = time.Now()
	pause := pauseBefore(v.crashes)
	v.words = fmt.Sprintf("%s (crash %d in a row, at %s); on_crash asks for a restart, which is tried after %v; virsh destroy %s gives that up",
		why, v.crashes, v.last.UTC().Format(time.TimeOnly+" MST"), pause, g.record.Name)
	g.log.Warn("a guest that crashed is to be started again", "cause", why, "crashes", v.crashes, "pause", pause)
	ctx, cancel := context.WithCancelCause(g.reg.life)
	v.cancel = func() { cancel(errors.New("it is started or given up")) }
	g.publish()
	go g.reviveAfter(ctx, pause)
}

// reviveAfter starts the guest after a pause, unless ctx ends: somebody else has
// started it, or gave that up.
func (g *Guest) reviveAfter(ctx context.Context, pause time.Duration) {
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
	err := g.perform(ctx, lifecycle.Start, domain.JobStart, 0, func() (work, error) {
		if ctx.Err() != nil || g.inactive == nil || !lifecycle.Revives(g.inactive.OnCrash) {
			return nil, fault.New(fault.Aborted, fault.Domain, "it is not to be started again any more")
		}
		return g.planAnyStart(StartOptions{})
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	_ = g.change(ctx, "", func() error { // else it has gone
		if ctx.Err() == nil {
			g.notRevived(err)
		}
		return nil
	})
}

// notRevived settles what becomes of a guest whose start failed. It runs in the loop.
func (g *Guest) notRevived(err error) {
	if fault.Is(err, fault.Aborted) || g.run != nil {
		g.giveUpRevival()
		return
	}
	g.startAgain(err.Error())
}

// giveUpRevival leaves a crashed guest shut off. It runs in the loop.
func (g *Guest) giveUpRevival() {
	g.revival.stop()
	g.revival = revival{}
	g.reg.hasRun(g.uuid)
	g.publish()
}

// revived notes that the guest runs again.
func (g *Guest) revived() {
	v := &g.revival
	if v.cancel == nil {
		return
	}
	v.stop()
	v.words = fmt.Sprintf("started again after its QEMU had ended by itself (crash %d in a row, at %s)", v.crashes, v.last.UTC().Format(time.TimeOnly+" MST"))
}
