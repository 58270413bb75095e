package fleet

import (
	"context"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

func (f *Fleet) createVolume(ctx context.Context, sc scope.Scope, v volumeDocument) error {
	p, err := f.pools.ByName(v.Pool)
	if err != nil {
		return err
	}
	_, err = p.CreateVolume(ctx, sc, v.doc, volume.CreateOptions{})
	return err
}

// checkVolumeFree refuses the name of a volume that exists or is being made.
func (f *Fleet) checkVolumeFree(v VolumeName) error {
	p, err := f.pools.ByName(v.Pool)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.About(err), "volume %q needs a pool; make it with: virsh pool-create-as %s dir --target FOLDER --build",
			v.Name, fault.Word(v.Pool))
	}
	switch _, err := p.Volume(v.Name); {
	case err == nil && f.hasOperationOn(volumeObject(v)):
		f.ops.RetryOwed()
		return fault.New(fault.Busy, fault.Volume, "volume %s belongs to a tile or a clone that is being made or removed; try again when that has ended", v)
	case err == nil:
		return fault.New(fault.Exists, fault.Volume, "pool %q already has a volume %q; delete or rename it first", v.Pool, v.Name)
	case !fault.Is(err, fault.NotFound):
		return err
	}
	return nil
}

// deleteVolume deletes a volume that was made for a tile. A missing volume is no error. A missing pool, or one
// that has not been read yet, is an error, because the volume may still exist.
func (f *Fleet) deleteVolume(ctx context.Context, sc scope.Scope, v VolumeName) error {
	p, err := f.pools.ByName(v.Pool)
	if err == nil {
		known := !p.View().ReadAt.IsZero()
		if err = p.DeleteVolume(ctx, sc, v.Name); known && fault.Is(err, fault.NotFound) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("cannot delete volume %s: %w", v, err)
	}
	return nil
}

// diskUser is a guest that has a volume as its disk.
type diskUser struct{ name, tile string }

// diskUsers maps volumes to the guests that have them as disks by their definitions. Keys are POOL/NAME and paths.
func (f *Fleet) diskUsers() map[string][]diskUser {
	users := map[string][]diskUser{}
	for _, m := range f.All() {
		who := diskUser{m.View.Name, m.Labels[tileLabel]}
		for _, d := range []*domain.Definition{m.View.Active, m.View.Inactive} {
			if d == nil {
				continue
			}
			for _, disk := range d.Devices.Disks {
				switch s := disk.Source; {
				case s == nil:
				case s.Volume != nil:
					key := VolumeName{s.Volume.Pool, s.Volume.Volume}.String()
					users[key] = append(users[key], who)
				default:
					users[s.Path()] = append(users[s.Path()], who)
				}
			}
		}
	}
	return users
}

// checkUnused refuses to delete volumes that are disks of guests outside the tile, or backing files of other
// volumes.
func (f *Fleet) checkUnused(ctx context.Context, tile string, volumes []VolumeName, users map[string][]diskUser) error {
	for _, v := range volumes {
		for _, u := range f.diskUsersOf(v, users) {
			if u.tile != tile {
				return fault.New(fault.WrongState, fault.Volume,
					"domain %q, which is not of tile %s, uses its volume %s; take the disk from it first", u.name, tile, v)
			}
		}
		if above, is := f.overlayOf(ctx, v, volumes); is {
			return fault.New(fault.WrongState, fault.Volume,
				"volume %s, which does not belong to tile %s, uses volume %s as its backing file; remove it first", above, tile, v)
		}
	}
	return nil
}

// overlayOf finds a volume, not one of but, that has a volume as its backing file, as the disk of a thin clone
// does.
func (f *Fleet) overlayOf(ctx context.Context, v VolumeName, but []VolumeName) (name VolumeName, is bool) {
	path := f.pathOfVolume(v)
	if path == "" {
		return name, false
	}
	for _, above := range f.pools.Overlays(ctx, path) {
		if name = (VolumeName{above.Pool, above.Name}); !slices.Contains(but, name) {
			return name, true
		}
	}
	return VolumeName{}, false
}

// pathOfVolume is the path of a volume; empty: it is unknown or missing.
func (f *Fleet) pathOfVolume(v VolumeName) string {
	if p, err := f.pools.ByName(v.Pool); err == nil {
		if found, err := p.Volume(v.Name); err == nil {
			return found.Path
		}
	}
	return ""
}

// diskUsersOf returns the users of a volume.
func (f *Fleet) diskUsersOf(v VolumeName, users map[string][]diskUser) []diskUser {
	who := users[v.String()]
	if path := f.pathOfVolume(v); path != "" {
		who = slices.Concat(who, users[path])
	}
	return who
}
