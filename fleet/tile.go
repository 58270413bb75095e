package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
)

// Bounds of work on tiles. Each tile is made one thing after another.
const (
	tilesAtOnce = 8
	maxTiles    = 65536
)

// TileState is a tile as it is now.
type TileState struct {
	Set    string
	Number int
	// Guests of the tile, and those of them that have a process.
	Guests, Running int
	Volumes         []VolumeName

	members []Member
}

// Name gives SET/NUMBER.
func (t TileState) Name() string { return tileName(t.Set, t.Number) }

// Tiles gives the tiles there are, by set and number.
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
				continue // checked when the marks were read
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

// CreateTiles makes the tiles first, first+1, ... of a set, count in all. Each is
// made whole or not at all; one that is there already, with all guests of the
// template, is unchanged. Results are one for each tile, by its name SET/NUMBER.
// The end of ctx ends, and undoes, the tiles that are being made.
func (f *Fleet) CreateTiles(ctx context.Context, t *TileTemplate, set string, first, count int, dry bool, report func(Result)) (Summary, error) {
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
		leave, err := f.beginTile(names[i])
		if err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		defer leave()
		var there []string
		for _, m := range f.tileNow(set, first+i).members {
			there = append(there, m.View.Name)
		}
		return f.createTile(ctx, docs, there, dry)
	})
}

// alone stands for a tile's being made or removed.
const alone = -1

// beginTile has one at a time make or remove a tile: what it is of is told by names, which the next
// tile of its name has, too.
func (f *Fleet) beginTile(name string) (leave func(), err error) {
	f.mu.Lock()
	busy := f.busy[name]
	if busy == 0 {
		f.busy[name] = alone
	}
	f.mu.Unlock()
	switch {
	case busy == alone:
		return nil, busyTile(name)
	case busy > 0:
		return nil, fault.New(fault.Busy, fault.Domain, "a guest of tile %s is being cloned; try again when that has ended", name)
	}
	f.making.RLock()
	return func() {
		f.making.RUnlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.busy, name)
	}, nil
}

func busyTile(name string) error {
	return fault.New(fault.Busy, fault.Domain, "tile %s is being made or removed by another call; try again when that has ended", name)
}

// keepTile keeps the tile of a guest that is to be cloned, if it has one, from being made or removed until leave is
// called: the disks of thin clones would lose what lies below them.
func (f *Fleet) keepTile(m Member) (leave func(), err error) {
	name, is := m.Labels[tileLabel]
	if !is {
		return func() {}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy[name] == alone {
		return nil, busyTile(name)
	}
	f.busy[name]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.busy[name]--; f.busy[name] == 0 {
			delete(f.busy, name)
		}
	}, nil
}

// tileNow gives a tile as it is by now; one that is not there has no guests.
func (f *Fleet) tileNow(set string, number int) TileState {
	t := TileState{Set: set, Number: number}
	for _, m := range f.All() {
		if m.Labels[tileLabel] == t.Name() {
			t.add(m)
		}
	}
	return t
}

// forTiles does something to each of many tiles.
func (f *Fleet) forTiles(ctx context.Context, names []string, report func(Result), do func(context.Context, int) Result) (Summary, error) {
	places := arrange(names, nil, anyhow)
	s := &schedule{log: f.log, places: places, names: names, parallel: tilesAtOnce, keepGoing: true, do: do}
	return s.tell(ctx, func(Plan) {}, func(i int, r Result) {
		r.Name = names[i]
		report(r)
	}), nil
}

// createTile makes one tile. There are the guests that it has already.
func (f *Fleet) createTile(ctx context.Context, docs *tileDocuments, there []string, dry bool) Result {
	if len(there) > 0 {
		for _, d := range docs.domains {
			if !slices.Contains(there, d.name) {
				return Result{Outcome: Failed, Error: fault.New(fault.Exists, fault.Domain,
					"tile %s is there already, and without domain %q: remove it first", docs.name, d.name)}
			}
		}
		if f.isLeft(tileKind, docs.name) { // its guests come last, and go last: it was all but made, or removed
			for _, v := range docs.volumes {
				if f.vacant(v.VolumeName) == nil {
					return Result{Outcome: Failed, Error: fault.New(fault.Exists, fault.Domain,
						"tile %s is there still, and without volume %s: its removal was cut off; remove it first", docs.name, v.VolumeName)}
				}
			}
			if err := f.ended(tileKind, docs.name); err != nil {
				return Result{Outcome: Failed, Error: err}
			}
		}
		return Result{Outcome: Unchanged}
	}
	if err := f.checkRoom(docs, dry); err != nil {
		return Result{Outcome: Failed, Error: err}
	}
	note := fmt.Sprintf("%d guests, %d volumes", len(docs.domains), len(docs.volumes))
	if dry {
		return Result{Outcome: Would, Note: note}
	}
	b := &building{fleet: f}
	if err := f.tileBegun(docs.name, unfinished{Volumes: docs.names()}); err != nil {
		return Result{Outcome: Failed, Error: err}
	}
	if err := b.conclude(ctx, docs, b.build(ctx, docs)); err != nil {
		return *err
	}
	return Result{Outcome: Done, Note: note}
}

// conclude forgets the note of a tile that is made; where it is not, or the note stays, by which a
// later try removes the tile, it takes back what was made, and gives what came of it.
func (b *building) conclude(ctx context.Context, docs *tileDocuments, err error) *Result {
	f := b.fleet
	if err == nil {
		if err = f.ended(tileKind, docs.name); err == nil {
			return nil
		}
	}
	outcome := Failed
	if ctx.Err() != nil {
		outcome = Cancelled
	}
	undone := f.takenBack(tileKind, docs.name, unfinished{Volumes: docs.names()}, b.undo(context.WithoutCancel(ctx)))
	if undone != nil {
		return &Result{Outcome: Failed, Error: errors.Join(err, fmt.Errorf("what was made of the tile is still there: %w", undone))}
	}
	return &Result{Outcome: outcome, Error: err}
}

