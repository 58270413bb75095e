package experiment

import (
	"errors"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// beside makes of the second arm one that is outside of a guest, and gives where it is.
func (b *bench) beside(t *testing.T) *fake {
	t.Helper()
	text := strings.Replace(text, `{name: after, set: {nf: "off"}}`, `{name: native, set: {nf: "off"}, native: true}`, 1)
	text = strings.Replace(text, "from: client, to: web", "from: web", 1)
	var err error
	if b.scn, err = scenario.Parse([]byte(text)); err == nil {
		b.plan, err = b.scn.Plan("mini")
	}
	if err != nil {
		t.Fatal(err)
	}
	return newFake()
}

func (b *bench) doBeside(t *testing.T, outside Site, targets ...string) *record.Run {
	t.Helper()
	w, err := record.Create(b.dir, record.Header{ID: "lab-x", Scenario: record.NewScenario("small", "", "mini", text), Plan: Describe(b.plan, targets, 7)})
	if err != nil {
		t.Fatal(err)
	}
	o := b.options()
	o.Outside = outside
	for _, name := range targets {
		o.Sites[name] = b.site
	}
	if err := Do(t.Context(), w, o); err != nil {
		t.Fatal(err)
	}
	return b.load(t, b.dir)
}

// However many daemons there are, what is outside of guests is done once, in its turn,
// with its own values, and elsewhere.
// Promise: L46
func TestAnArmOutsideOfAGuestTakesItsTurnsOnce(t *testing.T) {
	b := newBench(t)
	outside := b.beside(t)
	r := b.doBeside(t, outside, "a", "b")
	if len(r.Plan.Turns) != 3*2*2 || len(events(r, record.Done)) != 3*2*2 {
		t.Errorf("%d turns, of which %d count", len(r.Plan.Turns), len(events(r, record.Done)))
	}
	native := r.Plan.Outside()
	if len(native) != 1 || native[0].Name != "native" || native[0].Target != "" || native[0].Set["nf"] != "off" || len(r.Plan.InGuests()) != 2 {
		t.Errorf("arms %+v", r.Plan.Arms)
	}
	for _, e := range events(r, record.Change) { // its setting is its own
		if e.Arm != "native" {
			t.Errorf("%s: %s", e.Arm, e.Text)
		}
	}
	if len(events(r, record.Change)) == 0 {
		t.Error("its setting is not made")
	}
	// Two roles, one tile and then two, two repetitions.
	if len(outside.booted) != 2*(1+2)*2 || len(b.site.booted) != 2*len(outside.booted) || outside.left() > 0 {
		t.Errorf("outside %d began and %d are left; in guests %d", len(outside.booted), outside.left(), len(b.site.booted))
	}
	if outside.opened != 1 || outside.closed != 1 {
		t.Errorf("opened %d times and closed %d times", outside.opened, outside.closed)
	}
}

// A host on which nothing can be run outside of a guest says so, and measures guests.
// Promise: L46
func TestAnArmThatCannotBeOutsideIsSkipped(t *testing.T) {
	b := newBench(t)
	outside := b.beside(t)
	outside.lacks = func([]scenario.Guest) error { return &Unavailable{"only root can"} }
	r := b.doBeside(t, outside, "a")
	skipped := 0
	for _, e := range events(r, record.Skipped) {
		if e.Arm != "native" || e.What != record.WhatOutside || e.Text != "only root can" {
			t.Errorf("skipped: %+v", e)
		}
		skipped++
	}
	if skipped != 4 || r.Outcome != record.Complete || outside.opened > 0 || len(outside.booted) > 0 {
		t.Errorf("%d turns are skipped, and the run is %s; %+v", skipped, r.Outcome, outside)
	}
	for _, s := range r.Samples {
		if s.Arm == "native" {
			t.Errorf("measured: %+v", s)
		}
	}
	if len(values(r, record.MetricDone)) == 0 {
		t.Error("guests were not measured")
	}
}

func TestTheJournalKnowsWhatMayBeOutside(t *testing.T) {
	b := newBench(t)
	outside := b.beside(t)
	outside.boot = func(Spec) error {
		if j := mustJournal(t, b.dir); !j.Outside() {
			t.Error("something is begun outside of a guest that the journal does not know of")
		}
		return errors.New("no")
	}
	b.doBeside(t, outside, "a")
	if mustJournal(t, b.dir).Outside() {
		t.Error("the journal has not forgotten")
	}
}
