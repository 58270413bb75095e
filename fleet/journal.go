package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/store"
)

// tileKind is the record of a tile that is being made or removed, by its name. A
// daemon that is killed meanwhile leaves a part of it, which the next one removes:
// there is a whole tile or none.
var tileKind = store.Kind{Name: "tile", Version: 1}

// cloneKind is the record of a clone that is being made, by its UUID.
var cloneKind = store.Kind{Name: "clone", Version: 1}

// unfinished is what the record holds: the volumes of the tile. Its guests bear
// its name.
type unfinished struct{ Volumes []VolumeName }

// names are the volumes of a tile that is to be.
func (d *tileDocuments) names() (all []VolumeName) {
	for _, v := range d.volumes {
		all = append(all, v.VolumeName)
	}
	return all
}

// leftover is a note that could not be followed, or not be forgotten. It stays for the next
// daemon, and is of names that another tile or clone may be given meanwhile.
type leftover struct {
	kind store.Kind
	key  string
	unfinished
}

// leave keeps a note in mind, as it is now.
func (f *Fleet) leave(kind store.Kind, key string, volumes []VolumeName) {
	f.forgetLeft(kind, key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leftovers = append(f.leftovers, leftover{kind, key, unfinished{volumes}})
}

// renounce has notes that were left say nothing of volumes that are about to be made anew: they
// would be removed by the next daemon.
func (f *Fleet) renounce(volumes []VolumeName) error {
	f.mu.Lock()
	all := slices.Clone(f.leftovers)
	f.mu.Unlock()
	for _, l := range all {
		kept := slices.DeleteFunc(slices.Clone(l.Volumes), func(v VolumeName) bool { return slices.Contains(volumes, v) })
		if len(kept) == len(l.Volumes) {
			continue
		}
		if err := f.store.Put(l.kind, l.key, unfinished{kept}); err != nil {
			return err
		}
		f.leave(l.kind, l.key, kept)
	}
	return nil
}

// forgetLeft lets a note go that is not there any more, or another one's.
func (f *Fleet) forgetLeft(kind store.Kind, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leftovers = slices.DeleteFunc(f.leftovers, func(l leftover) bool { return l.kind.Name == kind.Name && l.key == key })
}

// isLeft says whether there is such a note.
func (f *Fleet) isLeft(kind store.Kind, key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.leftovers, func(l leftover) bool { return l.kind.Name == kind.Name && l.key == key })
}

// unclaimed leaves out volumes that other guests have come to have: a note may be older than they.
func (f *Fleet) unclaimed(volumes []VolumeName, own func(user) bool) []VolumeName {
	users := f.users()
	return slices.DeleteFunc(slices.Clone(volumes), func(v VolumeName) bool {
		for _, u := range f.usersOf(v, users) {
			if !own(u) {
				f.log.Error("a volume that was to be removed with what was not finished is another guest's by now, and stays", "volume", v.String(), "domain", u.name)
				return true
			}
		}
		return false
	})
}

// begun notes that a tile is being made or removed, or that a clone is made.
func (f *Fleet) begun(kind store.Kind, key string, volumes []VolumeName) error {
	if err := f.renounce(volumes); err != nil {
		return err
	}
	if err := f.store.Put(kind, key, unfinished{volumes}); err != nil {
		return err
	}
	f.forgetLeft(kind, key)
	return nil
}

// tileBegun notes that a tile is.
func (f *Fleet) tileBegun(name string, volumes []VolumeName) error {
	if err := f.begun(tileKind, name, volumes); err != nil {
		return err
	}
	failpoint.Reach("tile.begun")
	return nil
}

// ended forgets what begun has noted.
func (f *Fleet) ended(kind store.Kind, key string) error {
	err := f.store.Delete(kind, key)
	if err == nil {
		f.forgetLeft(kind, key)
	}
	return err
}

// endedOrLeft is ended, and keeps a note in mind that stays.
func (f *Fleet) endedOrLeft(kind store.Kind, key string, volumes []VolumeName) error {
	err := f.ended(kind, key)
	if err != nil {
		f.leave(kind, key, volumes)
	}
	return err
}

// Recover removes what an earlier daemon left of tiles and clones that it did not
// live to finish. It is called before anybody is served. What cannot be removed is
// kept in mind for the next daemon.
func (f *Fleet) Recover(ctx context.Context) {
	f.finish(tileKind, func(name string, u unfinished) error { return f.removeRest(ctx, name, u) })
	f.finish(cloneKind, func(id string, u unfinished) error { return f.removeClone(ctx, id, u) })
}

// finish has what was not finished removed, by the records of it.
func (f *Fleet) finish(kind store.Kind, remove func(string, unfinished) error) {
	all := map[string]unfinished{}
	err := f.store.Each(kind, func(name string, decode func(any) error) error {
		var u unfinished
		if err := decode(&u); err != nil {
			return fmt.Errorf("%s %s: %w", kind.Name, name, err)
		}
		all[name] = u
		return nil
	})
	if err != nil {
		f.log.Error("cannot learn what was not finished", "kind", kind.Name, "error", err)
	}
	for name, u := range all {
		if err := remove(name, u); err != nil {
			f.log.Error("a part is left of what was not finished", "kind", kind.Name, "name", name, "error", err)
			f.leave(kind, name, u.Volumes)
			continue
		}
		f.log.Warn("removed what was not finished when its daemon ended", "kind", kind.Name, "name", name)
	}
}

// removeClone removes what there is of a clone.
func (f *Fleet) removeClone(ctx context.Context, id string, u unfinished) error {
	b, own := &building{fleet: f}, ""
	if g, err := f.guests.ByUUID(id); err == nil {
		b.guests, own = append(b.guests, g), g.Name()
	}
	b.volumes = f.unclaimed(u.Volumes, func(u user) bool { return u.name == own })
	if err := errors.Join(b.undo(ctx), f.guests.DropNVRAM(ctx, id)); err != nil {
		return err
	}
	return f.ended(cloneKind, id)
}

func (f *Fleet) removeRest(ctx context.Context, name string, u unfinished) error {
	t := TileState{Volumes: f.unclaimed(u.Volumes, func(u user) bool { return u.tile == name })}
	for _, m := range f.All() {
		if m.Labels[tileLabel] == name {
			t.members = append(t.members, m)
		}
	}
	if err := f.removeTile(ctx, t); err != nil {
		return err
	}
	return f.ended(tileKind, name)
}
