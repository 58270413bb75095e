package experiment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/telemetry"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

// Afar is a Site that may be on another host than the lab: then nothing is known of
// that host but what its daemon tells, and the guests may not be reached from here.
type Afar interface {
	Site
	Away() bool
	// HostCounters are what the host has counted; names end in their unit.
	HostCounters(ctx context.Context) (map[string]float64, error)
	// Reaches says why a guest does not answer the lab at its address; nil that it does.
	Reaches(ctx context.Context, guest Guest) error
}

// afar is the turn's site, if it is on another host.
func (t *turn) afar() Afar {
	if s, ok := t.site.(Afar); ok && s.Away() {
		return s
	}
	return nil
}

// foreign reports whether the turn wants settings of a host that is not the lab's,
// which it tells: they cannot be changed from here, and those of this host are not
// meant.
func (t *turn) foreign() bool {
	if t.afar() == nil {
		return false
	}
	for name, value := range t.setup.Host {
		if value != tuning.AsFound {
			t.note(record.Event{Kind: record.Skipped, What: "tuning", Text: fmt.Sprintf("%s: settings of another host are not changed, and the daemon is on one", name)})
			return true
		}
	}
	return false
}

// watchHost reads the host that the guests are on until ctx ends.
func (t *turn) watchHost(ctx context.Context) {
	site := t.afar()
	if site == nil {
		t.watch(ctx, t.at)
		return
	}
	var host telemetry.Guest // what a daemon tells of its host has that form
	tick := time.NewTicker(askAfter)
	defer tick.Stop()
	for ctx.Err() == nil {
		if counted := ask(ctx, site); len(counted) > 0 {
			now := time.Now()
			t.keep(t.w.Telemetry(record.Telemetry{Time: now, Turn: t.at, Source: "host", Values: host.Read(now, counted)}))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// ask gives nothing of a daemon that does not answer in time: there is a gap then.
func ask(ctx context.Context, site Afar) map[string]float64 {
	ctx, stop := context.WithTimeoutCause(ctx, askAfter, errSlow)
	defer stop()
	counted, err := site.HostCounters(ctx)
	if err != nil {
		return nil
	}
	return counted
}

// outsideRole is the role of guests that loads from the host run in, where the guests
// do not answer the lab.
const outsideRole = "outside"

// Outside is what a run deviates in that has such guests.
const Outside = "loads from the lab's host run in guests of the role " + outsideRole + " on the daemon's host, one for each tile, because the lab does not reach the guests' addresses"

// outsideGuest has what a client of the papers has.
var outsideGuest = scenario.Guest{
	Role: outsideRole, Count: 1, Memory: 256 * scenario.MiB, MaxMemory: 256 * scenario.MiB, VCPUs: 1, MaxVCPUs: 1, TBCache: 64 * scenario.MiB,
}

// withOutside adds to each setup of a plan what guests for loads from the host would
// take, for sums.
func withOutside(plan *scenario.Plan) (wide [][]*scenario.Setup) {
	for _, row := range plan.Setups {
		var all []*scenario.Setup
		for _, u := range row {
			one := *u
			if n := outsideTiles(u); n > 0 {
				g := outsideGuest
				g.Count = n
				one.Guests = append(slices.Clone(u.Guests), g)
			}
			all = append(all, &one)
		}
		wide = append(wide, all)
	}
	return wide
}

// outsideTiles is in how many tiles there is a load from the host.
func outsideTiles(u *scenario.Setup) (n int) {
	for _, l := range u.Loads {
		for _, g := range u.Guests {
			if l.From == hostRole && g.Role == l.To {
				n = max(n, g.Count)
			}
		}
	}
	return n
}

// hostRole is where the lab itself runs.
const hostRole = "host"

// vantage gives the guest that a load from the host runs in; nil for the lab's host
// itself, which it is wherever that reaches the guest that serves.
func (t *turn) vantage(ctx context.Context, s *stream) (*standing, error) {
	site := t.afar()
	if site == nil {
		return nil, nil
	}
	if !slices.Contains(t.w.Header.Deviations, Outside) {
		why := site.Reaches(ctx, s.to.Guest)
		if why == nil {
			return nil, nil
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := t.w.Describe(func(h *record.Header) { h.Deviations = append(slices.Clone(h.Deviations), Outside) }); err != nil {
			return nil, err
		}
		t.note(record.Event{Kind: record.Note, What: outsideRole, Text: fmt.Sprintf("from now on %s: %v", Outside, why)})
	}
	at := place{s.tile, outsideRole}
	t.mu.Lock()
	g := t.guests[at]
	t.mu.Unlock()
	if g != nil {
		return g, nil
	}
	for _, role := range t.setup.Guests {
		if role.Role == outsideRole {
			return nil, &Unavailable{"the lab does not reach the guests, and the scenario has a role " + outsideRole + " of its own, so that no guest can be made for the load"}
		}
	}
	t.start(ctx, Spec{
		Name:   fmt.Sprintf("%s-t%d-%s", t.w.Header.ID, s.tile, outsideRole),
		Number: len(t.specs()) + s.tile, Tile: s.tile, Guest: outsideGuest,
	})
	return t.guest(s.tile, outsideRole)
}
