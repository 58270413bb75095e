package guest

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// What a job writes into an image, or takes out of a chain, changes for all who have it: other guests, disks
// of the guest itself, templates, and volumes that lie on it, as the disks of thin clones do.

// checkSoleUser refuses to change images that anybody else has than one disk of a guest. They are neighbours in
// its chain, from the top down; above is the path of the image that lies on them there, or empty.
func (g *Guest) checkSoleUser(ctx context.Context, sc scope.Scope, d *device.Disk, changed image.Chain, above string) error {
	for _, l := range changed {
		for _, v := range g.reg.Pools.Above(ctx, l.Path) {
			if v.Path != above {
				return fault.New(fault.WrongState, fault.Volume,
					"cannot change %s: volume %q of pool %q lies on it and would have other data then; remove that volume, or have it lie on nothing (qemu-img rebase -b '' %s)",
					l.Path, v.Name, v.Pool, fault.Word(v.Path))
			}
		}
		above = l.Path
	}
	looked := map[[2]string]bool{} // by source and format: as it runs a guest mostly has what is stored of it
	for _, other := range g.reg.All() {
		for _, disk := range disksOfAll(other.View()) {
			what := [2]string{sourceOf(disk), disk.Format}
			if other == g && disk.Target == d.Target || looked[what] {
				continue
			}
			looked[what] = true
			used, err := g.reg.usesAny(ctx, sc, disk, changed)
			if err != nil {
				return fault.Wrap(err, fault.Of(err), fault.Volume, "cannot tell whether disk %s of domain %q lies on the images of disk %s", disk.Target, other.Name(), d.Target)
			}
			if used != "" {
				return fault.New(fault.WrongState, fault.Volume,
					"cannot change %s: disk %s of domain %q uses it and would have other data then; give that domain a copy of its own (virsh vol-clone), or take the disk from it",
					used, disk.Target, other.Name())
			}
		}
	}
	return nil
}

// disksOfAll are the disks of a guest as it runs and as it is stored.
func disksOfAll(v *View) (all []*device.Disk) {
	if v.Active != nil {
		all = slices.Clone(v.Active.Devices.Disks)
	}
	if v.Inactive != nil {
		all = append(all, v.Inactive.Devices.Disks...)
	}
	return all
}

// usesAny gives the path of one of the images that a disk uses, too; empty: it uses none. A disk whose chain
// cannot be used as it is uses nothing.
func (r *Registry) usesAny(ctx context.Context, sc scope.Scope, d *device.Disk, images image.Chain) (string, error) {
	if d.Source == nil {
		return "", nil
	}
	path, format, err := r.source(d)
	if err != nil {
		return "", nil // its pool, or its volume, is not there
	}
	chain, err := image.OpenChain(ctx, sc, path, format)
	if err != nil {
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) || fault.Is(err, fault.Unsupported) || fault.Is(err, fault.Denied) {
			return "", nil
		}
		return "", err
	}
	defer chain.Close()
	for _, l := range images {
		if chain.Has(l) {
			return l.Path, nil
		}
	}
	return "", nil
}
