package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Bounds of work on tiles. The parts of one tile are made one after another.
const (
	tilesAtOnce = 8
	maxTiles    = 65536
)

// TileState is a tile as it is now.
type TileState struct {
	Set    string
	Number int
	// Guests counts the guests of the tile, Running those with a process.
	Guests, Running int
	Volumes         []VolumeName

	members []Member
}

// Name returns SET/NUMBER.
func (t TileState) Name() string { return tileName(t.Set, t.Number) }

// Tiles lists the tiles by set and number.
func (f *Fleet) Tiles() []TileState {
	byName := map[string]*TileState{}
	for _, m := range f.All() {
		name, tiled := m.Labels[tileLabel]
		if !tiled {
			continue
		}
		t := byName[name]
		if t == nil {
			set, number, err := parseTile(name)
			if err != nil {
				continue // the marks were checked when they were read
			}
			t = &TileState{Set: set, Number: number}
			byName[name] = t
		}
		t.add(m)
	}
	tiles := make([]TileState, 0, len(byName))
	for _, t := range byName {
		tiles = append(tiles, *t)
	}
	slices.SortFunc(tiles, func(a, b TileState) int {
		return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Number, b.Number))
	})
	return tiles
}

func (t *TileState) add(m Member) {
	t.members = append(t.members, m)
	t.Guests++
	if m.View.State.Active() {
		t.Running++
	}
	for _, v := range m.Marks.Volumes {
		if !slices.Contains(t.Volumes, v) {
			t.Volumes = append(t.Volumes, v)
		}
	}
}

// CreateTiles makes count tiles of a set, numbered from first. Each is made completely or not at all. A tile
// that already has all guests of the template is unchanged. There is one result for each tile, named
// SET/NUMBER. Cancelling ctx stops and undoes the tiles that are being made.
func (f *Fleet) CreateTiles(ctx context.Context, sc scope.Scope, t *TileTemplate, set string, first, count int, dry bool, report func(Result)) (Summary, error) {
	if err := checkTileSet(set); err != nil {
		return Summary{}, err
	}
	if first < 0 || count < 1 || count > maxTiles || first > maxTiles {
		return Summary{}, fault.New(fault.Invalid, fault.Call, "from 1 to %d tiles can be made, numbered from 0 to %d on; not %d from %d on",
			maxTiles, maxTiles, count, first)
	}
	names := make([]string, count)
	for i := range names {
		names[i] = tileName(set, first+i)
	}
	return f.forTiles(ctx, names, report, func(ctx context.Context, i int) Result {
		docs, err := t.expand(set, first+i)
		if err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		leave, err := f.lockTile(names[i])
		if err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		defer leave()
		return f.createTile(ctx, sc, docs, f.readTile(set, first+i).members, dry)
	})
}

// exclusive says that a tile is being made or removed.
const exclusive = -1

// lockTile lets one caller at a time make or remove a tile. Its parts are identified by names, which a later
// tile of the same name would have too.
func (f *Fleet) lockTile(name string) (leave func(), err error) {
	f.mu.Lock()
	busy := f.tileUsers[name]
	if busy == 0 {
		f.tileUsers[name] = exclusive
	}
	f.mu.Unlock()
	switch {
	case busy == exclusive:
		return nil, tileBusyError(name)
	case busy > 0:
		return nil, fault.New(fault.Busy, fault.Domain, "a guest of tile %s is being cloned; try again when that has ended", name)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.tileUsers, name)
	}, nil
}

func tileBusyError(name string) error {
	return fault.New(fault.Busy, fault.Domain, "tile %s is being made or removed by another call; try again when that has ended", name)
}

// shareTile prevents the tile of a guest from being made or removed while the guest is cloned, until leave is
// called: thin clones would lose their backing files.
func (f *Fleet) shareTile(m Member) (leave func(), err error) {
	name, is := m.Labels[tileLabel]
	if !is {
		return func() {}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tileUsers[name] == exclusive {
		return nil, tileBusyError(name)
	}
	f.tileUsers[name]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.tileUsers[name]--; f.tileUsers[name] == 0 {
			delete(f.tileUsers, name)
		}
	}, nil
}

// readTile returns a tile as it is now; a tile that does not exist has no guests.
func (f *Fleet) readTile(set string, number int) TileState {
	t := TileState{Set: set, Number: number}
	for _, m := range f.All() {
		if m.Labels[tileLabel] == t.Name() {
			t.add(m)
		}
	}
	return t
}

// forTiles does work on many tiles.
func (f *Fleet) forTiles(ctx context.Context, names []string, report func(Result), do func(context.Context, int) Result) (Summary, error) {
	entries := orderGuests(names, nil, unordered)
	s := &schedule{log: f.log, order: entries, names: names, parallel: tilesAtOnce, keepGoing: true, do: do}
	return s.runAndCount(ctx, func(Plan) {}, func(i int, r Result) {
		r.Name = names[i]
		report(r)
	}), nil
}