// checkRoom refuses a tile before anything of it is made.
func (f *Fleet) checkRoom(docs *tileDocuments, dry bool) error {
	for _, v := range docs.volumes {
		if dry && f.lacksPool(v.Pool) {
			continue // MakePool will make it
		}
		if err := f.vacant(v.VolumeName); err != nil {
			return err
		}
	}
	for _, d := range docs.domains {
		if _, err := f.guests.ByName(d.name); err == nil {
			return fault.New(fault.Exists, fault.Domain, "domain %q is there already and belongs to no such tile", d.name)
		}
		if err := d.check(docs.name); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.About(err), "domain %q of the template", d.name)
		}
	}
	return nil
}

// check looks whether the document will be understood as the guest that it was
// marked to be.
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

// building is a tile being made, with what there is of it so far.
type building struct {
	fleet   *Fleet
	volumes []VolumeName
	guests  []*guest.Guest
}

// build makes the volumes in the template's order, so that one may lie above
// another, and then the guests.
func (b *building) build(ctx context.Context, docs *tileDocuments) error {
	for _, v := range docs.volumes {
		if err := b.fleet.createVolume(ctx, v); err != nil {
			return fmt.Errorf("cannot create volume %s: %w", v.VolumeName, err)
		}
		failpoint.Reach("tile.volume")
		b.volumes = append(b.volumes, v.VolumeName)
	}
	for _, d := range docs.domains {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		g, err := b.fleet.guests.Define(context.WithoutCancel(ctx), d.doc, false)
		if err != nil {
			return fmt.Errorf("cannot define domain %q: %w", d.name, err)
		}
		failpoint.Reach("tile.guest")
		b.guests = append(b.guests, g)
	}
	return nil
}

// undo takes back what was made, the last first. No guest that stays, as somebody has started it,
// loses its volumes.
func (b *building) undo(ctx context.Context) error {
	var failures []error
	for _, g := range slices.Backward(b.guests) {
		if err := g.Undefine(ctx, guest.UndefineOptions{NVRAM: true, TPM: true}); err != nil && !fault.Is(err, fault.NotFound) {
			failures = append(failures, err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	for _, v := range slices.Backward(b.volumes) {
		failures = append(failures, b.fleet.deleteVolume(ctx, v))
	}
	return errors.Join(failures...)
}

// RemoveTiles ends and undefines the guests of tiles, and deletes the volumes that
// CreateTiles made for them. Tiles are named by SET, SET/NUMBER or a glob of that;
// results are one for each.
func (f *Fleet) RemoveTiles(ctx context.Context, tiles string, dry bool, report func(Result)) (Summary, error) {
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
		leave, err := f.beginTile(names[i])
		if err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		defer leave()
		t := f.tileNow(chosen[i].Set, chosen[i].Number) // its turn may have come late
		if t.Guests == 0 {
			return Result{Outcome: Unchanged}
		}
		if err := f.checkUnused(ctx, t, f.users()); err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		note := fmt.Sprintf("%d guests, %d volumes", t.Guests, len(t.Volumes))
		if dry {
			return Result{Outcome: Would, Note: note}
		}
		u := unfinished{Volumes: t.Volumes, Removing: true}
		if err := f.tileBegun(t.Name(), u); err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		ctx = context.WithoutCancel(ctx)
		if err = endAll(ctx, t.members); err == nil { // which takes its time, and others use that
			err = f.checkUnused(ctx, t, f.users())
		}
		if err == nil {
			err = f.removeTile(ctx, t)
		}
		if err = errors.Join(err, f.endedOrLeft(tileKind, t.Name(), u)); err != nil {
			return Result{Outcome: Failed, Error: err}
		}
		return Result{Outcome: Done, Note: note}
	})
}

// endAll ends the guests of a tile.
func endAll(ctx context.Context, members []Member) error {
	var failures []error
	for _, m := range members {
		// One that is shut off may wait for its start.
		failures = append(failures, unless(m.Guest.Destroy(ctx, false), fault.WrongState))
	}
	return errors.Join(failures...)
}

// removeTile deletes the volumes, then forgets the guests, which have ended: as long as a volume is left
// somebody knows whose it was, and the same can be asked again.
func (f *Fleet) removeTile(ctx context.Context, t TileState) error {
	for _, v := range slices.Backward(t.Volumes) {
		if err := f.deleteVolume(ctx, v); err != nil {
			return err
		}
		failpoint.Reach("tile.emptied")
	}
	all := guest.UndefineOptions{ManagedSave: true, Snapshots: true, Checkpoints: true, NVRAM: true, TPM: true}
	var failures []error
	for _, m := range t.members {
		if !m.Guest.View().Persistent {
			continue
		}
		failures = append(failures, unless(m.Guest.Undefine(ctx, all), fault.NotFound))
		failpoint.Reach("tile.forgotten")
		if m.Guest.View().State.Active() { // somebody started it meanwhile
			failures = append(failures, unless(m.Guest.Destroy(ctx, false), fault.WrongState))
		}
	}
	return errors.Join(failures...)
}

// unless drops an error that says that nothing was left to do.
func unless(err error, kind fault.Kind) error {
	if fault.Is(err, kind) || fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}
