package guest

import (
	"context"
	"errors"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/store"
)

// bootKind is the record of the last boot of the host whose autostart is done.
var bootKind = store.Kind{Name: "boot", Version: 1}

const lastBoot = "autostarted"

// Autostart starts the guests that are marked for it, once for each boot of the
// host: a daemon that is only restarted starts nobody. One that fails is logged
// and delays no other.
func (r *Registry) Autostart(ctx context.Context) {
	var done string
	if err := r.store.Get(bootKind, lastBoot, &done); err != nil && !fault.Is(err, fault.NotFound) {
		r.log.Error("cannot learn whether this boot's autostart is done; nothing is started", "error", err)
		return
	}
	if r.Boot == "" || done == r.Boot {
		return
	}
	if err := r.store.Put(bootKind, lastBoot, r.Boot); err != nil {
		r.log.Error("cannot note this boot's autostart; nothing is started", "error", err)
		return
	}
	failpoint.Reach("autostart.noted")
	for _, g := range r.All() {
		v := g.View()
		marked := v.Autostart || v.AutostartOnce
		if !marked || v.State.Active() {
			continue
		}
		r.loops.Go(func() { g.autostart(ctx, v.AutostartOnce) })
	}
}

func (g *Guest) autostart(ctx context.Context, once bool) {
	if once {
		if err := g.SetAutostartOnce(ctx, false); err != nil {
			g.log.Error("cannot take back the mark for one autostart", "error", err)
		}
	}
	failpoint.Reach("autostart.start")
	err := g.Start(ctx, StartOptions{})
	if err != nil && !errors.Is(err, context.Canceled) {
		g.log.Error("cannot start a guest that is marked for autostart", "error", err)
	}
}
