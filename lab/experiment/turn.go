package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

// turn is one that goes on.
type turn struct {
	*run
	at    record.Turn
	arm   record.Arm
	setup *scenario.Setup
	site  Site

	tuned   map[string]bool // settings of the host, by whether anything was changed for them
	warming *warming        // of what is measured

	mu     sync.Mutex
	guests map[place]*standing
	done   []change // in the order in which they came to an end
	broken error    // the record cannot be written: the run ends
}

// place is a role in a tile.
type place struct {
	tile int
	role string
}

// standing is a guest that answers.
type standing struct {
	Guest
	spec   Spec
	clock  Clock
	counts map[string]int64 // before the loads
	busy   sync.Mutex       // held while something is done to it or asked of it amid the windows
}

// turn does one. What goes wrong in it is kept in the record; an error ends the
// run.
func (r *run) turn(ctx context.Context, at record.Turn) (err error) {
	setup, arm, err := r.setup(at)
	if err != nil {
		return err
	}
	t := &turn{run: r, at: at, arm: arm, setup: setup, guests: map[place]*standing{}, tuned: map[string]bool{}}
	if t.site, err = r.site(arm); err != nil {
		return err
	}
	t.note(record.Event{Kind: record.Begin})
	if err := t.site.Lacks(ctx, setup.Guests); err != nil {
		if _, ok := errors.AsType[*Unavailable](err); !ok {
			return err
		}
		what := "guests"
		if arm.Native {
			what = record.WhatOutside
		}
		t.trouble(what, "", err)
		return t.broken
	}
	if err := r.open(ctx, arm, t.site); err != nil {
		return err
	}
	defer func() {
		left := t.clear(context.WithoutCancel(ctx))
		err = errors.Join(err, left, t.broken)
	}()
	if done := t.tune(t.lacking); done {
		return nil
	}
	t.boot(ctx)
	if done := t.tune(nil); done { // what came with the guests: a device that a disk of theirs lies on
		return nil
	}
	t.untuned()
	t.services(ctx)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return t.measure(ctx)
}

// note writes an event of this turn.
func (t *turn) note(e record.Event) {
	if e.Turn = t.at; e.Time.IsZero() {
		e.Time = time.Now()
	}
	t.keep(t.w.Event(e))
}

func (t *turn) keep(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = errors.Join(t.broken, err)
}

// trouble writes down what went wrong, or what cannot be done here.
func (t *turn) trouble(what, guest string, err error) {
	kind := record.Failed
	if _, ok := errors.AsType[*Unavailable](err); ok {
		kind = record.Skipped
	}
	t.note(record.Event{Kind: kind, What: what, Guest: guest, Text: err.Error()})
}

// tune changes the host's settings for the turn; those that are so already are left. A
// host that does not have them skips the turn; what it lacks of them is told, if anybody
// wants to know.
func (t *turn) tune(lacks func(tuning string, parts []string)) (skipped bool) {
	if t.foreign() {
		return true
	}
	for name, value := range t.setup.Host {
		changes, lacking, err := t.host.Plan(name, value)
		if unavailable, ok := errors.AsType[*tuning.Unavailable](err); ok {
			t.note(record.Event{Kind: record.Skipped, What: "tuning", Text: unavailable.Error()})
			return true
		}
		if err == nil {
			err = t.journal.Changed(changes)
		}
		if err == nil {
			err = t.host.Apply(changes)
		}
		if err != nil {
			t.trouble("tuning", "", err)
			return true
		}
		if lacks != nil && len(lacking) > 0 {
			lacks(name+"="+value, lacking)
		}
		t.tuned[name] = t.tuned[name] || len(changes) > 0
		for _, c := range changes {
			t.note(record.Event{Kind: record.Change, What: "tuning", Text: fmt.Sprintf("%s: %s -> %s", c.Path, c.Old, c.New)})
		}
	}
	return false
}

// lacking notes what the host does not have of a tuning.
func (t *turn) lacking(tuning string, parts []string) {
	t.note(record.Event{Kind: record.Skipped, What: "tuning", Text: fmt.Sprintf("of %s: %s", tuning, strings.Join(parts, "; "))})
}

