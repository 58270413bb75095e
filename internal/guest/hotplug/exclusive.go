package hotplug

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A job that writes into an image, or takes one out of a chain, changes the data of every user of the
// image: other guests, other disks of the guest, templates, and volumes that are backed by it, such as
// disks of thin clones.

// CheckSoleUser refuses to change images that any other disk uses. changed are neighbours in the chain of
// d, from the top down. above is the path of the image on top of them in that chain; empty: there is none.
func CheckSoleUser(ctx context.Context, g *machine.Guest, sc scope.Scope, d *device.Disk, changed image.Chain, above string) error {
	for _, l := range changed {
		for _, v := range g.Reg.Pools.Above(ctx, l.Path) {
			if v.Path != above {
				return fault.New(fault.WrongState, fault.Volume,
					"cannot change %s: volume %q of pool %q is backed by it, and its data would change; remove that volume, or make it independent (qemu-img rebase -b '' %s)",
					l.Path, v.Name, v.Pool, fault.Word(v.Path))
			}
		}
		above = l.Path
	}
	looked := map[[2]string]bool{} // by source and format: a guest's live and stored disks are mostly the same
	for _, other := range g.Reg.All() {
		for _, disk := range disksOfAll(other.View()) {
			what := [2]string{machine.SourceName(disk), disk.Format}
			if other == g && disk.Target == d.Target || looked[what] {
				continue
			}
			looked[what] = true
			used, err := usesAny(ctx, g.Reg, sc, disk, changed)
			if err != nil {
				return fault.Wrap(err, fault.Of(err), fault.Volume, "cannot tell whether disk %s of domain %q uses the images of disk %s", disk.Target, other.Name(), d.Target)
			}
			if used != "" {
				return fault.New(fault.WrongState, fault.Volume,
					"cannot change %s: disk %s of domain %q uses it, and its data would change; give that domain its own copy (virsh vol-clone), or detach the disk from it",
					used, disk.Target, other.Name())
			}
		}
	}
	return nil
}

// disksOfAll returns the disks of a guest's live and stored definitions.
func disksOfAll(v *machine.View) (all []*device.Disk) {
	if v.Active != nil {
		all = slices.Clone(v.Active.Devices.Disks)
	}
	if v.Inactive != nil {
		all = append(all, v.Inactive.Devices.Disks...)
	}
	return all
}

// usesAny returns the path of the first of the images that disk d uses. Empty: it uses none. A disk with a
// missing, invalid, unsupported or denied chain uses none.
func usesAny(ctx context.Context, r *machine.Registry, sc scope.Scope, d *device.Disk, images image.Chain) (string, error) {
	if d.Source == nil {
		return "", nil
	}
	path, format, err := provision.Source(r, d)
	if err != nil {
		return "", nil // its pool or volume does not exist
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