// createTile makes one tile. there are the guests of it that already exist.
func (f *Fleet) createTile(ctx context.Context, sc scope.Scope, docs *tileDocuments, there []Member, dry bool) Result {
	if len(there) > 0 {
		if slices.ContainsFunc(there, func(m Member) bool { return f.hasOperationOn(guestObject(m.View.UUID)) }) {
			return Result{Outcome: Failed, Error: fault.New(fault.Exists, fault.Domain,
				"tile %s is there still: its making or removal was cut off; remove it first", docs.name)}
		}
		for _, d := range docs.domains {
			if !slices.ContainsFunc(there, func(m Member) bool { return m.View.Name == d.name }) {
				return Result{Outcome: Failed, Error: fault.New(fault.Exists, fault.Domain,
					"tile %s already exists, without domain %q; remove it first", docs.name, d.name)}
			}
		}
		return Result{Outcome: Unchanged}
	}
	if err := f.checkNamesFree(docs, dry); err != nil {
		return Result{Outcome: Failed, Error: err}
	}
	note := fmt.Sprintf("%d guests, %d volumes", len(docs.domains), len(docs.volumes))
	if dry {
		return Result{Outcome: Would, Note: note}
	}
	w := newTileCreateOperation(f, docs)
	return f.perform(ctx, sc, tileCreateKind.Name, w, &w.operationObjects, note)
}

// checkNamesFree refuses a tile whose guests or volumes exist, before anything is made.
func (f *Fleet) checkNamesFree(docs *tileDocuments, dry bool) error {
	for _, v := range docs.volumes {
		if dry && f.lacksPool(v.Pool) {
			continue // MakePool will make it
		}
		if err := f.checkVolumeFree(v.VolumeName); err != nil {
			return err
		}
	}
	for _, d := range docs.domains {
		if _, err := f.guests.ByName(d.name); err == nil {
			return fault.New(fault.Exists, fault.Domain, "domain %q already exists and does not belong to the tile", d.name)
		}
		if err := d.check(docs.name); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.About(err), "domain %q of the template", d.name)
		}
	}
	return nil
}

// check checks that the document would define the guest that it is marked as.
func (d domainDocument) check(tile string) error {
	def, err := domainxml.Parse(d.doc, domainxml.Options{})
	if err != nil {
		return err
	}
	m, err := ReadMarks(def.Metadata)
	if err == nil && (def.Name != d.name || m.Labels[tileLabel] != tile) {
		return fault.New(fault.Invalid, fault.XML, "it has more than one <name> or <metadata>")
	}
	return err
}

// RemoveTiles destroys and undefines the guests of tiles, and deletes the volumes that CreateTiles made for
// them. Tiles are given as SET, SET/NUMBER or a glob of those. There is one result for each tile.
func (f *Fleet) RemoveTiles(ctx context.Context, sc scope.Scope, tiles string, dry bool, report func(Result)) (Summary, error) {
	wanted, err := parseTerm(byTile + "=" + strings.TrimSpace(tiles))
	if err != nil {
		return Summary{}, fault.Wrap(err, fault.Invalid, fault.Call, "%q", tiles)
	}
	chosen := slices.DeleteFunc(f.Tiles(), func(t TileState) bool { return !wanted.value.matches(t.Name()) })
	if len(chosen) == 0 && glob(tiles).literal() {
		return Summary{}, fault.New(fault.NotFound, fault.Domain, "no tile %s", tiles)
	}
	names := make([]string, len(chosen))
	for i, t := range chosen {
		names[i] = t.Name()
	}
	return f.forTiles(ctx, names, report, func(ctx context.Context, i int) Result {
		leave, err := f.lockTile(names[i])
		if err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		defer leave()
		t := f.readTile(chosen[i].Set, chosen[i].Number) // the tile may have changed before its turn
		if t.Guests == 0 {
			return Result{Outcome: Unchanged}
		}
		if err := f.checkUnused(ctx, t.Name(), t.Volumes, f.diskUsers()); err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		w, note := newTileRemoveOperation(f, t), fmt.Sprintf("%d guests, %d volumes", t.Guests, len(t.Volumes))
		if dry {
			return Result{Outcome: Would, Note: note}
		}
		return f.perform(context.WithoutCancel(ctx), sc, tileRemoveKind.Name, w, &w.operationObjects, note)
	})
}

// ignoreKind drops an error of a kind that means "nothing to do".
func ignoreKind(err error, kind fault.Kind) error {
	if fault.Is(err, kind) || fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}
