package guest

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Guests marked for autostart are started once in each boot of the host. The list is stored before the
// first start. A guest is removed from it when it has run, or when its start is given up. So a daemon that
// is killed halfway leaves the rest to the next daemon, and no guest that ran is started again.

// bootKind is the record of the last boot with a stored autostart list.
var bootKind = store.Kind{Name: "boot", Version: 1}

const lastBoot = "autostarted"

// loadPendingStarts loads what an earlier daemon of this boot left to start, and deletes the records of earlier
// boots.
func loadPendingStarts(r *machine.Registry) error {
	var old []string
	err := r.Store.Each(machine.PendingStartKind, func(uuid string, decode func(any) error) error {
		var d machine.PendingStart
		if err := decode(&d); err != nil {
			r.Log.Error("cannot read whether a guest must still be started", "uuid", uuid, "error", err)
		}
		if r.Boot == "" || d.Boot != r.Boot {
			old = append(old, uuid)
			return nil
		}
		r.PendingStarts.Left[uuid] = d
		return nil
	})
	for _, uuid := range old {
		r.ForgetPendingStart(uuid)
	}
	return err
}

// Autostart starts the marked guests, once for each boot of the host. A start that fails is logged and
// tried again, and delays no other.
func Autostart(ctx context.Context, r *machine.Registry) {
	if r.Boot == "" {
		return
	}
	var noted string
	if err := r.Store.Get(bootKind, lastBoot, &noted); err != nil && !fault.Is(err, fault.NotFound) {
		r.Log.Error("cannot read whether this boot's autostart is done; only recorded guests are started", "error", err)
		noted = r.Boot
		if err := r.Store.Put(bootKind, lastBoot, noted); err != nil { // otherwise no later boot would start any guest
			r.Log.Error("cannot record that this boot's autostart is done", "error", err)
		}
	}
	if noted != r.Boot {
		choosePendingStarts(r)
		if err := storePendingStarts(r); err != nil {
			r.Log.Error("cannot note this boot's autostart; nothing is started until that can be done", "error", err)
			r.Loops.Go(func() { autostartLate(ctx, r, scope.Daemon("autostart")) })
			return
		}
	}
	startPending(ctx, r, scope.Daemon("autostart"))
}

// autostartLate starts the guests of a boot as soon as the store accepts the list: its disk may have been
// full. If they were started without it, the next daemon would start each of them again.
func autostartLate(ctx context.Context, r *machine.Registry, sc scope.Scope) {
	if machine.RetryUntilDone(ctx, maxRestartPause, func() error { return storePendingStarts(r) }) != nil {
		return // the daemon stops
	}
	r.Log.Info("this boot's autostart is noted now, and begins")
	startPending(ctx, r, sc)
}

// startPending starts the guests that are left.
func startPending(ctx context.Context, r *machine.Registry, sc scope.Scope) {
	for _, uuid := range pendingUUIDs(&r.PendingStarts) {
		g, err := r.ByUUID(uuid)
		if err != nil || g.View().State.Active() {
			r.HasStarted(uuid) // or it is no longer defined
			continue
		}
		r.Loops.Go(func() { autostartGuest(ctx, g, sc) })
	}
}

// pendingUUIDs returns the UUIDs of the guests that are left, in no order.
func pendingUUIDs(d *machine.PendingStarts) []string {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return slices.Collect(maps.Keys(d.Left))
}

// choosePendingStarts finds the guests that this boot is to start.
func choosePendingStarts(r *machine.Registry) {
	for _, g := range r.All() {
		v := g.View()
		if !v.Autostart && !v.AutostartOnce || v.State.Active() {
			continue
		}
		r.PendingStarts.Mu.Lock()
		r.PendingStarts.Left[g.UUID] = machine.PendingStart{Boot: r.Boot, Once: v.AutostartOnce}
		r.PendingStarts.Mu.Unlock()
	}
}

// storePendingStarts stores the list. All records are written concurrently, so that they share transactions.
func storePendingStarts(r *machine.Registry) error {
	var noting errgroup.Group
	for _, uuid := range pendingUUIDs(&r.PendingStarts) {
		if d, is := r.IsStartPending(uuid); is {
			noting.Go(func() error { return r.Store.Put(machine.PendingStartKind, uuid, d) })
		}
	}
	err := noting.Wait()
	failpoint.Reach("autostart.listed")
	if err == nil {
		err = r.Store.Put(bootKind, lastBoot, r.Boot)
	}
	failpoint.Reach("autostart.noted")
	return err
}

// autostartGuest starts one guest of the list: after a crash at once, otherwise if its mark is still set. A
// failed start is repeated after a pause.
func autostartGuest(ctx context.Context, g *machine.Guest, sc scope.Scope) {
	d, _ := g.Reg.IsStartPending(g.UUID)
	v := g.View()
	switch {
	case d.Crashed:
		_ = g.Change(ctx, sc, "", func() error { // otherwise it is gone, or the daemon stops
			if g.Instance == nil { // otherwise it is started already
				restartGuest(g, "QEMU ended unexpectedly")
			}
			return nil
		})
		return
	case d.Once && v.AutostartOnce:
		if err := SetAutostartOnce(ctx, g, sc, false); err != nil {
			g.Log.Error("cannot take back the mark for one autostart", "error", err)
		}
	case !d.Once && !v.Autostart: // the user has cleared the mark since
		g.Reg.HasStarted(g.UUID)
		return
	}
	failpoint.Reach("autostart.start")
	err := launch.Start(ctx, g, sc, launch.StartOptions{})
	if err == nil || ctx.Err() != nil {
		return // the daemon stops: the next one continues
	}
	_ = g.Change(ctx, sc, "", func() error { // otherwise it is gone, or the daemon stops
		if _, is := g.Reg.IsStartPending(g.UUID); is { // otherwise the user was faster
			g.Restarts.Boot = true
			onStartFailed(g, err)
		}
		return nil
	})
}
