package savestate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// SaveKind writes the guest's memory to a file and ends the guest. If a step fails before the image is
// complete, the guest resumes. After that the guest ends in any case.
var SaveKind = operation.Kind[*machine.Instance]{
	Name: "save", Version: 1, Class: operation.Move,
	Steps: []string{"file", "write", "complete", "end", "flag"}, Undo: []string{"file", "write"},
	Bind: func(r *machine.Instance) operation.Work { return &SaveOp{MemoryImage: MemoryImage{r: r}} },
}

// memoryObject excludes a second save or dump while the first is open.
const memoryObject = "memory"

// MemoryImage is the part that a save and a dump share. Its exported fields are payload.
type MemoryImage struct {
	Path       string
	WasRunning bool
	Made       *MadeFile `json:",omitempty"` // nil: the file was not made, or could not be recorded

	r        *machine.Instance
	op       *operation.Operation
	progress *machine.Progress // nil: an earlier daemon began it
	file     *os.File          // the open image
}

// SaveOp is the journalled payload of a save.
type SaveOp struct {
	MemoryImage
	// Managed says that Path is the managed save image, from which the next start restores.
	Managed bool `json:",omitempty"`

	options SaveOptions
	was     domain.State
	flagged bool // the guest's record says so, at least in memory
}

// Steps implements operation.Work.
func (s *SaveOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "file", Effect: operation.Boot, Do: s.makeFile, Undo: s.removeFile},
		{Name: "write", Effect: operation.Process, Do: s.write, Undo: s.resumeGuest},
		{Name: "complete", Effect: operation.Boot, Decisive: true, Do: s.Complete},
		{Name: "end", Effect: operation.Process, Do: s.end},
		{Name: "flag", Effect: operation.Boot, Do: s.flag},
	}
}

// Opened implements operation.Opener.
func (m *MemoryImage) Opened(op *operation.Operation) error {
	m.op = op
	return nil
}

// Ended implements operation.Ender. It publishes the state again, because a paused guest counts as paused
// from now on.
func (m *MemoryImage) Ended() {
	g := m.r.Guest
	if g == nil || m.r.Alone {
		return
	}
	m.r.Reg.Loops.Go(func() { // an error means that the guest is gone or the daemon stops
		_ = g.Change(m.r.Reg.Life, scope.Daemon("telling that a save or a dump has ended"), "", func() error { g.Publish(); return nil })
	})
}

// Rehold implements operation.Rehold. Once the image is complete, the guest ends, whether its QEMU answers
// or not, and does not count as crashed.
func (s *SaveOp) Rehold() {
	if s.op.Decided() {
		s.r.State.EndFor, s.r.FromManaged = domain.ReasonSaved, false
	}
}

// admitMove refuses a save or dump while another one is open.
func admitMove(r *machine.Instance) error {
	if r.Ops.HasClass(operation.Move) {
		return fault.New(fault.Busy, fault.Domain, "a save or dump of domain %q was interrupted, and is settled when its QEMU answers; try again then", r.Name)
	}
	_, err := r.Monitor()
	return err
}

// Partial returns the path of an image while it is being written.
func Partial(path string) string { return path + ".partial" }

// makeFile creates the file and records it, so that a later daemon finds it.
func (s *SaveOp) makeFile(ctx context.Context) error {
	if err := s.create(ctx, s.op.Scope()); err != nil {
		return err
	}
	if !s.Managed { // sweepSaved finds managed images
		noteHalf(s.r.Guest, s.Path, s.file)
	}
	return nil
}

// create makes the file beside its final path and journals its identity.
func (m *MemoryImage) create(ctx context.Context, sc scope.Scope) (err error) {
	if m.file, err = createImage(ctx, Partial(m.Path), sc.FoldersFor(m.Path)); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(m.file.Fd()), &st); err != nil {
		return err
	}
	m.Made = &MadeFile{Path: m.Path, Device: st.Dev, Inode: st.Ino}
	return m.op.Save()
}

// removeFile removes the image. The guest runs on: restoring the image would run it twice.
func (s *SaveOp) removeFile(ctx context.Context) error { return s.discard(ctx, true) }

