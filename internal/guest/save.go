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
	// XML replaces the definition that goes with the image; empty: keeps it.
	XML string
	// BypassCache leaves nothing of the image in the host's page cache.
	BypassCache bool
	// ResetNVRAM gives the restored guest fresh UEFI variables.
	ResetNVRAM bool
	// Then is what the guest does after its restore: Running, Paused, or NoState
	// for what it did when it was saved.
	Then domain.State
}

// Save writes the guest's memory and devices to a file and ends it. The file is
// in libvirt's own layout. On failure the guest goes on as before.
func (g *Guest) Save(ctx context.Context, sc scope.Scope, path string, o SaveOptions) error {
	if err := checkPlace("save", path); err != nil {
		return err
	}
	return g.moveMemory(ctx, sc, lifecycle.Save, domain.JobSave, func(p *progress) (work, error) {
		return g.planSave(path, o, false, p)
	})
}

// ManagedSave saves the guest where its next start finds it.
func (g *Guest) ManagedSave(ctx context.Context, sc scope.Scope, o SaveOptions) error {
	return g.moveMemory(ctx, sc, lifecycle.Managed, domain.JobSave, func(p *progress) (work, error) {
		if err := g.fenceSaved(ctx, sc, o.XML); err != nil {
			return nil, err
		}
		return g.planSave(g.managedSavePath(), o, true, p)
	})
}

func (g *Guest) managedSavePath() string { return filepath.Join(g.reg.saveDir(), g.uuid+".save") }

// planSave plans a save: the processors stop, QEMU writes, the process ends.
func (g *Guest) planSave(path string, o SaveOptions, managed bool, p *progress) (work, error) {
	if managed { // or the image would be nobody's
		if err := errors.Join(g.keepAhead(), g.reg.furnish()); err != nil {
			return nil, err
		}
	}
	r, was := g.run, g.state.Phase
	if _, err := newSaveHeader(r.def, r.dir, o, was); err != nil { // its processors need not be stopped for that
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

// RemoveManagedSave discards the image that the next start would continue from.
func (g *Guest) RemoveManagedSave(ctx context.Context, sc scope.Scope) error {
	// It has its turn like work: a save that ends its guest, or a start that goes on from there and may fail, comes to
	// its end before.
	return g.perform(ctx, sc, "", domain.JobModify, modifyLimit, func() (work, error) {
		if !g.record.ManagedSave {
			return nil, nil
		}
		err := g.dropManagedSave()
		g.publish()
		return nil, err
	})
}

// dropManagedSave forgets the image, and then removes it: what a daemon that is
// killed in between leaves is of nobody, and the next one removes it.
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

// settleImage settles, when a start from an image has failed, what became of that. It runs in the loop.
func (g *Guest) settleImage(r *run) {
	switch {
	case r == nil || !r.FromManaged:
	case r.ran:
		g.useUpManagedSave(r)
	case r.spent: // and it is not
		g.record.ManagedSave, r.spent = true, false
		if err := g.keep(); err != nil {
			g.keepLater(r, err)
		}
	}
}

// useUpManagedSave forgets the image that the guest has gone on from, and removes it, also where
// the first cannot be stored: gone on from again it would damage the guest's disks. It runs in the
// loop, or before that.
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
	if err := g.keep(); err != nil { // there may be room now
		g.keepLater(r, err)
	}
}

// removeManagedSave removes the image that nobody knows of any more, and what was
// noted of a change of its header.
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
	image.close() // the work opens it again, if it ever comes to that
	return r.claimed(ctx, image.def.Name, image.def.UUID, func(g *Guest) error {
		return g.perform(ctx, sc, lifecycle.Restore, domain.JobRestore, 0, func() (work, error) {
			return g.planRestoreFrom(path, o), g.admitBesideSave()
		})
	})
}

// admitBesideSave admits a run that does not go on from the managed save image: none while there
// is one. Gone on from after that it would damage the guest's disks, which have changed.
func (g *Guest) admitBesideSave() error {
	if g.record.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain, "domain %q has a managed save image, which would not fit its disks any more; start it, which continues from there, or remove the image first", g.record.Name)
	}
	return g.admitRun()
}

// planRestoreFrom gives the work of a restore from a file, which must still be
// of this guest.
func (g *Guest) planRestoreFrom(path string, o SaveOptions) work {
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		image, err := g.reg.openSaved(ctx, path, o)
		if err != nil {
			return nil, err
		}
		if image.def.UUID != g.uuid || image.def.Name != g.Name() {
			image.close()
			return nil, fault.New(fault.Failed, fault.Config, "the saved image %s was exchanged meanwhile", path)
		}
		return g.planRestore(image, StartOptions{Paused: image.paused(o.Then), ResetNVRAM: o.ResetNVRAM})(ctx, sc)
	}
}

// planManagedRestore starts a guest from its managed save image. An image that
// cannot be read is kept, and the start refused, so that nothing is lost: the
// administrator removes it, or starts with --force-boot.
func (g *Guest) planManagedRestore(o StartOptions) work {
	path, inactive := g.managedSavePath(), g.inactive
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		image, err := g.reg.openSaved(ctx, path, SaveOptions{BypassCache: o.BypassCache})
		if err != nil {
			return nil, fmt.Errorf("cannot continue from the managed save image (remove it, or start with --force-boot): %w", err)
		}
		// An image that stays would be gone on from again, on disks that have changed since. A file
		// system that has become read-only by an error of its disk says so of a change alone.
		if err := image.touch(); err != nil {
			image.close()
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot continue from the managed save image, which could not be removed then: make %s writable, or start with --force-boot", filepath.Dir(path))
		}
		image.def.Name, image.managed = inactive.Name, true // it may have been renamed since
		o.Paused = o.Paused || image.paused(domain.NoState)
		return g.planRestore(image, o)(ctx, sc)
	}
}

// planRestore gives the work of a start from an image.
func (g *Guest) planRestore(image *savedImage, o StartOptions) work {
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		defer image.close()
		r, err := g.launch(ctx, sc, image.def, image.xml, o, image)
		if r != nil && r.ran && image.managed { // and its start failed
			err = fmt.Errorf("%w; it had begun to run by then, and its managed save image, which fits its disks no more, is removed", err)
		}
		if err != nil {
			return func() error { g.settleImage(r); return nil }, err // again: the undoing may have had no time for it
		}
		return func() error {
			g.takeOver(r, begun(r, true, o), o)
			if r.kept {
				g.log.Warn("the guest had turned itself off or reset when it was saved; it is kept as it was then, until it is reset or destroyed")
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

// SavedXML reads the definition in a saved image.
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
