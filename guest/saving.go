package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/atomicfile"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/mount"
	"github.com/lodge-kvm/lodge/qmp"
	"github.com/lodge-kvm/lodge/way"
)

// saving is a save or a dump under way, as a daemon must know it that has to end
// it for another, or after the monitor was lost.
type saving struct {
	Path       string
	WasRunning bool
	// Managed says that Path is the guest's managed save image.
	Managed bool

	followed bool // it is of this daemon, whose work removes what it does not complete
}

// beginSaving journals a save or a dump before it is begun. It runs in the loop. One that was cut off
// is ended first: it alone says that the guest is to go on.
func (g *Guest) beginSaving(s *saving) error {
	if g.run.Saving != nil {
		return fault.New(fault.Busy, fault.Domain, "a save or a dump of domain %q was cut off, and is ended when its QEMU answers; try again then", g.record.Name)
	}
	// Once the monitor is back what was cut off is settled before anything else is begun: begun before,
	// an image would lack a device that QEMU has, and nobody could restore it.
	if _, err := g.run.monitor(); err != nil {
		return err
	}
	g.run.Saving = s
	err := g.journal()
	if err != nil {
		g.run.Saving = nil
	}
	return err
}

func partial(path string) string { return path + ".partial" }

// goOn lets a guest that ran run again. One that was paused may have run for a
// moment (see halt), and is stopped.
func (s *saving) goOn(ctx context.Context, session *qmp.Session) error {
	if session == nil {
		return nil
	}
	if !s.WasRunning {
		return session.Execute(ctx, "stop", nil, nil)
	}
	return session.Execute(ctx, "cont", nil, nil)
}

// giveUp ends a save that nobody follows any more: the guest goes on as before
// it, and what was written is removed.
func (s *saving) giveUp(ctx context.Context, session *qmp.Session, dir string, log *slog.Logger) error {
	if err := session.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	if err := awaitNoMigration(ctx, session); err != nil {
		return err
	}
	s.discard(ctx, dir, log)
	err := s.goOn(ctx, session)
	if unanswered(err) {
		return err
	}
	if err != nil { // nor does it later
		log.Error("the guest cannot go on after its save or dump", "error", err)
	}
	return nil
}

// discard removes what a save wrote that was not completed, or of whose
// completion nobody was told: the guest lives on, and must not do so twice. It does
// not wait for a file system that hangs.
func (s *saving) discard(ctx context.Context, dir string, log *slog.Logger) {
	made, err := atomicfile.ReadJSON[madeFile](filepath.Join(dir, madeFileName))
	if err == nil {
		err = mount.Run(ctx, s.Path, func() error {
			err := way.Beside(s.Path, func(at string) error {
				removeFile(log, partial(at))
				if s.Managed || made.is(s.Path, at) {
					removeFile(log, at)
				}
				return nil
			})
			if errors.Is(err, os.ErrNotExist) { // nor is the image
				return nil
			}
			return err
		})
	}
	removeFile(log, filepath.Join(dir, madeFileName))
	if err != nil {
		log.Warn("an image that is to be removed stays", "path", s.Path, "error", err)
	}
}

// holdSaving has the end of a run discard what an earlier daemon's save left that did not
// end it: the guest did not live to see it given up. This daemon's own clean up behind
// themselves. It does not wait long for a file system that hangs.
func (r *run) holdSaving(endFor domain.Reason, forget func(uuid string)) {
	if s := r.Saving; s != nil && !s.followed && endFor != domain.ReasonSaved {
		r.hold("image of a save", func(ctx context.Context) error {
			ctx, stop := context.WithTimeout(ctx, closeTime)
			defer stop()
			s.discard(ctx, r.dir, r.log)
			forget(r.UUID)
			return nil
		})
	}
}

// madeFile is the file that a save writes, as a daemon finds it again: once it has
// its final name another file's place looks the same.
type madeFile struct {
	Path          string
	Device, Inode uint64
}

const madeFileName = "saving.json"

// remember gives what notes the file of a save in the run directory.
func (s *saving) remember(dir string) func(f *os.File) error {
	return func(f *os.File) error {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		return atomicfile.WriteJSON(filepath.Join(dir, madeFileName), madeFile{Path: s.Path, Device: st.Dev, Inode: st.Ino})
	}
}

// is reports whether it lies at a path, by which at leads there; nil: there was no save.
func (m *madeFile) is(path, at string) bool {
	var st unix.Stat_t
	err := unix.Lstat(at, &st)
	return err == nil && m != nil && m.Path == path && m.Device == st.Dev && m.Inode == st.Ino
}

// awaitNoMigration waits until QEMU moves nothing any more: until then it may
// stop the processors again.
func awaitNoMigration(ctx context.Context, session *qmp.Session) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		var m migration
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

// settleManaged makes what is stored about a guest's managed save image agree
// with what its last daemon had begun when it ended: an image that is complete
// is the guest's now, and one from which the guest came is used up. To restore
// it a second time would damage the guest's disks.
func (g *Guest) settleManaged(r *run, last *runRecord) {
	saved := last.State.EndFor == domain.ReasonSaved && last.Saving != nil && last.Saving.Managed
	switch {
	case g.inactive == nil:
		return
	case saved && !g.record.ManagedSave:
		g.record.ManagedSave = true
	case !saved && last.FromManaged && g.record.ManagedSave:
		g.useUpManagedSave(r)
		return
	default:
		return
	}
	if err := g.keep(); err != nil {
		g.keepLater(r, err)
	}
}
