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

// Guests marked for autostart are started once in each boot of the host. The list is stored before the
// first start. A guest is removed from it when it has run, or when its start is given up. So a daemon that
// is killed halfway leaves the rest to the next daemon, and no guest that ran is started again.

// bootKind is the record of the last boot with a stored autostart list.
var bootKind = store.Kind{Name: "boot", Version: 1}

const lastBoot = "autostarted"

// dueKind is the record of one guest that this boot has still to start, by UUID.
var dueKind = store.Kind{Name: "autostart", Version: 1}

// due names the boot for a guest's start, and the reason.
type due struct {
	Boot string
	Once bool // by AutostartOnce, which is then cleared
	// Crashed says that the guest ran and is started again because its QEMU ended unexpectedly.
	Crashed bool `json:",omitempty"`
}

// dues are the guests that this boot has still to start. mu guards left.
type dues struct {
	mu   sync.Mutex
	left map[string]due
}

// loadDues loads what an earlier daemon of this boot left to start, and deletes the records of earlier
// boots.
func (r *Registry) loadDues() error {
	var old []string
	err := r.store.Each(dueKind, func(uuid string, decode func(any) error) error {
		var d due
		if err := decode(&d); err != nil {
			r.log.Error("cannot read whether a guest must still be started", "uuid", uuid, "error", err)
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

// forgetDue deletes a guest's record from the store, and keeps trying if the store takes no changes.
// Otherwise another daemon of this boot would start the guest again.
func (r *Registry) forgetDue(uuid string) {
	err := r.store.Delete(dueKind, uuid)
	if err == nil {
		return
	}
	r.log.Error("cannot delete an autostart record; trying again", "uuid", uuid, "error", err)
	r.loops.Go(func() {
		_ = UntilDone(r.life, lastTry, func() error { // fails when the daemon stops
			if _, again := r.isDue(uuid); again { // it has crashed since
				return nil
			}
			return r.store.Delete(dueKind, uuid)
		})
	})
}

// isDue reports whether, and why, this boot has still to start a guest.
func (r *Registry) isDue(uuid string) (due, bool) {
	r.dues.mu.Lock()
	defer r.dues.mu.Unlock()
	d, is := r.dues.left[uuid]
	return d, is
}

// hasRun removes a guest from the list: it runs or ran in this boot, for whatever reason, or its start is
// given up.
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

// Autostart starts the marked guests, once for each boot of the host. A start that fails is logged and
// tried again, and delays no other.
func (r *Registry) Autostart(ctx context.Context) {
	if r.Boot == "" {
		return
	}
	var noted string
	if err := r.store.Get(bootKind, lastBoot, &noted); err != nil && !fault.Is(err, fault.NotFound) {
		r.log.Error("cannot read whether this boot's autostart is done; only recorded guests are started", "error", err)
		noted = r.Boot
		if err := r.store.Put(bootKind, lastBoot, noted); err != nil { // otherwise no later boot would start any guest
			r.log.Error("cannot record that this boot's autostart is done", "error", err)
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

// autostartLate starts the guests of a boot as soon as the store accepts the list: its disk may have been
// full. If they were started without it, the next daemon would start each of them again.
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
			r.hasRun(uuid) // or it is no longer defined
			continue
		}
		r.loops.Go(func() { g.autostart(ctx, sc) })
	}
}

// all returns the UUIDs of the guests that are left, in no order.
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

// noteDues stores the list. All records are written concurrently, so that they share transactions.
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

// autostart starts one guest of the list: after a crash at once, otherwise if its mark is still set. A
// failed start is repeated after a pause.
func (g *Guest) autostart(ctx context.Context, sc scope.Scope) {
	d, _ := g.reg.isDue(g.uuid)
	v := g.View()
	switch {
	case d.Crashed:
		_ = g.change(ctx, sc, "", func() error { // otherwise it is gone, or the daemon stops
			if g.run == nil { // otherwise it is started already
				g.startAgain("QEMU ended unexpectedly")
			}
			return nil
		})
		return
	case d.Once && v.AutostartOnce:
		if err := g.SetAutostartOnce(ctx, sc, false); err != nil {
			g.log.Error("cannot take back the mark for one autostart", "error", err)
		}
	case !d.Once && !v.Autostart: // the user has cleared the mark since
		g.reg.hasRun(g.uuid)
		return
	}
	failpoint.Reach("autostart.start")
	err := g.Start(ctx, sc, StartOptions{})
	if err == nil || ctx.Err() != nil {
		return // the daemon stops: the next one continues
	}
	_ = g.change(ctx, sc, "", func() error { // otherwise it is gone, or the daemon stops
		if _, is := g.reg.isDue(g.uuid); is { // otherwise the user was faster
			g.revival.boot = true
			g.notRevived(err)
		}
		return nil
	})
}
