package guest

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/atomicfile"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/operation"
)

// A run directory that has no room, or cannot be written to, keeps nobody from what a guest does
// by itself, nor from ending it. The run record then says less than what is so: it is written
// as soon as that can be done, the journals of what was changed meanwhile stay until then, as
// they tell the next daemon the same, and nothing else is begun that needs one.

// writeAgain is how long after a failure a run record is tried again.
const writeAgain = time.Second

// unwritten is what the run record does not say.
type unwritten struct {
	cause error
	files []string // journals that are done with once it does
}

// writeLater notes that the run record could not be written. It runs in the loop.
func (g *Guest) writeLater(cause error) {
	if u := g.run.behindhand.Load(); u == nil {
		g.log.Error("what is so of a running guest cannot be written down for the next daemon; that is tried again", "error", cause)
		g.run.behindhand.Store(&unwritten{cause: cause})
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
	u := r.behindhand.Swap(nil)
	r.ops.Written()
	if u == nil {
		return
	}
	for _, name := range u.files {
		removeFile(r.log, filepath.Join(r.dir, name))
	}
}

// begin writes the journal of a change that is about to be made. That of one which was cut off stays
// until QEMU has said how far it came.
func (r *run) begin(name string, journal any) error {
	if r.ops.Admits(operation.Change) != nil || r.amending != nil {
		return fault.New(fault.Busy, fault.Domain, "a change of domain %q was cut off, and is finished when its QEMU answers; try again then", r.Name)
	}
	if err := r.unwrittenCause(); err != nil {
		return err
	}
	err := atomicfile.WriteJSON(filepath.Join(r.dir, name), journal)
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write down what is to be changed of domain %q", r.Name)
}

// unwrittenCause is why the run record does not say all yet; nil: it does.
func (r *run) unwrittenCause() error {
	u := r.behindhand.Load()
	if u == nil {
		return nil
	}
	return fault.Wrap(u.cause, fault.Failed, fault.Host, "what was changed of domain %q before is not written down yet, see to the room in %s and try again", r.Name, filepath.Dir(r.dir))
}

// done removes the journal of a change, once the run record tells of it.
func (r *run) done(name string) {
	if u := r.behindhand.Load(); u != nil {
		more := &unwritten{u.cause, append(slices.Clip(u.files), name)}
		r.behindhand.Store(more)
		return
	}
	removeFile(r.log, filepath.Join(r.dir, name))
}
