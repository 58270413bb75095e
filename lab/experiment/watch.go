package experiment

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/telemetry"
)

// Guests are asked for their counters, each at most every so often and all together
// at most so many times a second: to answer takes a guest's time, and to keep it
// takes room.
const (
	askAfter    = 2 * time.Second
	asksASecond = 8
)

var errSlow = errors.New("the guest has not answered until it was to be asked again")

// period is how often each of so many guests is asked.
func period(guests int) time.Duration {
	return max(askAfter, time.Duration(guests)*time.Second/asksASecond)
}

// watchGuests asks all guests until ctx ends. Each waits for itself alone.
func (t *turn) watchGuests(ctx context.Context) {
	guests := t.standing()
	every := period(len(guests))
	var all sync.WaitGroup
	for i, g := range guests {
		all.Go(func() {
			t.pause(ctx, time.Duration(i)*every/time.Duration(len(guests)))
			t.watchGuest(ctx, g, every)
		})
	}
	all.Wait()
}

// watchGuest asks one. A guest that does not answer has a gap: that it is gone is
// told by its loads.
func (t *turn) watchGuest(ctx context.Context, g *standing, every time.Duration) {
	var guest telemetry.Guest
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		if counted := g.asked(ctx, every); len(counted) > 0 {
			values := guest.Read(time.Now(), counted)
			t.keep(t.w.Telemetry(record.Telemetry{Time: time.Now(), Turn: t.at, Source: "guest:" + g.spec.Name, Labels: labels(g.spec, nil), Values: values}))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// asked is what the guest has counted; nothing while something is done to it, or if
// it does not answer in time.
func (g *standing) asked(ctx context.Context, patience time.Duration) map[string]float64 {
	if !g.busy.TryLock() {
		return nil
	}
	defer g.busy.Unlock()
	ctx, stop := context.WithTimeoutCause(ctx, patience, errSlow)
	defer stop()
	counted, err := g.Counters(ctx)
	if err != nil {
		return nil
	}
	return counted
}