// untuned notes the tunings as which the host was found: nothing was changed for them.
func (t *turn) untuned() {
	for name, value := range t.setup.Host {
		if value != tuning.AsFound && !t.tuned[name] {
			t.note(record.Event{Kind: record.Note, What: "tuning", Text: fmt.Sprintf("the host was found with %s=%s: nothing is changed", name, value)})
		}
	}
}

// specs lists the guests of the turn, tile by tile.
func (t *turn) specs() []Spec {
	var all []Spec
	tiles := 0
	for _, g := range t.setup.Guests {
		tiles = max(tiles, g.Count)
	}
	for tile := 1; tile <= tiles; tile++ {
		for _, g := range t.setup.Guests {
			if g.Count >= tile {
				all = append(all, Spec{
					Name:   fmt.Sprintf("%s-t%d-%s", t.w.Header.ID, tile, g.Role),
					Number: len(all) + 1, Tile: tile, Guest: g,
				})
			}
		}
	}
	return all
}

// each does something for all of a list, a few at a time.
func each[T any](ctx context.Context, list []T, atOnce int, do func(T)) {
	turns := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for _, one := range list {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			if ctx.Err() == nil {
				do(one)
			}
		})
	}
	group.Wait()
}

// boot starts the guests. One that does not come is missing from here on.
func (t *turn) boot(ctx context.Context) {
	each(ctx, t.specs(), t.Booting, func(spec Spec) { t.start(ctx, spec) })
}

func (t *turn) start(ctx context.Context, spec Spec) {
	began := time.Now()
	g, err := t.site.Boot(ctx, spec)
	if err != nil {
		t.trouble("boot", spec.Name, err)
		return
	}
	t.mu.Lock()
	t.guests[place{spec.Tile, spec.Role}] = &standing{Guest: g, spec: spec}
	t.mu.Unlock()
	form := "xml"
	if t.arm.Native {
		form = "json"
	}
	name := fmt.Sprintf("%s %s %d %s.%s", t.at.Arm, t.at.Step, t.at.Repetition, spec.Name, form)
	t.keep(t.w.Command(strings.ReplaceAll(name, "/", "-"), g.Definition())) // a step may be that of a device
	t.sample(record.Sample{Metric: record.MetricBoot, Value: time.Since(began).Seconds(), Unit: "s", Labels: labels(spec, nil)})
}

func labels(spec Spec, more record.Labels) record.Labels {
	all := record.Labels{"tile": fmt.Sprint(spec.Tile), "guest": spec.Role}
	maps.Copy(all, more)
	return all
}

func (t *turn) sample(s record.Sample) {
	s.Turn = t.at
	if s.Time.IsZero() {
		s.Time = time.Now()
	}
	t.keep(t.w.Sample(s))
}

func (t *turn) standing() []*standing {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*standing
	for _, g := range t.guests {
		all = append(all, g)
	}
	return all
}

// services sets up what is served. A guest whose service does not come up is
// given up.
func (t *turn) services(ctx context.Context) {
	each(ctx, t.standing(), t.Booting, func(g *standing) {
		for _, service := range g.spec.Services {
			if err := g.Prepare(ctx, service); err != nil {
				t.trouble(service.Kind, g.spec.Name, err)
				_ = t.drop(context.WithoutCancel(ctx), g) // that it failed is told
				return
			}
		}
	})
}

// drop gives a guest up.
func (t *turn) drop(ctx context.Context, g *standing) error {
	t.mu.Lock()
	delete(t.guests, place{g.spec.Tile, g.spec.Role})
	t.mu.Unlock()
	err := g.Close(ctx)
	if err != nil {
		t.trouble("destroy", g.spec.Name, err)
	}
	return err
}

// clear destroys the guests and restores the settings. A daemon that does not answer
// for one guest is not asked for the others, each of which would wait as long.
func (t *turn) clear(ctx context.Context) error {
	dropping, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	each(dropping, t.standing(), 2*t.Booting, func(g *standing) {
		if err := t.drop(dropping, g); fault.Is(err, fault.Timeout) {
			lost(fault.Wrap(err, fault.Unresponsive, fault.Host, "guests of the turn are left"))
		}
	})
	gone := context.Cause(dropping)
	left, err := t.journal.Restore(t.host)
	for _, text := range left {
		t.note(record.Event{Kind: record.Bad, What: "tuning", Text: text})
	}
	return errors.Join(gone, err)
}
