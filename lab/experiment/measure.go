package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// stream is one load of one tile.
type stream struct {
	load     scenario.Load
	tile     int
	from, to *standing // from is nil for the host
	config   json.RawMessage
	tally    *tally
}

func (s *stream) name() string { return fmt.Sprintf("%s of tile %d", s.load.Name, s.tile) }

// measure runs all loads at once through the warm-up and the windows, and then
// holds the books against each other. What was stopped, or lost its daemon, is no
// result: it is an error, and the turn can be done again.
func (t *turn) measure(ctx context.Context) error {
	t.warming = newWarming(t.Plan.Warmup)
	streams := t.streams(ctx)
	for _, g := range t.standing() {
		var err error
		if g.clock, err = g.Clock(ctx); err == nil {
			g.counts, err = g.Counted(ctx)
		}
		if err != nil {
			t.trouble("agent", g.spec.Name, err)
		}
	}
	working, stop := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { t.watchHost(working) })
	began := time.Now()
	beside.Go(func() { t.watchGuests(working) })
	beside.Go(func() { t.events(ctx, working, began) })
	t.note(record.Event{Kind: record.Window, Window: record.WarmUp})
	var loads sync.WaitGroup
	for _, s := range streams {
		loads.Go(func() {
			defer t.warming.leave(s.tally.warmed)
			t.drive(ctx, s)
		})
	}
	beside.Go(func() { t.warmed(working) })
	if len(t.setup.Loads) == 0 && len(t.standing()) > 0 {
		t.pause(ctx, t.Plan.Warmup.Least+time.Duration(t.Plan.Windows)*t.Plan.Measure)
	}
	loads.Wait()
	stop(nil)
	beside.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := t.site.Reach(ctx); err != nil {
		return fault.Wrap(err, fault.Unresponsive, fault.Host, "its daemon is lost amid step %s of arm %s", t.at.Step, t.at.Arm)
	}
	for _, s := range streams {
		t.settle(s)
	}
	t.tell(streams)
	t.audit(ctx, streams)
	t.bounds(streams)
	return context.Cause(ctx)
}

// length is what loads are told to work for: of one that ends when it is told to, the
// most that it may come to, with the time in which that is told.
func (t *turn) length() time.Duration {
	windows := time.Duration(t.Plan.Windows) * t.Plan.Measure
	if t.Plan.Warmup.Fixed() {
		return t.Plan.Warmup.Least + windows
	}
	return t.Plan.Warmup.Most + windows + t.Plan.Warmup.Window + telling
}

// telling is how long it may take until what a load did is known.
const telling = time.Minute

// warmed notes what the warm-up came to, once it has.
func (t *turn) warmed(working context.Context) {
	select {
	case <-t.warming.over:
	case <-working.Done(): // it may have come to something all the same
	}
	for _, e := range t.warming.tell() {
		t.note(e)
	}
}

