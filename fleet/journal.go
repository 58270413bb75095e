package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/store"
	"github.com/lodge-kvm/lodge/volume"
)

// tileKind is the record of a tile that is being made or removed, by its name. A
// daemon that is killed meanwhile leaves a part of it, which the next one removes:
// there is a whole tile or none.
var tileKind = store.Kind{Name: "tile", Version: 1}

// cloneKind is the record of a clone that is being made, by its UUID.
var cloneKind = store.Kind{Name: "clone", Version: 1}

// unfinished is what the record holds: the volumes of the tile. Its guests bear
// its name.
type unfinished struct {
	Volumes []VolumeName
	// Removing says that it is being removed, and not made: its guests may run.
	Removing bool `json:",omitempty"`
	// Template is the UUID of the guest that was made a template for the clone; empty: none was.
	Template string `json:",omitempty"`
}

// names are the volumes of a tile that is to be.
func (d *tileDocuments) names() (all []VolumeName) {
	for _, v := range d.volumes {
		all = append(all, v.VolumeName)
	}
	return all
}

// leftover is a note that could not be followed, or not be forgotten. That is tried again, by this
// daemon or the next, and it is of names that another tile or clone may be given meanwhile.
type leftover struct {
	kind store.Kind
	key  string
	unfinished
	settled bool // there is nothing to follow: the note alone is to go
}

// leave keeps a note in mind, as it is now, and has it tried again.
func (f *Fleet) leave(l leftover) {
	f.forgetLeft(l.kind, l.key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leftovers = append(f.leftovers, l)
	select {
	case f.untidy <- struct{}{}:
	default:
	}
}

// left gives the notes that are in mind.
func (f *Fleet) left() []leftover {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.leftovers)
}

