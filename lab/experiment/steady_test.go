package experiment

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// Promise: L32
func TestWhenALoadIsSteady(t *testing.T) {
	exact := func(values ...float64) (all []reading) {
		for _, v := range values {
			all = append(all, reading{value: v})
		}
		return all
	}
	counts := func(done ...int64) (all []reading) {
		for _, n := range done {
			all = append(all, readRate(workload.Count{Done: n}))
		}
		return all
	}
	for _, c := range []struct {
		what string
		all  []reading
		want bool
		part float64
	}{
		{"nothing", nil, false, math.Inf(1)},
		{"two windows", exact(100, 100), false, math.Inf(1)},
		{"three alike", exact(100, 100, 100), true, 0},
		{"less than a twentieth", exact(98, 100, 102), true, 0.04},
		{"a twentieth", exact(97.5, 100, 102.5), false, 0.05},
		{"still rising", exact(90, 100, 110), false, 0.2},
		{"risen before", exact(1, 10, 100, 101, 99), true, 0.02},
		{"fallen at last", exact(100, 100, 100, 80), false, 3.0 / 14},
		{"nothing done", exact(0, 0, 0), false, math.Inf(1)},
		{"stalled", exact(100, 100, 0), false, 1.5},
		// Of a hundred operations chance makes a tenth more or less, of a million nothing.
		{"few", counts(90, 100, 110), true, 0.2},
		{"few, and risen", counts(60, 100, 140), false, 0.8},
		{"so few that nothing can be told", counts(8, 10, 12), false, 0.4},
		{"many", counts(900_000, 1_000_000, 1_100_000), false, 0.2},
	} {
		part, _ := apart(c.all)
		if got := steady(c.all, 0.05); got != c.want || math.Abs(part-c.part) > 1e-9 && part != c.part {
			t.Errorf("%s: steady %v, %v apart; want %v, %v", c.what, got, part, c.want, c.part)
		}
	}
}

// What comes at a given rate is done at that rate, warm or cold: its time tells.
func TestAnOpenLoadIsReadByItsTime(t *testing.T) {
	window := func(took, n int64) reading {
		h := hdrhistogram.New(1, 3600e6, 3)
		if err := h.RecordValues(took, n); err != nil {
			t.Fatal(err)
		}
		return readTime(workload.Count{Done: n, Latency: h})
	}
	if all := []reading{window(9000, 500), window(4000, 500), window(2000, 500)}; steady(all, 0.05) {
		t.Errorf("cold, and steady: %v", all)
	}
	if all := []reading{window(2000, 480), window(2040, 500), window(2000, 520)}; !steady(all, 0.05) {
		t.Errorf("warm, and not steady: %v", all)
	}
	if r := readTime(workload.Count{Done: 9}); r != (reading{9, 3}) {
		t.Errorf("one without times is read as %v", r)
	}
}

var rule = scenario.Warmup{Least: 6 * time.Second, Most: 20 * time.Second, Steady: 0.05, Window: 2 * time.Second}

// Two loads on two tiles each: the windows begin for all at once, when the slowest is
// steady, and behind what the fastest has told already.
// Promise: L32
func TestAllLoadsOfATurnAreWarmTogether(t *testing.T) {
	w := newWarming(rule)
	var loads []*warmed
	for _, name := range []string{"web", "web", "db", "db"} {
		loads = append(loads, w.join(scenario.Load{Name: name}))
	}
	tell := func(load, second int, done int64) (time.Duration, bool) {
		t.Helper()
		length, over, err := w.hear(loads[load], time.Duration(second)*time.Second, workload.Interval{Length: time.Second, Ops: map[string]workload.Count{"page": {Done: done}}})
		if err != nil {
			t.Fatal(err)
		}
		return length, over
	}
	tell(0, 0, 1e6) // a second ahead of the others
	for second := range 30 {
		for load := range loads {
			ahead, done := second, int64(1e6)
			if load == 0 {
				ahead++
			}
			if load == 2 && second < 3 {
				done = 1e5 // cold for its first three seconds
			}
			if length, over := tell(load, ahead, done); over {
				// Seconds 4 to 9 are alike, and the first load has told of ten and one more.
				if length != 11*time.Second || second != 9 && second != 10 {
					t.Fatalf("over after %v, at second %d of load %d", length, second, load)
				}
				said := w.tell()
				if len(said) != 1 || said[0].Values[record.ValueWarmup] != 11 || said[0].Values[record.ValueSteady] != 1 || said[0].Values["db apart_share"] != 0 {
					t.Errorf("it says %+v", said)
				}
				return
			}
		}
	}
	t.Fatal("it never ends")
}