// pause is for a turn of guests that are only there.
func (t *turn) pause(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// streams works out the loads of every tile, and has what they need prepared.
// One that lacks a guest is left out, and told.
func (t *turn) streams(ctx context.Context) []*stream {
	var all []*stream
	for _, load := range t.setup.Loads {
		for tile := 1; tile <= t.tiles(load); tile++ {
			s := &stream{load: load, tile: tile}
			if err := t.ready(ctx, s); err != nil {
				t.trouble("load", s.name(), err)
				continue
			}
			s.tally = newTally(t.Plan, t.warming, load)
			all = append(all, s)
		}
	}
	return all
}

func (t *turn) tiles(load scenario.Load) int {
	role := load.From
	if role == hostRole {
		role = load.To
	}
	for _, g := range t.setup.Guests {
		if g.Role == role {
			return g.Count
		}
	}
	return 0
}

// at finds a role's guest in a tile; of a role that is there once it is that one.
func (t *turn) guest(tile int, role string) (*standing, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.setup.Guests {
		if g.Role == role && g.Count == 1 {
			tile = 1
		}
	}
	if g := t.guests[place{tile, role}]; g != nil {
		return g, nil
	}
	return nil, &Unavailable{fmt.Sprintf("its guest %s is not there", role)}
}

func (t *turn) ready(ctx context.Context, s *stream) (err error) {
	if s.to, err = t.guest(s.tile, s.load.To); err != nil {
		return err
	}
	if s.load.From == hostRole {
		s.from, err = t.vantage(ctx, s)
	} else {
		s.from, err = t.guest(s.tile, s.load.From)
	}
	if err != nil {
		return err
	}
	for _, errand := range s.load.Prepare {
		if _, err := t.errand(ctx, s, errand); err != nil {
			return fmt.Errorf("cannot prepare it: %w", err)
		}
	}
	config := maps.Clone(s.load.Config)
	if config == nil {
		config = map[string]any{}
	}
	config["duration"] = t.length().String()
	s.config, err = t.fill(s, config)
	return err
}

// errand runs one to its end and gives the sum of what it did.
func (t *turn) errand(ctx context.Context, s *stream, e scenario.Errand) (workload.Total, error) {
	var total workload.Total
	g, err := t.guest(s.tile, e.On)
	if err != nil {
		return total, err
	}
	config, err := t.fill(s, e.Config)
	if err != nil {
		return total, err
	}
	var failure error
	err = g.Load(ctx, e.Kind, config, func(i workload.Interval) bool {
		if err := total.Add(i); err != nil {
			failure = err
		}
		return true
	})
	if err == nil {
		err = failure
	}
	return total, err
}

// fill puts in what is known only now: "${web.address}" is that of the tile's
// guest, "${run.id}" names this turn, "${tile.number}" the tile, and "${tile.seed}"
// alone is what the tile's data are drawn from, and "${load.seed}" what the load draws
// from. Both are others in each repetition, and the same for all arms and steps of one:
// arms are compared under the same load, and chance differs between repetitions.
func (t *turn) fill(s *stream, config map[string]any) (json.RawMessage, error) {
	if config == nil {
		config = map[string]any{}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	known := []string{`"${tile.seed}"`, fmt.Sprint(t.seed(s.tile, "")), `"${load.seed}"`, fmt.Sprint(t.seed(s.tile, s.load.Name)), "${tile.number}", fmt.Sprint(s.tile), "${run.id}", strings.ReplaceAll(strings.TrimPrefix(t.w.Header.ID, "lab-"), "-", "")}
	for _, g := range t.setup.Guests {
		if one, err := t.guest(s.tile, g.Role); err == nil {
			known = append(known, "${"+g.Role+".address}", one.Address())
		}
	}
	return json.RawMessage(strings.NewReplacer(known...).Replace(string(text))), nil
}

// seed draws what a tile's data are made of, or what one of its loads draws from: tiles
// with the same data would be merged by the host, and loads with one seed come in step.
// It is below 2^31, as every program takes.
func (t *turn) seed(tile int, load string) uint64 {
	of := fnv.New64a()
	fmt.Fprintf(of, "%d %d %s", t.at.Repetition, tile, load)
	return rand.New(rand.NewPCG(t.w.Header.Seed, of.Sum64())).Uint64N(1 << 31)
}

// drive runs a load to its end.
func (t *turn) drive(ctx context.Context, s *stream) {
	take := func(i workload.Interval) bool {
		more, err := s.tally.add(i)
		t.keep(err)
		return more
	}
	var err error
	if s.from != nil {
		err = s.from.Load(ctx, s.load.Kind, s.config, take)
	} else {
		err = here(ctx, s, take)
	}
	if err != nil && ctx.Err() == nil {
		t.trouble("load", s.name(), err)
	}
}

// errEnough ends a load of the lab's own that has done what was wanted.
var errEnough = errors.New("the last window is over")

// here runs a load on the lab's own host.
func here(ctx context.Context, s *stream, take func(workload.Interval) bool) error {
	load, err := workload.New(s.load.Kind, s.config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	return load.Run(ctx, func(i workload.Interval) {
		if !take(i) {
			stop(errEnough)
		}
	})
}

// events does what the scenario wants amid the windows. What has begun while the loads
// work is done to its end.
func (t *turn) events(ctx, working context.Context, began time.Time) {
	var all sync.WaitGroup
	for _, e := range t.setup.Events {
		all.Go(func() {
			t.pause(working, t.until(working, began, e.At))
			if working.Err() != nil {
				if ctx.Err() == nil {
					t.note(record.Event{Kind: record.Skipped, What: e.Do, Text: "the loads ended before it was due"})
				}
				return
			}
			for tile := 1; ; tile++ {
				t.mu.Lock()
				g := t.guests[place{tile, e.Guest}]
				t.mu.Unlock()
				if g == nil {
					return
				}
				t.change(ctx, e, g)
			}
		})
	}
	all.Wait()
}

// until gives the time from now to a moment after the start of the first window, and
// waits for that where nobody knows it beforehand.
func (t *turn) until(working context.Context, began time.Time, at time.Duration) time.Duration {
	if t.Plan.Warmup.Fixed() {
		return time.Until(began.Add(t.Plan.Warmup.Least + at))
	}
	select {
	case <-t.warming.over:
	case <-working.Done():
	}
	return at
}

func (t *turn) change(ctx context.Context, e scenario.Event, g *standing) {
	g.busy.Lock() // its line may be another one afterwards
	defer g.busy.Unlock()
	c := change{Event: e, guest: g, began: time.Now()}
	var err error
	if c.figures, err = g.Change(ctx, e); err != nil {
		if ctx.Err() == nil {
			t.trouble(e.Do, g.spec.Name, err)
		}
		return
	}
	c.ended = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = append(t.done, c)
}
