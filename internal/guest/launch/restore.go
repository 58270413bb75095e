package launch

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// PlanRestoreFrom plans a restore from a file, which must still be an image of this guest.
func PlanRestoreFrom(g *machine.Guest, path string, o savestate.SaveOptions) machine.Work {
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		image, err := savestate.OpenSaved(ctx, g.Reg, path, o)
		if err != nil {
			return nil, err
		}
		if image.Def.UUID != g.UUID || image.Def.Name != g.Name() {
			image.Close()
			return nil, fault.New(fault.Failed, fault.Config, "the saved image %s was replaced by another one just now", path)
		}
		return planRestore(g, image, StartOptions{Paused: image.Paused(o.Then), ResetNVRAM: o.ResetNVRAM})(ctx, sc)
	}
}

// planManagedRestore plans a restore from the managed save image. If the image cannot be read, it is kept
// and the start is refused, so that nothing is lost. The administrator removes it, or starts the guest with
// --force-boot.
func planManagedRestore(g *machine.Guest, o StartOptions) machine.Work {
	path, inactive := savestate.ManagedSavePath(g), g.Inactive
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		image, err := savestate.OpenSaved(ctx, g.Reg, path, savestate.SaveOptions{BypassCache: o.BypassCache})
		if err != nil {
			return nil, fmt.Errorf("cannot restore the managed save image (remove it, or start with --force-boot): %w", err)
		}
		// An image that cannot be removed afterwards would be restored again, on changed disks. A file
		// system that a disk error has made read-only shows this only when it is changed, so the file's
		// times are changed first.
		if err := image.Touch(); err != nil {
			image.Close()
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot restore the managed save image, because it could not be removed afterwards: make %s writable, or start with --force-boot", filepath.Dir(path))
		}
		image.Def.Name, image.Managed = inactive.Name, true // it may have been renamed since
		o.Paused = o.Paused || image.Paused(domain.NoState)
		return planRestore(g, image, o)(ctx, sc)
	}
}

// planRestore plans a start from an image.
func planRestore(g *machine.Guest, image *savestate.SavedImage, o StartOptions) machine.Work {
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		defer image.Close()
		r, err := launchGuest(ctx, g, sc, image.Def, image.XML, o, image)
		if r != nil && r.VCPUsRan && image.Managed { // the guest ran, and its start failed
			err = fmt.Errorf("%w; it had run before that, so its managed save image no longer fits its disks and was removed", err)
		}
		if err != nil {
			return func() error { savestate.SettleImage(g, r); return nil }, err // again: unwinding may have had no time for it
		}
		return func() error {
			commitStart(g, r, startedFact(r, true, o), o)
			if r.StayPaused {
				g.Log.Warn("guest was saved after it had shut down or reset; kept in that state until it is reset or destroyed")
				g.Advance(lifecycle.Found{Phase: domain.Paused, Reason: domain.ReasonShuttingDown})
			}
			if image.Managed {
				failpoint.Reach("restore.taken")
				savestate.ConsumeManagedSave(g, r)
			}
			return nil
		}, nil
	}
}
