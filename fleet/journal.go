package fleet

import (
	"context"
	"fmt"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/store"
)

// tileKind is the record of a tile that is being made or removed, by its name. A
// daemon that is killed meanwhile leaves a part of it, which the next one removes:
// there is a whole tile or none.
var tileKind = store.Kind{Name: "tile", Version: 1}

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

// Recover removes what an earlier daemon left of tiles that it did not live to
// finish. It is called before anybody is served. What cannot be removed is kept
// in mind for the next daemon.
func (f *Fleet) Recover(ctx context.Context) {
	all := map[string]unfinished{}
	err := f.store.Each(tileKind, func(name string, decode func(any) error) error {
		var u unfinished
		if err := decode(&u); err != nil {
			return fmt.Errorf("tile %s: %w", name, err)
		}
		all[name] = u
		return nil
	})
	if err != nil {
		f.log.Error("cannot learn which tiles were not finished", "error", err)
	}
	for name, u := range all {
		if err := f.recover(ctx, name, u); err != nil {
			f.log.Error("a part of a tile is left that was not finished", "tile", name, "error", err)
			continue
		}
		f.log.Warn("removed a tile that was not finished when its daemon ended", "tile", name)
	}
}

func (f *Fleet) recover(ctx context.Context, name string, u unfinished) error {
	t := TileState{Volumes: u.Volumes}
	for _, m := range f.members() {
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
