package experiment

import (
	"math"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// A load that does ten pieces of work a second stands still for two seconds amid a
// migration, in which one operation waits for a second and a half.
// Promise: L31
func TestWhatAnEventCosts(t *testing.T) {
	load, plan := scenario.Load{Name: "orders"}, &scenario.Plan{Warmup: scenario.Warmup{Least: 2 * time.Second}, Measure: 30 * time.Second, Windows: 1}
	s := &stream{load: load, tally: newTally(plan, newWarming(plan.Warmup), load)}
	start := time.Unix(1000, 0)
	for second := range 22 {
		done, took := int64(10), int64(2000)
		switch second {
		case 12, 13:
			done = 0
		case 14:
			done, took = 4, 1_500_000
		}
		h := hdrhistogram.New(1, 3600e6, 3)
		if err := h.RecordValues(took, done); err != nil {
			t.Fatal(err)
		}
		ops := map[string]workload.Count{"order": {Done: done, Latency: h}, workload.OpUndone: {Done: 1000}}
		if _, err := s.tally.add(workload.Interval{Start: start.Add(time.Duration(second) * time.Second), Length: time.Second, Ops: ops}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(seconds float64) time.Time {
		return s.tally.began.Add(time.Duration(seconds * float64(time.Second)))
	}
	before, during, after := s.tally.within(at(0), at(11.5)), s.tally.touching(at(11.5), at(13.5)), s.tally.within(at(15), at(99))
	if before.rate() != 10 || before.length != 9*time.Second { // without the warm-up and the second that it began in
		t.Errorf("before: %+v", before)
	}
	if during.done != 10 || during.length != 3*time.Second || after.rate() != 10 {
		t.Errorf("while and after: %+v, %+v", during, after)
	}
	if wait := s.tally.wait(at(11.5), at(13.5)); wait != 2*time.Second {
		t.Errorf("nothing was done for two seconds, and it waited %v", wait)
	}
	if wait := s.tally.wait(at(13.2), at(13.5)); wait < 1499*time.Millisecond || wait > 1502*time.Millisecond {
		t.Errorf("an operation that ended after it took 1.5 s, and it waited %v", wait)
	}
	if wait := s.tally.wait(at(3), at(4)); wait > 3*time.Millisecond {
		t.Errorf("where nothing stood still it waited %v", wait)
	}
}

// Promise: L31
func TestEventsAreToldWithWhatTheyMeant(t *testing.T) {
	b := newBench(t)
	for _, row := range b.plan.Setups {
		for _, u := range row {
			u.Events = []scenario.Event{{Do: scenario.DoMigrate, Guest: "web"}}
		}
	}
	b.plan.Warmup = scenario.Warmup{}
	b.plan.Steps, b.plan.Repetitions = b.plan.Steps[:1], 1
	b.site.hold, b.site.held = make(chan struct{}), make(chan struct{}, 100)
	b.site.change = func(string, scenario.Event) error {
		b.site.hold <- struct{}{} // the load may go on
		return nil
	}
	r := b.do(t)
	var told []record.Event
	for _, e := range events(r, record.Change) {
		if e.What == scenario.DoMigrate {
			told = append(told, e)
		}
	}
	if len(told) != 2 || told[0].Values["told_s"] != 3 || told[0].Guest != "lab-x-t1-web" {
		t.Fatalf("%+v", told)
	}
	if waits := values(r, record.MetricPause); len(waits) != 2 || math.IsNaN(waits[0]) {
		t.Errorf("pauses %v", waits)
	}
}
