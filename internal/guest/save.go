package guest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// SaveOptions say how a guest is saved to a file, or restored from one.
type SaveOptions struct {
	// XML replaces the definition in the image. Empty: it is kept.
	XML string
	// BypassCache keeps the image out of the host's page cache.
	BypassCache bool
	// ResetNVRAM gives the restored guest new UEFI variables.
	ResetNVRAM bool
	// Then is the state of the guest after its restore: Running, Paused, or NoState for its state when it
	// was saved.
	Then domain.State
}

// Save writes the guest's memory and devices to a file and ends the guest. The file has libvirt's layout.
// If it fails, the guest continues as before.
func (g *Guest) Save(ctx context.Context, sc scope.Scope, path string, o SaveOptions) error {
	if err := checkPlace("save", path); err != nil {
		return err
	}
	return g.moveMemory(ctx, sc, lifecycle.Save, domain.JobSave, func(p *progress) (work, error) {
		return g.planSave(path, o, false, p)
	})
}

// ManagedSave saves the guest to the image from which its next start restores it.
func (g *Guest) ManagedSave(ctx context.Context, sc scope.Scope, o SaveOptions) error {
	return g.moveMemory(ctx, sc, lifecycle.Managed, domain.JobSave, func(p *progress) (work, error) {
		if err := g.fenceSaved(sc, o.XML); err != nil {
			return nil, err
		}
		return g.planSave(g.managedSavePath(), o, true, p)
	})
}

func (g *Guest) managedSavePath() string { return filepath.Join(g.reg.saveDir(), g.uuid+".save") }

// planSave plans a save: the vCPUs stop, QEMU writes the image, the process ends.
func (g *Guest) planSave(path string, o SaveOptions, managed bool, p *progress) (work, error) {
	if managed { // otherwise no record would name the image
		if err := errors.Join(g.keepAhead(), g.reg.furnish()); err != nil {
			return nil, err
		}
	}
	r, was := g.run, g.state.Phase
	if _, err := newSaveHeader(r.def, r.dir, o, was); err != nil { // fail before the vCPUs are stopped
		return nil, err
	}
	if err := r.admitMove(); err != nil {
		return nil, err
	}
	s := &save{memoryImage: memoryImage{Path: path, WasRunning: was == domain.Running, r: r, progress: p}, Managed: managed, options: o, was: was}
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		return nil, r.perform(ctx, sc, saveKind.Name, s, memoryObject)
	}, nil
}

// RemoveManagedSave deletes the image that the next start would restore.
func (g *Guest) RemoveManagedSave(ctx context.Context, sc scope.Scope) error {
	// It runs as a job, after a save that ends its guest, or a start that restores the image and may fail.
	return g.perform(ctx, sc, "", domain.JobModify, modifyLimit, func() (work, error) {
		if !g.record.ManagedSave {
			return nil, nil
		}
		err := g.dropManagedSave()
		g.publish()
		return nil, err
	})
}

// dropManagedSave clears the record of the image and then removes the file. If the daemon is killed in
// between, no record names the file, and the next daemon removes it.
func (g *Guest) dropManagedSave() error {
	if !g.record.ManagedSave {
		return nil
	}
	g.record.ManagedSave = false
	if err := g.keep(); err != nil {
		g.record.ManagedSave = true
		return err
	}
	if err := g.outdate(true); err != nil {
		g.record.ManagedSave = true
		return errors.Join(err, g.keep())
	}
	g.removeManagedSave()
	return nil
}

// settleImage decides what happens to the image after a failed restore. It runs in the loop.
func (g *Guest) settleImage(r *run) {
	switch {
	case r == nil || !r.FromManaged:
	case r.ran:
		g.useUpManagedSave(r)
	case r.spent: // but the guest did not run from it
		g.record.ManagedSave, r.spent = true, false
		if err := g.keep(); err != nil {
			g.keepLater(r, err)
		}
	}
}

// useUpManagedSave forgets and removes the image that the guest was resumed from. It removes the file even
// if the store takes no changes: a second restore would damage the guest's disks. It runs in the loop, or
// before the loop starts.
func (g *Guest) useUpManagedSave(r *run) {
	if r.spent {
		g.removeManagedSave()
		return
	}
	if g.dropManagedSave() == nil {
		return
	}
	g.record.ManagedSave = false
	g.removeManagedSave()
	if err := g.keep(); err != nil { // there may be space now
		g.keepLater(r, err)
	}
}

