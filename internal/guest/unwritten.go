package guest

import (
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A full or read-only run directory must not block events of a guest, or its end. The run record is then
// out of date, and is written as soon as possible. Until then the records of ended operations stay, because
// they tell the next daemon the same. No operation that needs a record is begun.

// writeAgain is the pause before a failed write of a run record is repeated.
const writeAgain = time.Second

// writeLater records that the run record could not be written. It runs in the loop.
func (g *Guest) writeLater(cause error) {
	if g.run.behindhand.Load() == nil {
		g.log.Error("cannot write the run record; trying again", "error", cause)
		g.run.behindhand.Store(&cause)
	}
	g.late.Reset(writeAgain)
}

// keepLater stores the guest's record as soon as the store takes it. Until then the run directory stays,
// which tells the next daemon the same. It runs in the loop, or before the loop starts.
func (g *Guest) keepLater(r *run, cause error) {
	g.log.Error("cannot store the state of the managed save image; trying again", "error", cause)
	r.unstored.Store(&cause)
	g.unstored = r
	g.late.Reset(writeAgain)
}

// writeLate repeats the failed writes. It runs in the loop.
func (g *Guest) writeLate() {
	if g.unstored != nil && g.keep() != nil {
		g.late.Reset(writeAgain)
	}
	if r := g.run; r == nil || r.noticed || r.behindhand.Load() == nil {
		return
	}
	if g.keepRun(); g.run.behindhand.Load() == nil {
		g.log.Info("run record written again")
	}
}

// written records that the run record is up to date.
func (r *run) written() {
	r.behindhand.Store(nil)
	r.ops.Written()
}

// unwrittenCause returns why the run record is out of date. Nil: it is not.
func (r *run) unwrittenCause() error {
	cause := r.behindhand.Load()
	if cause == nil {
		return nil
	}
	return fault.Wrap(*cause, fault.Failed, fault.Host, "an earlier change of domain %q is not recorded yet; check the free space in %s and try again", r.Name, filepath.Dir(r.dir))
}
