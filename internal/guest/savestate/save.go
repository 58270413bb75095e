package savestate

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
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
func Save(ctx context.Context, g *machine.Guest, sc scope.Scope, path string, o SaveOptions) error {
	if err := checkImagePath("save", path); err != nil {
		return err
	}
	return g.MoveMemory(ctx, sc, lifecycle.Save, domain.JobSave, func(p *machine.Progress) (machine.Work, error) {
		return planSave(g, path, o, false, p)
	})
}

// ManagedSave saves the guest to the image from which its next start restores it.
func ManagedSave(ctx context.Context, g *machine.Guest, sc scope.Scope, o SaveOptions) error {
	return g.MoveMemory(ctx, sc, lifecycle.ManagedSave, domain.JobSave, func(p *machine.Progress) (machine.Work, error) {
		if err := limitSavedPaths(g, sc, o.XML); err != nil {
			return nil, err
		}
		return planSave(g, ManagedSavePath(g), o, true, p)
	})
}

// ManagedSavePath is the file of a guest's managed save image.
func ManagedSavePath(g *machine.Guest) string {
	return filepath.Join(g.Reg.SaveDir(), g.UUID+".save")
}

// planSave plans a save: the vCPUs stop, QEMU writes the image, the process ends.
func planSave(g *machine.Guest, path string, o SaveOptions, managed bool, p *machine.Progress) (machine.Work, error) {
	if managed { // otherwise no record would name the image
		if err := errors.Join(g.StoreAhead(), g.Reg.MakeDirs()); err != nil {
			return nil, err
		}
	}
	r, was := g.Instance, g.State.Phase
	if _, err := NewSaveHeader(r.Definition, r.Dir, o, was); err != nil { // fail before the vCPUs are stopped
		return nil, err
	}
	if err := admitSaveOrDump(r); err != nil {
		return nil, err
	}
	s := &SaveOp{MemoryImage: MemoryImage{Path: path, WasRunning: was == domain.Running, r: r, progress: p}, Managed: managed, options: o, was: was}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		return nil, r.Perform(ctx, sc, SaveKind.Name, s, memoryObject)
	}, nil
}

// RemoveManagedSave deletes the image that the next start would restore.
func RemoveManagedSave(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	// It runs as a job, after a save that ends its guest, or a start that restores the image and may fail.
	return g.Perform(ctx, sc, "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		if !g.Record.ManagedSave {
			return nil, nil
		}
		err := DropManagedSave(g)
		g.Publish()
		return nil, err
	})
}

// DropManagedSave clears the record of the image and then removes the file. If the daemon is killed in
// between, no record names the file, and the next daemon removes it.
func DropManagedSave(g *machine.Guest) error {
	if !g.Record.ManagedSave {
		return nil
	}
	g.Record.ManagedSave = false
	if err := g.Store(); err != nil {
		g.Record.ManagedSave = true
		return err
	}
	if err := UpdateLeftRecord(g, true); err != nil {
		g.Record.ManagedSave = true
		return errors.Join(err, g.Store())
	}
	RemoveUnrecordedSave(g)
	return nil
}

// SettleImage decides what happens to the image after a failed restore. It runs in the loop.
func SettleImage(g *machine.Guest, r *machine.Instance) {
	switch {
	case r == nil || !r.FromManaged:
	case r.VCPUsRan:
		ConsumeManagedSave(g, r)
	case r.SaveConsumed: // but the guest did not run from it
		g.Record.ManagedSave, r.SaveConsumed = true, false
		if err := g.Store(); err != nil {
			g.StoreLater(r, err)
		}
	}
}

// ConsumeManagedSave forgets and removes the image that the guest was resumed from. It removes the file even
// if the store takes no changes: a second restore would damage the guest's disks. It runs in the loop, or
// before the loop starts.
func ConsumeManagedSave(g *machine.Guest, r *machine.Instance) {
	if r.SaveConsumed {
		RemoveUnrecordedSave(g)
		return
	}
	if DropManagedSave(g) == nil {
		return
	}
	g.Record.ManagedSave = false
	RemoveUnrecordedSave(g)
	if err := g.Store(); err != nil { // there may be space now
		g.StoreLater(r, err)
	}
}

// RemoveUnrecordedSave removes an image that no record names, and the record of a change of its header.
func RemoveUnrecordedSave(g *machine.Guest) {
	real, err := filepath.EvalSymlinks(ManagedSavePath(g))
	machine.RemoveFile(g.Log, ManagedSavePath(g))
	if err == nil {
		forgetHeader(g.Reg, real)
	}
}

// RefuseManagedSave refuses a run while there is a managed save image. The guest's disks would change, and
// restoring the image later would damage them.
func RefuseManagedSave(g *machine.Guest) error {
	if g.Record.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain, "domain %q has a managed save image, which would no longer fit its disks; start it from that image, or remove the image first", g.Record.Name)
	}
	return g.AdmitRun()
}

// SavedXML returns the definition in a saved image.
func SavedXML(ctx context.Context, r *machine.Registry, sc scope.Scope, path string, secure bool) (string, error) {
	if err := sc.Check(); err != nil {
		return "", err
	}
	image, err := OpenSaved(ctx, r, path, SaveOptions{})
	if err != nil {
		return "", err
	}
	defer image.Close()
	return domainxml.Format(image.Def, domainxml.Style{Secure: secure})
}