// discard removes the incomplete file and, with whole, the complete one. It waits at most closeTime for a
// file system that hangs.
func (m *MemoryImage) discard(ctx context.Context, whole bool) error {
	if m.file != nil {
		_ = m.file.Close() // it may be closed already
	}
	if m.Made == nil && m.progress != nil { // the file there belongs to another writer
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, machine.CloseTime)
	defer stop()
	err := fsguard.Run(ctx, m.Path, func() error {
		return safepath.OpenLink(m.Path, func(at string) error {
			if m.Made == nil || m.Made.is(Partial(at)) {
				machine.RemoveFile(m.r.Log, Partial(at))
			}
			if whole && m.Made != nil && m.Made.is(at) {
				machine.RemoveFile(m.r.Log, at)
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the useless image %s: %w", m.Path, err)
	}
	forgetHalf(m.r.Reg, m.r.UUID)
	return nil
}

// write stops the vCPUs and lets QEMU write the image.
func (s *SaveOp) write(ctx context.Context) error {
	r := s.r
	defer forgetHalf(r.Reg, r.UUID) // the file is complete, or removed
	session, err := r.Monitor()
	if err != nil {
		return err
	}
	err = r.InLoop(ctx, func(g *machine.Guest) error {
		g.Advance(lifecycle.Pausing{Reason: domain.ReasonSave})
		g.Advance(lifecycle.Resuming{Reason: domain.ReasonSaveCanceled}) // in case the save fails
		return nil
	})
	if err != nil {
		return err
	}
	var h *SaveHeader
	fill := func(f *os.File) (err error) {
		if err := machine.Halt(ctx, session); err != nil {
			return err
		}
		if h, err = s.stoppedHeader(ctx, session); err != nil {
			return err
		}
		if err := fsguard.RunLong(ctx, s.Path, func() error { return h.Write(f) }); err != nil {
			return fault.Wrap(withoutName(err), fault.Of(err), fault.Host, "cannot save to %s", s.Path)
		}
		if err := migrateTo(ctx, session, f, mostState(h.def), s.progress, r.Labels); err != nil {
			return fmt.Errorf("cannot save to %s: %w", s.Path, err)
		}
		return nil
	}
	return fillImage(ctx, s.op.Scope(), s.file, s.Path, fill, func(f *os.File) error {
		if err := h.Complete(f); err != nil {
			return fault.Wrap(withoutName(err), fault.Failed, fault.Host, "cannot save to %s", s.Path)
		}
		if s.options.BypassCache {
			return uncache(f)
		}
		return nil
	})
}

// stoppedHeader makes the header once the vCPUs have stopped. Until then the guest may still release a
// device after a request to detach it. An image cannot be restored if its definition has that device while
// its state does not.
func (s *SaveOp) stoppedHeader(ctx context.Context, session *qmp.Session) (*SaveHeader, error) {
	var def *domain.Definition
	err := s.r.InLoop(ctx, func(g *machine.Guest) error {
		g.CatchUp()
		def = s.r.Definition
		return nil
	})
	if err != nil {
		return nil, err
	}
	header, err := NewSaveHeader(def, s.r.Dir, s.options, s.was)
	if err != nil {
		return nil, err
	}
	return header, header.countQueues(ctx, session, def)
}

// resumeGuest cancels QEMU's write and resumes a guest that was running. A guest that was paused may have
// run for a moment (see halt), and is stopped.
func (m *MemoryImage) resumeGuest(ctx context.Context) error {
	s, err := m.r.Monitor()
	if err != nil {
		return err
	}
	err = s.Execute(ctx, "migrate_cancel", nil, nil)
	if err == nil {
		err = awaitNoMigration(ctx, s)
	}
	if err == nil {
		err = m.restore(ctx, s)
	}
	if hotplug.Unanswered(err) {
		s.Close() // the next session repeats it
	}
	return err
}

// restore resumes or stops the vCPUs, as before the save. A refusal is only logged, because QEMU would
// refuse it again.
func (m *MemoryImage) restore(ctx context.Context, s *qmp.Session) error {
	command := "stop"
	if m.WasRunning {
		command = "cont"
	}
	err := s.Execute(ctx, command, nil, nil)
	if err != nil && !hotplug.Unanswered(err) {
		m.r.Log.Error("cannot resume the guest after its save or dump", "error", err)
		return nil
	}
	return err
}

// Complete is the last moment at which a save can be aborted.
func (s *SaveOp) Complete(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// end ends the guest. FromManaged is cleared, because the image that the guest came from no longer matters
// (see settleManaged).
func (s *SaveOp) end(ctx context.Context) error {
	return s.r.InLoop(context.WithoutCancel(ctx), func(g *machine.Guest) error {
		s.r.FromManaged = false
		g.Advance(lifecycle.Ending{Reason: domain.ReasonSaved})
		s.r.End(machine.EndNow)
		return nil
	})
}

// flag records the managed save image in the store, so that the next start restores it. If the store takes
// no changes, the run directory stays until it does.
func (s *SaveOp) flag(ctx context.Context) error {
	if !s.Managed {
		return nil
	}
	return s.r.InLoop(context.WithoutCancel(ctx), func(g *machine.Guest) error {
		if g == nil || g.Inactive == nil {
			return nil
		}
		if s.flagged { // its user may have removed the image since
			if cause := s.r.Unstored.Load(); cause != nil {
				return *cause
			}
			return nil
		}
		s.flagged, g.Record.ManagedSave = true, true
		err := g.Store()
		if err != nil {
			g.StoreLater(s.r, err)
		}
		return err
	})
}

// MadeFile identifies the file that a save or dump writes, by device and inode. Its name does not identify
// it, because another file may take the name.
type MadeFile struct {
	Path          string
	Device, Inode uint64
}

// is reports whether the file at path at is this one.
func (m *MadeFile) is(at string) bool {
	var st unix.Stat_t
	err := unix.Lstat(at, &st)
	return err == nil && m.Device == st.Dev && m.Inode == st.Ino
}

// awaitNoMigration waits until QEMU has ended its migration. Until then QEMU may stop the vCPUs again.
func awaitNoMigration(ctx context.Context, session *qmp.Session) error {
	for wait := machine.FirstLook; ; wait = min(2*wait, machine.LastLook) {
		var m machine.Migration
		if err := session.Execute(ctx, "query-migrate", nil, &m); err != nil {
			return err
		}
		switch m.Status {
		case "", "none", "completed", "cancelled", "failed":
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// SettleManaged removes the managed save image that an adopted guest was restored from. Restoring it a
// second time would damage the guest's disks.
func SettleManaged(g *machine.Guest, r *machine.Instance) {
	if g.Inactive != nil && r.FromManaged && g.Record.ManagedSave {
		UseUpManagedSave(g, r)
	}
}