// renounce has notes that were left say nothing of volumes that are about to be made anew: they
// would be removed by the next daemon.
func (f *Fleet) renounce(volumes []VolumeName) error {
	for _, l := range f.left() {
		kept := slices.DeleteFunc(slices.Clone(l.Volumes), func(v VolumeName) bool { return slices.Contains(volumes, v) })
		if len(kept) == len(l.Volumes) {
			continue
		}
		l.Volumes = kept
		if err := f.store.Put(l.kind, l.key, l.unfinished); err != nil {
			return err
		}
		f.leave(l)
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

// unclaimed leaves out volumes that other guests have come to have, or that have come to lie below others: a
// note may be older than they. What stays keeps what it lies above, which was made before it.
func (f *Fleet) unclaimed(ctx context.Context, volumes []VolumeName, own func(user) bool) (free []VolumeName) {
	users := f.users()
	for _, v := range slices.Backward(volumes) {
		who := f.usersOf(v, users)
		if i := slices.IndexFunc(who, func(u user) bool { return !own(u) }); i >= 0 {
			f.log.Error("a volume that was to be removed with what was not finished is another guest's by now, and stays", "volume", v.String(), "domain", who[i].name)
		} else if above, is := f.overlying(ctx, v, free); is {
			f.log.Error("a volume that was to be removed with what was not finished lies below another by now, and stays", "volume", v.String(), "above", above.String())
		} else {
			free = append(free, v)
		}
	}
	slices.Reverse(free)
	return free
}

// begun notes that a tile is being made or removed, or that a clone is made.
func (f *Fleet) begun(kind store.Kind, key string, u unfinished) error {
	if err := f.renounce(u.Volumes); err != nil {
		return err
	}
	if err := f.store.Put(kind, key, u); err != nil {
		return err
	}
	f.forgetLeft(kind, key)
	return nil
}

// tileBegun notes that a tile is.
func (f *Fleet) tileBegun(name string, u unfinished) error {
	if err := f.begun(tileKind, name, u); err != nil {
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
func (f *Fleet) endedOrLeft(kind store.Kind, key string, u unfinished) error {
	err := f.ended(kind, key)
	if err != nil {
		f.leave(leftover{kind, key, u, true})
	}
	return err
}

// takenBack forgets the note of what was to be made and was taken back. Where a part of that is left,
// so is the note.
func (f *Fleet) takenBack(kind store.Kind, key string, u unfinished, undone error) error {
	if undone != nil {
		f.leave(leftover{kind, key, u, false})
		return undone
	}
	return f.endedOrLeft(kind, key, u)
}

// Recover removes what an earlier daemon left of tiles and clones that it did not
// live to finish. It is called before anybody is served. What cannot be removed is
// kept in mind: see Tidy.
func (f *Fleet) Recover(ctx context.Context) {
	for _, kind := range []store.Kind{tileKind, cloneKind} {
		f.finish(ctx, kind)
	}
}

// finish has what was not finished removed, by the records of it.
func (f *Fleet) finish(ctx context.Context, kind store.Kind) {
	all := map[string]unfinished{}
	err := f.store.Each(kind, func(name string, decode func(any) error) error {
		var u unfinished
		if err := decode(&u); err != nil {
			f.log.Error("cannot read what was not finished", "kind", kind.Name, "name", name, "error", err)
			return nil
		}
		all[name] = u
		return nil
	})
	if err != nil {
		f.log.Error("cannot learn what was not finished", "kind", kind.Name, "error", err)
	}
	for name, u := range all {
		l := leftover{kind: kind, key: name, unfinished: u}
		if err := f.follow(ctx, l, u.Removing); err != nil {
			f.log.Error("a part is left of what was not finished; that is tried again", "kind", kind.Name, "name", name, "error", err)
			f.leave(l)
		}
	}
}

// lastTry is the longest pause between two tries.
const lastTry = time.Minute

// Tidy tries again, until ctx ends, what could not be done by the notes that are left: their pools
// may have been away, or the store may have taken no changes.
func (f *Fleet) Tidy(ctx context.Context) {
	for {
		select {
		case <-f.untidy:
			_ = guest.UntilDone(ctx, lastTry, func() error { return f.tidy(ctx) }) // fails with ctx
		case <-ctx.Done():
			return
		}
	}
}

// errUntidy says that something is left.
var errUntidy = errors.New("notes of tiles or clones are left")

// tidy tries that once, while nobody makes or removes tiles or clones.
func (f *Fleet) tidy(ctx context.Context) error {
	if !f.making.TryLock() {
		return errUntidy
	}
	defer f.making.Unlock()
	for _, l := range f.left() {
		var err error
		switch {
		case l.settled:
			err = f.ended(l.kind, l.key)
		case f.within(l.Volumes):
			err = f.follow(ctx, l, false)
		case !l.Removing:
			err = f.letBe(l)
		}
		if err != nil {
			f.log.Debug("a part is left still of what was not finished", "kind", l.kind.Name, "name", l.key, "error", err)
		}
	}
	if len(f.left()) > 0 {
		return errUntidy
	}
	return nil
}

// within says whether the pools of volumes run and answer: nobody waits for one that does not.
func (f *Fleet) within(volumes []VolumeName) bool {
	return !slices.ContainsFunc(volumes, func(v VolumeName) bool {
		p, err := f.pools.ByName(v.Pool)
		return err != nil || !isRead(p)
	})
}

// isRead says whether a pool runs, and its volumes are known.
func isRead(p *volume.Pool) bool {
	v := p.View()
	return v.State == volume.Running && !v.Taken.IsZero()
}

// follow removes what a note is of, and forgets it. Where a guest of that runs, or has run,
// somebody has it by now and keeps all of it, unless the guests are to be ended, too.
func (f *Fleet) follow(ctx context.Context, l leftover, ending bool) error {
	log := f.log.With("kind", l.kind.Name, "name", l.key)
	members := f.membersOf(l)
	for _, m := range members {
		if ending {
			break
		}
		release, err := still(ctx, m, !l.Removing)
		if fault.Is(err, fault.WrongState) {
			return f.leaveTo(l, m, err)
		}
		if err != nil {
			return err
		}
		defer release()
	}
	own := func(u user) bool {
		return slices.ContainsFunc(members, func(m Member) bool { return m.View.Name == u.name })
	}
	if err := f.remove(ctx, l, members, f.unclaimed(ctx, l.Volumes, own)); err != nil {
		return err
	}
	if err := f.untemplate(ctx, l.Template); err != nil {
		return err
	}
	log.Warn("removed what was not finished")
	return f.ended(l.kind, l.key)
}

// leaveTo forgets the note of what somebody has by now.
func (f *Fleet) leaveTo(l leftover, m Member, cause error) error {
	f.log.Warn("what was not finished is somebody's by now, and stays", "kind", l.kind.Name, "name", l.key, "domain", m.View.Name, "cause", cause)
	return f.ended(l.kind, l.key)
}

// letBe looks, while what a note is of cannot be removed, whether somebody has come to have it: the guest
// may have ended again by the time that it could be.
func (f *Fleet) letBe(l leftover) error {
	for _, m := range f.membersOf(l) {
		if err := runs(m, true); err != nil {
			return f.leaveTo(l, m, err)
		}
	}
	return nil
}

// runs refuses a guest that does, or has since this daemon knows it.
func runs(m Member, orHas bool) error {
	switch v := m.Guest.View(); {
	case v.State.Active():
		return fault.New(fault.WrongState, fault.Domain, "it runs")
	case orHas && v.Reason != domain.ReasonUnknown:
		return fault.New(fault.WrongState, fault.Domain, "it has run")
	}
	return nil
}

// still keeps a guest from being started. For one that runs, and may be stuck, nobody waits.
func still(ctx context.Context, m Member, neverRan bool) (release func(), err error) {
	if err := runs(m, neverRan); err != nil {
		return nil, err
	}
	if _, release, err = m.Guest.KeepStill(ctx); err != nil {
		return nil, err
	}
	if err := runs(m, neverRan); err != nil { // it did so just now
		release()
		return nil, err
	}
	return release, nil
}

// untemplate has a guest be a template no more that was made one for a clone which has gone. Others may
// lie above it, in pools too that are away: of those nobody knows here, and it stays one until a user
// says otherwise.
func (f *Fleet) untemplate(ctx context.Context, uuid string) error {
	g, err := f.guests.ByUUID(uuid)
	if err == nil && slices.ContainsFunc(f.pools.List(), func(p *volume.Pool) bool { return !isRead(p) }) {
		return nil
	}
	if err == nil {
		err = f.release(ctx, g, nil)
	}
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Busy) {
		return nil
	}
	return err
}

// membersOf gives the guests that there are of what a note is of.
func (f *Fleet) membersOf(l leftover) []Member {
	return slices.DeleteFunc(f.All(), func(m Member) bool {
		return l.kind.Name == cloneKind.Name && m.View.UUID != l.key || l.kind.Name == tileKind.Name && m.Labels[tileLabel] != l.key
	})
}

// remove removes it.
func (f *Fleet) remove(ctx context.Context, l leftover, members []Member, volumes []VolumeName) error {
	if l.kind.Name == tileKind.Name {
		if err := endAll(ctx, members); err != nil {
			return err
		}
		return f.removeTile(ctx, TileState{Volumes: volumes, members: members})
	}
	b := &building{fleet: f, volumes: volumes}
	for _, m := range members {
		b.guests = append(b.guests, m.Guest)
	}
	return errors.Join(b.undo(ctx), f.guests.DropNVRAM(ctx, l.key))
}
