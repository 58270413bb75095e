package guest

import (
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A run directory that has no room, or cannot be written to, keeps nobody from what a guest does
// by itself, nor from ending it. The run record then says less than what is so: it is written
// as soon as that can be done, the records of operations that ended meanwhile stay until then, as
// they tell the next daemon the same, and nothing else is begun that needs one.

// writeAgain is how long after a failure a run record is tried again.
const writeAgain = time.Second

// writeLater notes that the run record could not be written. It runs in the loop.
func (g *Guest) writeLater(cause error) {
	if g.run.behindhand.Load() == nil {
		g.log.Error("what is so of a running guest cannot be written down for the next daemon; that is tried again", "error", cause)
		g.run.behindhand.Store(&cause)
	}
	g.late.Reset(writeAgain)
}

// keepLater has the guest's record stored as soon as the store takes it, and has its run directory
// stay until then, which tells the next daemon the same. It runs in the loop, or before that.
func (g *Guest) keepLater(r *run, cause error) {
	g.log.Error("what became of the managed save image cannot be stored yet; that is tried again", "error", cause)
	r.unstored.Store(&cause)
	g.unstored = r
	g.late.Reset(writeAgain)
}

// writeLate tries again. It runs in the loop.
func (g *Guest) writeLate() {
	if g.unstored != nil && g.keep() != nil {
		g.late.Reset(writeAgain)
	}
	if r := g.run; r == nil || r.noticed || r.behindhand.Load() == nil {
		return
	}
	if g.keepRun(); g.run.behindhand.Load() == nil {
		g.log.Info("what is so of a running guest is written down again")
	}
}

// written notes that the run record says all there is.
func (r *run) written() {
	r.behindhand.Store(nil)
	r.ops.Written()
}

// unwrittenCause is why the run record does not say all yet; nil: it does.
func (r *run) unwrittenCause() error {
	cause := r.behindhand.Load()
	if cause == nil {
		return nil
	}
	return fault.Wrap(*cause, fault.Failed, fault.Host, "what was changed of domain %q before is not written down yet, see to the room in %s and try again", r.Name, filepath.Dir(r.dir))
}