func TestALoadThatEndsHoldsUpNoWarmUp(t *testing.T) {
	w := newWarming(rule)
	web, db := w.join(scenario.Load{Name: "web"}), w.join(scenario.Load{Name: "db"})
	w.leave(db)
	for second := range 8 {
		if _, over, _ := w.hear(web, time.Duration(second)*time.Second, workload.Interval{Length: time.Second, Ops: map[string]workload.Count{"page": {Done: 1e6}}}); over != (second >= 6) {
			t.Errorf("over %v at second %d", over, second)
		}
	}
	w = newWarming(rule)
	web = w.join(scenario.Load{Name: "web"})
	w.leave(web)
	if said := w.tell(); len(said) != 1 || said[0].Kind != record.Bad || !strings.Contains(said[0].Text, "no load has lived") {
		t.Errorf("of no load: %+v", said)
	}
}

// untilSteady is the small scenario of one arm and one tile.
var untilSteady = strings.NewReplacer(
	"warmup: 3s", "warmup: {least: 6s, most: 20s, steady: 5%}",
	"[{tiles: 1}, {tiles: 2}]", "[{tiles: 1}]",
	"repetitions: 2", "repetitions: 1",
	"arms: [{name: before, set: {nf: as-found}}, {name: after, set: {nf: \"off\"}}]", "arms: [{name: before, set: {nf: as-found}}]",
).Replace(text)

// Promise: L32
func TestARunWarmsUpUntilItIsSteady(t *testing.T) {
	b := newBenchOf(t, untilSteady)
	b.site.does = func(second int) int64 { return int64(min(10+90*second, 1000)) } // cold for eleven seconds
	r := b.do(t)
	if bad := events(r, record.Bad); len(bad) > 0 {
		t.Errorf("bad: %+v", bad)
	}
	var begins []record.Event
	for _, e := range events(r, record.Window) {
		if e.What == record.WhatWarmup {
			begins = append(begins, e)
		}
	}
	// Seconds 10 to 15 are alike: windows of two seconds that begin at even ones.
	if len(begins) != 1 || begins[0].Values[record.ValueWarmup] != 16 || begins[0].Values[record.ValueSteady] != 1 || begins[0].Text != "steady after 16s" {
		t.Fatalf("the first window: %+v", begins)
	}
	if done := values(r, record.MetricDone); len(done) != 2 || done[0] != 5000 || done[1] != 5000 {
		t.Errorf("done in the windows: %v", done)
	}
	if sent, served := values(r, record.MetricSent), values(r, record.MetricServed); len(sent) != 1 || sent[0] != served[0] {
		t.Errorf("sent %v, served %v", sent, served)
	}
	if s := r.Plan.Steady; r.Plan.Warmup != 6 || s == nil || s.Most != 20 || s.Within != 0.05 || s.Window != 2 {
		t.Errorf("the plan says %v s and %+v", r.Plan.Warmup, s)
	}
}

// Promise: L32
func TestARunThatNeverBecomesSteadySaysSo(t *testing.T) {
	b := newBenchOf(t, untilSteady)
	b.site.does = func(second int) int64 { return 1000 + 500*int64(second/2%2) }
	r := b.do(t)
	bad := events(r, record.Bad)
	if len(bad) != 1 || bad[0].What != record.WhatWarmup || !strings.Contains(bad[0].Text, "not steady after 20s: the last 3 windows of 2s differ by more than 5 %: inside by") {
		t.Errorf("bad: %+v", bad)
	}
	if done := values(r, record.MetricDone); len(done) != 2 || r.Outcome != record.Complete {
		t.Errorf("%s, done %v", r.Outcome, done)
	}
}

func TestWhatCannotBeWatchedIsRefused(t *testing.T) {
	b := newBenchOf(t, strings.Replace(untilSteady, "kind: web", "kind: sysbench", 1))
	_, err := Fit(b.plan, Room{Memory: scenario.TiB, Disk: scenario.TiB, Processors: 8}, true)
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "load inside (sysbench) tells how long its operations took at its end only") {
		t.Errorf("%v", err)
	}
}

// What a load lays out before it begins is none of its windows.
func TestWhatALoadSetsUpIsNoWindow(t *testing.T) {
	load, plan := scenario.Load{Name: "mail"}, &scenario.Plan{Warmup: scenario.Warmup{Least: 2 * time.Second}, Measure: 3 * time.Second, Windows: 1}
	tally := newTally(plan, newWarming(plan.Warmup), load)
	for second := range 9 {
		op := "read"
		if second < 4 {
			op = workload.OpSetup
		}
		if _, err := tally.add(workload.Interval{Start: time.Unix(int64(second), 0), Length: time.Second, Ops: map[string]workload.Count{op: {Done: 10}}}); err != nil {
			t.Fatal(err)
		}
	}
	if one := tally.windows[1]; one.Ops["read"].Done != 30 || one.Ops[workload.OpSetup].Done != 0 || tally.lengths[1] != 3*time.Second {
		t.Errorf("the window has %+v in %v", one.Ops, tally.lengths[1])
	}
}
