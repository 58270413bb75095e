package guest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The guests that are marked for it are started once in each boot of the host. Which
// they are is noted before the first is started, and each is struck off when it has
// run, or is given up: a daemon that is cut off in the middle leaves the
// rest to the next one, and what ran is not started again.

// bootKind is the record of the last boot of the host whose autostart was noted.
var bootKind = store.Kind{Name: "boot", Version: 1}

const lastBoot = "autostarted"

// dueKind is the record of one guest that a boot has still to start, by UUID.
var dueKind = store.Kind{Name: "autostart", Version: 1}

// due says in which boot a guest is to be started, and by which mark.
type due struct {
	Boot string
	Once bool // by that for one boot, which is taken back
	// Crashed says that it ran, and is started again because its QEMU ended by itself.
	Crashed bool `json:",omitempty"`
}

// dues are the guests that this boot has still to start.
type dues struct {
	mu   sync.Mutex
	left map[string]due
}

// loadDues finds again what an earlier daemon left to be started, and forgets what
// an earlier boot did.
func (r *Registry) loadDues() error {
	var old []string
	err := r.store.Each(dueKind, func(uuid string, decode func(any) error) error {
		var d due
		if err := decode(&d); err != nil {
			r.log.Error("cannot learn whether a guest is still to be started", "uuid", uuid, "error", err)
		}
		if r.Boot == "" || d.Boot != r.Boot {
			old = append(old, uuid)
			return nil
		}
		r.dues.left[uuid] = d
		return nil
	})
	for _, uuid := range old {
		r.forgetDue(uuid)
	}
	return err
}

// forgetDue strikes a guest off in the store, later where that takes no changes: another daemon of
// this boot would start it again.
func (r *Registry) forgetDue(uuid string) {
	err := r.store.Delete(dueKind, uuid)
	if err == nil {
		return
	}
	r.log.Error("cannot forget yet that a guest was to be started with the host", "uuid", uuid, "error", err)
	r.loops.Go(func() {
		_ = UntilDone(r.life, lastTry, func() error { // fails with the daemon's end
			if _, again := r.isDue(uuid); again { // it has crashed since
				return nil
			}
			return r.store.Delete(dueKind, uuid)
		})
	})
}

// isDue says whether and why this boot has still to start a guest.
func (r *Registry) isDue(uuid string) (due, bool) {
	r.dues.mu.Lock()
	defer r.dues.mu.Unlock()
	d, is := r.dues.left[uuid]
	return d, is
}

// hasRun strikes a guest off: it runs or ran in this boot, whoever started it, or its
// start is given up.
func (r *Registry) hasRun(uuid string) {
	r.dues.mu.Lock()
	_, is := r.dues.left[uuid]
	delete(r.dues.left, uuid)
	r.dues.mu.Unlock()
	if is {
		r.forgetDue(uuid)
		failpoint.Reach("autostart.struck")
	}
}

// Autostart starts the guests that are marked for it, once for each boot of the
// host. One that fails is told, tried again, and delays no other.
func (r *Registry) Autostart(ctx context.Context) {
	if r.Boot == "" {
		return
	}
	var noted string
	if err := r.store.Get(bootKind, lastBoot, &noted); err != nil && !fault.Is(err, fault.NotFound) {
		r.log.Error("cannot learn whether this boot's autostart is done; no more is started than is noted", "error", err)
		noted = r.Boot
		if err := r.store.Put(bootKind, lastBoot, noted); err != nil { // else no boot's to come would be
			r.log.Error("nor can that be noted", "error", err)
		}
	}
	if noted != r.Boot {
		r.chooseDues()
		if err := r.noteDues(); err != nil {
			r.log.Error("cannot note this boot's autostart; nothing is started until that can be done", "error", err)
			r.loops.Go(func() { r.autostartLate(ctx, scope.Daemon("autostart")) })
			return
		}
	}
	r.startDues(ctx, scope.Daemon("autostart"))
}

// autostartLate starts the guests of a boot when the store, which may be on a disk that is full,
// takes note of them: started without that, each would be started again by the next daemon.
func (r *Registry) autostartLate(ctx context.Context, sc scope.Scope) {
	if UntilDone(ctx, lastPause, r.noteDues) != nil {
		return // the daemon stops
	}
	r.log.Info("this boot's autostart is noted now, and begins")
	r.startDues(ctx, sc)
}

// startDues starts the guests that are left.
func (r *Registry) startDues(ctx context.Context, sc scope.Scope) {
	for _, uuid := range r.dues.all() {
		g, err := r.ByUUID(uuid)
		if err != nil || g.View().State.Active() {
			r.hasRun(uuid) // or is not defined any more
			continue
		}
		r.loops.Go(func() { g.autostart(ctx, sc) })
	}
}

// all gives the guests that are left, by UUID, in no order.
func (d *dues) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.left))
}

// chooseDues finds the guests that this boot is to start.
func (r *Registry) chooseDues() {
	for _, g := range r.All() {
		v := g.View()
		if !v.Autostart && !v.AutostartOnce || v.State.Active() {
			continue
		}
		r.dues.mu.Lock()
		r.dues.left[g.uuid] = due{Boot: r.Boot, Once: v.AutostartOnce}
		r.dues.mu.Unlock()
	}
}

// noteDues notes which guests this boot is to start. All are written at once, so
// that they share transactions.
func (r *Registry) noteDues() error {
	var noting errgroup.Group
	for _, uuid := range r.dues.all() {
		if d, is := r.isDue(uuid); is {
			noting.Go(func() error { return r.store.Put(dueKind, uuid, d) })
		}
	}
	err := noting.Wait()
	failpoint.Reach("autostart.listed")
	if err == nil {
		err = r.store.Put(bootKind, lastBoot, r.Boot)
	}
	failpoint.Reach("autostart.noted")
	return err
}

func (g *Guest) autostart(ctx context.Context, sc scope.Scope) {
	d, _ := g.reg.isDue(g.uuid)
	v := g.View()
	switch {
	case d.Crashed:
		_ = g.change(ctx, sc, "", func() error { // else it has gone, or the daemon stops
			if g.run == nil { // and else its start, if one is under way, is found to have been made
				g.startAgain("QEMU ended by itself")
			}
			return nil
		})
		return
	case d.Once && v.AutostartOnce:
		if err := g.SetAutostartOnce(ctx, sc, false); err != nil {
			g.log.Error("cannot take back the mark for one autostart", "error", err)
		}
	case !d.Once && !v.Autostart: // its user has changed their mind
		g.reg.hasRun(g.uuid)
		return
	}
	failpoint.Reach("autostart.start")
	err := g.Start(ctx, sc, StartOptions{})
	if err == nil || ctx.Err() != nil {
		return // the daemon stops: the next one goes on
	}
	_ = g.change(ctx, sc, "", func() error { // else it has gone, or the daemon stops
		if _, is := g.reg.isDue(g.uuid); is { // else its user was faster
			g.revival.boot = true
			g.notRevived(err)
		}
		return nil
	})
}
