package guest

import (
	"context"
	"log/slog"
	"time"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/mount"
	"github.com/lodge-kvm/lodge/qmp"
)

// saving is a save or a dump under way, as a daemon must know it that has to end
// it for another, or after the monitor was lost.
type saving struct {
	Path       string
	WasRunning bool
	// Managed says that Path is the guest's managed save image.
	Managed bool
}

func partial(path string) string { return path + ".partial" }

// goOn lets a guest that ran run again.
func (s *saving) goOn(ctx context.Context, session *qmp.Session) error {
	if session == nil || !s.WasRunning {
		return nil
	}
	return session.Execute(ctx, "cont", nil, nil)
}

// giveUp ends a save that nobody follows any more: the guest goes on as before
// it, and what was written is removed.
func (s *saving) giveUp(ctx context.Context, session *qmp.Session, log *slog.Logger) error {
	if err := session.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	if err := awaitNoMigration(ctx, session); err != nil {
		return err
	}
	s.discard(ctx, log)
	return s.goOn(ctx, session)
}

// discard removes what a save wrote that was not completed, or of whose
// completion nobody was told. It does not wait for a file system that hangs.
func (s *saving) discard(ctx context.Context, log *slog.Logger) {
	err := mount.Run(ctx, s.Path, func() error {
		removeFile(log, partial(s.Path))
		if s.Managed {
			removeFile(log, s.Path)
		}
		return nil
	})
	if err != nil {
		log.Warn("an image that is to be removed stays", "path", s.Path, "error", err)
	}
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
func (g *Guest) settleManaged(last *runRecord) {
	saved := last.State.EndFor == domain.ReasonSaved && last.Saving != nil && last.Saving.Managed
	switch {
	case g.inactive == nil:
		return
	case saved && !g.record.ManagedSave:
		g.record.ManagedSave = true
	case !saved && last.FromManaged && g.record.ManagedSave:
		g.dropManagedSave()
	default:
		return
	}
	if err := g.keep(); err != nil {
		g.log.Error("cannot store what became of the managed save image", "error", err)
	}
}
