package experiment

import (
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// second is an interval of an open load: what was offered in it, and what ended in it,
// of itself and of earlier seconds.
func openSecond(number int, offered, done int64, late map[int]int64) workload.Interval {
	ops := func(n, took int64) map[string]workload.Count {
		if n == 0 {
			return nil
		}
		h := hdrhistogram.New(1, 3600e6, 3)
		_ = h.RecordValues(took, n)
		return map[string]workload.Count{"page": {Done: n, Latency: h}}
	}
	at := func(second int) time.Time { return time.Unix(1000+int64(second), 0) }
	i := workload.Interval{Start: at(number), Length: time.Second, Ops: ops(done, 2000), Arrivals: workload.Arrivals{Offered: offered, Served: done}}
	for second := range number {
		if n := late[second]; n > 0 {
			i.Late = append(i.Late, workload.Interval{Start: at(second), Length: time.Second, Ops: ops(n, int64(number-second)*1e6), Arrivals: workload.Arrivals{Served: n}})
		}
	}
	return i
}

// A server stalls through the last two seconds of the warm-up and through the last two
// of the window, and works both backlogs off a second later.
// Promise: L54
func TestWindows_BacklogCountsWhereItWasOffered(t *testing.T) {
	plan := &scenario.Plan{Warmup: scenario.Warmup{Least: 3 * time.Second}, Measure: 5 * time.Second, Windows: 1}
	tally := newTally(plan, newWarming(plan.Warmup), scenario.Load{Name: "web"})
	for second := range 9 {
		var i workload.Interval
		switch second {
		case 1, 2, 6, 7:
			i = openSecond(second, 10, 0, nil)
		case 3:
			i = openSecond(second, 10, 10, map[int]int64{1: 10, 2: 10})
		case 8:
			i = openSecond(second, 10, 10, map[int]int64{6: 10, 7: 10})
		default:
			i = openSecond(second, 10, 10, nil)
		}
		if _, err := tally.add(i); err != nil {
			t.Fatal(err)
		}
	}
	window := tally.windows[1]
	if window.Offered != 50 || window.Served != 50 || window.Ops["page"].Done != 50 {
		t.Errorf("the window: %+v, %d done", window.Arrivals, window.Ops["page"].Done)
	}
	if slowest := window.Ops["page"].Latency.Max(); slowest < 1_990_000 {
		t.Errorf("the slowest of the window took %d µs: that is not one of the stall", slowest)
	}
	if before := tally.windows[record.WarmUp]; before.Offered != before.Served {
		t.Errorf("beside the window: %+v", before.Arrivals)
	}
	if tally.gap != 2*time.Second {
		t.Errorf("the longest time without an operation is %v", tally.gap)
	}
	// By when they ended: zeros, and then all at once.
	var line []int64
	for _, s := range tally.seconds {
		line = append(line, s.done)
	}
	for second, want := range []int64{10, 0, 0, 30, 10, 10, 0, 0, 30} {
		if line[second] != want {
			t.Fatalf("the time line is %v", line)
		}
	}
}

// A load that is told when to stop goes on until all that was offered in its windows
// has come to its end.
// Promise: L54
func TestWindows_NoLoadIsStoppedBeforeItsSlowestArrivals(t *testing.T) {
	plan := &scenario.Plan{Warmup: rule, Measure: 4 * time.Second, Windows: 1}
	w := newWarming(rule)
	tally := newTally(plan, w, scenario.Load{Name: "web", Config: map[string]any{"mode": "open"}})
	more, second := true, 0
	var err error
	for ; more; second++ {
		i := openSecond(second, 10, 10, nil)
		switch second {
		case 9:
			i = openSecond(second, 10, 0, nil)
		case 13:
			i = openSecond(second, 10, 10, map[int]int64{9: 10})
		}
		if more, err = tally.add(i); err != nil || second > 20 {
			t.Fatalf("at second %d: %v", second, err)
		}
	}
	if window := tally.windows[1]; second != 14 || window.Offered != 40 || window.Served != 40 {
		t.Errorf("stopped after %d seconds with %+v", second, window.Arrivals)
	}
}

// What a closed load is cut off in as it is stopped is no error of the server's.
func TestWindows_WhatIsCutOffIsNoError(t *testing.T) {
	plan := &scenario.Plan{Warmup: rule, Measure: 4 * time.Second, Windows: 1}
	tally := newTally(plan, newWarming(rule), scenario.Load{Name: "jobs"})
	work := func(second int) workload.Interval {
		i := openSecond(second, 0, 10, nil)
		i.Arrivals = workload.Arrivals{}
		return i
	}
	for second := range 10 {
		if _, err := tally.add(work(second)); err != nil {
			t.Fatal(err)
		}
	}
	last := work(10)
	last.Late = []workload.Interval{{Start: time.Unix(1009, 0), Length: time.Second, Ops: map[string]workload.Count{"page": {Done: 2, Errors: 3, Example: "the load was stopped"}}}}
	if more, err := tally.add(last); more || err != nil {
		t.Fatalf("%v, %v", more, err)
	}
	if one := tally.windows[1].Ops["page"]; one.Done != 42 || one.Errors != 0 {
		t.Errorf("%d done, %d errors", one.Done, one.Errors)
	}
	if all := tally.all.Ops["page"]; all.Errors != 3 { // the books want them
		t.Errorf("%d errors are in the books", all.Errors)
	}
}

// Every operation of a load has a value for every second, in which nothing ended too.
// Promise: L55
func TestTimeLine_HasZeros(t *testing.T) {
	b := newBench(t)
	b.site.does = func(second int) int64 {
		if second == 5 || second == 6 {
			return 0
		}
		return 10
	}
	r := b.do(t)
	line := map[record.Turn][]float64{}
	for _, s := range r.Samples {
		if s.Metric == record.MetricSecond && s.Labels["tile"] == "1" {
			line[s.Turn] = append(line[s.Turn], s.Value)
		}
	}
	if len(line) != 8 {
		t.Fatalf("%d turns have a time line", len(line))
	}
	for turn, values := range line {
		if len(values) != 13 || values[4] != 10 || values[5] != 0 || values[6] != 0 || values[7] != 10 {
			t.Errorf("%v: %v", turn, values)
		}
	}
	for _, s := range r.Samples {
		if s.Metric == record.MetricLength && s.Window > 0 && s.Value != 5 {
			t.Errorf("a window is %v s long", s.Value)
		}
	}
}