// removeManagedSave removes an image that no record names, and the record of a change of its header.
func (g *Guest) removeManagedSave() {
	real, err := filepath.EvalSymlinks(g.managedSavePath())
	removeFile(g.log, g.managedSavePath())
	if err == nil {
		g.reg.forgetHeader(real)
	}
}

// Restore makes a guest from a saved image.
func (r *Registry) Restore(ctx context.Context, sc scope.Scope, path string, o SaveOptions) (*Guest, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	image, err := r.openSaved(ctx, path, o)
	if err != nil {
		return nil, err
	}
	image.close() // the job opens it again
	return r.claimed(ctx, image.def.Name, image.def.UUID, func(g *Guest) error {
		return g.perform(ctx, sc, lifecycle.Restore, domain.JobRestore, 0, func() (work, error) {
			return g.planRestoreFrom(path, o), g.admitBesideSave()
		})
	})
}

// admitBesideSave refuses a run while there is a managed save image. The guest's disks would change, and
// restoring the image later would damage them.
func (g *Guest) admitBesideSave() error {
	if g.record.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain, "domain %q has a managed save image, which would no longer fit its disks; start it from that image, or remove the image first", g.record.Name)
	}
	return g.admitRun()
}

// planRestoreFrom plans a restore from a file, which must still be an image of this guest.
func (g *Guest) planRestoreFrom(path string, o SaveOptions) work {
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		image, err := g.reg.openSaved(ctx, path, o)
		if err != nil {
			return nil, err
		}
		if image.def.UUID != g.uuid || image.def.Name != g.Name() {
			image.close()
			return nil, fault.New(fault.Failed, fault.Config, "the saved image %s was replaced by another one just now", path)
		}
		return g.planRestore(image, StartOptions{Paused: image.paused(o.Then), ResetNVRAM: o.ResetNVRAM})(ctx, sc)
	}
}

// planManagedRestore plans a restore from the managed save image. If the image cannot be read, it is kept
// and the start is refused, so that nothing is lost. The administrator removes it, or starts the guest with
// --force-boot.
func (g *Guest) planManagedRestore(o StartOptions) work {
	path, inactive := g.managedSavePath(), g.inactive
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		image, err := g.reg.openSaved(ctx, path, SaveOptions{BypassCache: o.BypassCache})
		if err != nil {
			return nil, fmt.Errorf("cannot restore the managed save image (remove it, or start with --force-boot): %w", err)
		}
		// An image that cannot be removed afterwards would be restored again, on changed disks. A file
		// system that a disk error has made read-only shows this only when it is changed, so the file's
		// times are changed first.
		if err := image.touch(); err != nil {
			image.close()
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot restore the managed save image, because it could not be removed afterwards: make %s writable, or start with --force-boot", filepath.Dir(path))
		}
		image.def.Name, image.managed = inactive.Name, true // it may have been renamed since
		o.Paused = o.Paused || image.paused(domain.NoState)
		return g.planRestore(image, o)(ctx, sc)
	}
}

// planRestore plans a start from an image.
func (g *Guest) planRestore(image *savedImage, o StartOptions) work {
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		defer image.close()
		r, err := g.launch(ctx, sc, image.def, image.xml, o, image)
		if r != nil && r.ran && image.managed { // the guest ran, and its start failed
			err = fmt.Errorf("%w; it had run before that, so its managed save image no longer fits its disks and was removed", err)
		}
		if err != nil {
			return func() error { g.settleImage(r); return nil }, err // again: unwinding may have had no time for it
		}
		return func() error {
			g.takeOver(r, begun(r, true, o), o)
			if r.kept {
				g.log.Warn("guest was saved after it had shut down or reset; kept in that state until it is reset or destroyed")
				g.advance(lifecycle.Found{Phase: domain.Paused, Reason: domain.ReasonShuttingDown})
			}
			if image.managed {
				failpoint.Reach("restore.taken")
				g.useUpManagedSave(r)
			}
			return nil
		}, nil
	}
}

// SavedXML returns the definition in a saved image.
func (r *Registry) SavedXML(ctx context.Context, sc scope.Scope, path string, secure bool) (string, error) {
	if err := sc.Check(); err != nil {
		return "", err
	}
	image, err := r.openSaved(ctx, path, SaveOptions{})
	if err != nil {
		return "", err
	}
	defer image.close()
	return domainxml.Format(image.def, domainxml.Style{Secure: secure})
}
