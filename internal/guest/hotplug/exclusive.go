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
//
// It looks at the disks of all guests, also at those that the client may not see or open: their data is at stake.
// The scope only decides whether the error names the other user.
func CheckSoleUser(ctx context.Context, g *machine.Guest, sc scope.Scope, d *device.Disk, changed image.Chain, above string) error {
	if err := checkVolumesAbove(ctx, g.Reg, sc, changed, above); err != nil {
		return err
	}
	looked := map[[2]string]bool{} // by source and format: a guest's live and stored disks are mostly the same
	for _, other := range g.Reg.All() {
		for _, disk := range disksOfAll(other.View()) {
			what := [2]string{machine.SourceOf(disk), disk.Format}
			if other == g && disk.Target == d.Target || looked[what] {
				continue
			}
			looked[what] = true
			used, err := usesAny(ctx, g.Reg, disk, changed)
			hidden := other != g && !mayName(sc, other)
			switch {
			case err != nil && hidden:
				return fault.New(fault.Of(err), fault.Volume, "cannot tell whether another domain uses the images of disk %s", d.Target)
			case used != "" && hidden:
				return fault.New(fault.WrongState, fault.Volume, "cannot change %s: a domain that this client may not change uses it, and its data would change", used)
			case err != nil:
				return fault.Wrap(err, fault.Of(err), fault.Volume, "cannot tell whether disk %s of domain %q uses the images of disk %s", disk.Target, other.Name(), d.Target)
			case used != "":
				return fault.New(fault.WrongState, fault.Volume,
					"cannot change %s: disk %s of domain %q uses it, and its data would change; give that domain its own copy (virsh vol-clone), or detach the disk from it",
					used, disk.Target, other.Name())
			}
		}
	}
	return nil
}

// checkVolumesAbove refuses to change images that a volume has as its backing file.
func checkVolumesAbove(ctx context.Context, r *machine.Registry, sc scope.Scope, changed image.Chain, above string) error {
	for _, l := range changed {
		for _, v := range r.Pools.Above(ctx, l.Path) {
			if v.Path == above {
				continue
			}
			if folders := sc.Folders(); folders != nil && !image.LiesIn(v.Path, folders) {
				return fault.New(fault.WrongState, fault.Volume,
					"cannot change %s: a volume that this client may not use is backed by it, and its data would change", l.Path)
			}
			return fault.New(fault.WrongState, fault.Volume,
				"cannot change %s: volume %q of pool %q is backed by it, and its data would change; remove that volume, or make it independent (qemu-img rebase -b '' %s)",
				l.Path, v.Name, v.Pool, fault.Word(v.Path))
		}
		above = l.Path
	}
	return nil
}

// mayName reports whether an error may name another guest: the client could make the same call on it.
func mayName(sc scope.Scope, other *machine.Guest) bool {
	limits := sc.Limits()
	return limits == nil || limits.Authorize(other.UUID()) == nil
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
// missing, invalid, unsupported or denied chain uses none. The chain is opened in a scope without bounds: in the
// client's, the disks of other clients would be denied, and so count as unrelated.
func usesAny(ctx context.Context, r *machine.Registry, d *device.Disk, images image.Chain) (string, error) {
	if d.Source == nil {
		return "", nil
	}
	path, format, err := provision.Source(r, d)
	if err != nil {
		return "", nil // its pool or volume does not exist
	}
	chain, err := image.OpenChain(ctx, scope.Daemon("images of all domains are compared"), path, format)
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
