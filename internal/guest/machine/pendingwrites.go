package machine

import (
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A full or read-only run directory must not block events of a guest, or its end. The run record is
// then out of date, and is written as soon as possible. Until then the records of ended operations stay,
// because they tell the next daemon the same. No operation that needs a record is begun.

// WriteRetryPause is the pause before a failed write of a run record is repeated.
const WriteRetryPause = time.Second

// writeLater records that the run record could not be written. It runs in the loop.
func (g *Guest) writeLater(cause error) {
	if g.Instance.unwritten.Load() == nil {
		g.Log.Error("cannot write the run record; trying again", "error", cause)
		g.Instance.unwritten.Store(&cause)
	}
	g.WriteRetry.Reset(WriteRetryPause)
}

// StoreLater stores the guest's record as soon as the store takes it. Until then the run directory stays,
// which tells the next daemon the same. It runs in the loop, or before the loop starts.
func (g *Guest) StoreLater(r *Instance, cause error) {
	g.Log.Error("cannot store the state of the managed save image; trying again", "error", cause)
	r.Unstored.Store(&cause)
	g.Unstored = r
	g.WriteRetry.Reset(WriteRetryPause)
}

// WritePending repeats the failed writes. It runs in the loop.
func (g *Guest) WritePending() {
	if g.Unstored != nil && g.Store() != nil {
		g.WriteRetry.Reset(WriteRetryPause)
	}
	if r := g.Instance; r == nil || r.ExitHandled || r.unwritten.Load() == nil {
		return
	}
	if g.WriteInstance(); g.Instance.unwritten.Load() == nil {
		g.Log.Info("run record written again")
	}
}

// written records that the run record is up to date.
func (r *Instance) written() {
	r.unwritten.Store(nil)
	r.Ops.OwnerWritten()
}

// unwrittenCause returns why the run record is out of date. Nil: it is not.
func (r *Instance) unwrittenCause() error {
	cause := r.unwritten.Load()
	if cause == nil {
		return nil
	}
	return fault.Wrap(*cause, fault.Failed, fault.Host, "an earlier change of domain %q is not recorded yet; check the free space in %s and try again", r.Name, filepath.Dir(r.Dir))
}
