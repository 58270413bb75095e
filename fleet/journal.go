package fleet

import (
	"context"
	"errors"
	"fmt"

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

// begun notes that a tile is being made or removed; ended forgets it.
func (f *Fleet) begun(name string, volumes []VolumeName) error {
	if err := f.store.Put(tileKind, name, unfinished{volumes}); err != nil {
		return err
	}
	failpoint.Reach("tile.begun")
	return nil
}

func (f *Fleet) ended(name string) {
	if err := f.store.Delete(tileKind, name); err != nil {
		f.log.Error("cannot note that a tile is finished", "tile", name, "error", err)
	}
}

// cloneBegun notes that a clone is being made; cloneEnded forgets it.
func (f *Fleet) cloneBegun(id string, volumes []VolumeName) error {
	if err := f.store.Put(cloneKind, id, unfinished{volumes}); err != nil {
		return err
	}
	failpoint.Reach("clone.begun")
	return nil
}

func (f *Fleet) cloneEnded(id string) error { return f.store.Delete(cloneKind, id) }

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
			continue
		}
		f.log.Warn("removed what was not finished when its daemon ended", "kind", kind.Name, "name", name)
	}
}

// removeClone removes what there is of a clone.
func (f *Fleet) removeClone(ctx context.Context, id string, u unfinished) error {
	b := &building{fleet: f, volumes: u.Volumes}
	if g, err := f.guests.ByUUID(id); err == nil {
		b.guests = append(b.guests, g)
	}
	if err := errors.Join(b.undo(ctx), f.guests.DropNVRAM(ctx, id)); err != nil {
		return err
	}
	return f.cloneEnded(id)
}

func (f *Fleet) removeRest(ctx context.Context, name string, u unfinished) error {
	t := TileState{Volumes: u.Volumes}
	for _, m := range f.All() {
		if m.Labels[tileLabel] == name {
			t.members = append(t.members, m)
		}
	}
	if err := f.removeTile(ctx, t); err != nil {
		return err
	}
	f.ended(name)
	return nil
}
