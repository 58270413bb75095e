package pages

import (
	"fmt"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/record"
)

// synthetic is a run of one load, of one and of two tiles, by two arms, whose
// every value is known: two windows of ten seconds in each turn.
type synthetic struct {
	arms        [2]string
	repetitions int
	target      record.Target
	profile     string
	// rate is done in a second by one tile; wait is the latency of all of it, µs.
	rate func(arm, repetition, tiles, tile int) int64
	wait func(arm, repetition, tile int) int64
	more func(*record.Writer, record.Turn) // adds to a turn

	steady *record.Steady // when its warm-ups end

	host string  // its kernel, if it is another
	load float64 // of the host before
	trio []record.Target

	native  bool              // the second arm is outside of a guest
	instead map[string]string // and has this instead of what a step says: it is one tile
}

// newTrio is a run of one arm at three targets, of which the second is the first
// once more.
func newTrio(repetitions int, rate func(target string, repetition int) float64) synthetic {
	s := newSynthetic(repetitions)
	for _, name := range []string{"first", "again", "other"} {
		t := s.target
		t.Name, t.URI = name, "test:///first"
		if name == "other" {
			t.URI = "test:///other"
		}
		s.trio = append(s.trio, t)
	}
	s.rate = func(target, repetition, _, _ int) int64 { return int64(rate(s.trio[target].Name, repetition)) }
	s.wait = func(int, int, int) int64 { return 1000 }
	return s
}

func newSynthetic(repetitions int) synthetic {
	return synthetic{
		arms: [2]string{"before", "after"}, repetitions: repetitions, profile: "paper",
		target: record.Target{Name: "here", URI: "test:///", Daemon: "lodged", Library: "9.0.0", Hypervisor: "7.2.22", Accelerator: "kvm"},
		rate: func(arm, repetition, tiles, tile int) int64 {
			if tiles == 1 {
				return 100
			}
			return int64(60 + 30*(tile-1) + 60*arm)
		},
		wait: func(arm, _, tile int) int64 { return int64(1000 * tile * (arm + 1)) },
	}
}

var began = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

func (s synthetic) header() record.Header {
	second := 1.0
	h := record.Header{
		ID: "lab-x", Started: began, Command: "lodge lab run known", Version: "1", Seed: 7,
		Scenario: record.NewScenario("known", "What is known", s.profile, "name: known\n"),
		Image:    record.Image{Digest: "sha256:1234"}, Targets: []record.Target{s.target},
		Host: record.Host{Host: machine.Host{Processor: "P", Processors: 2, Memory: 8 << 30, Kernel: "6.1"}},
		Plan: record.Plan{
			Steps: []record.Step{{Name: "tiles=1", Axes: map[string]string{"tiles": "1"}}, {Name: "tiles=2", Axes: map[string]string{"tiles": "2"}}},
			Arms:  []record.Arm{{Name: s.arms[0], Target: "here"}, {Name: s.arms[1], Target: "here", Set: map[string]string{"cache": "none"}}},
			// A bound, two windows.
			Repetitions: s.repetitions, Windows: 2, Warmup: 5, Measure: 10,
			Bounds: []record.Bound{{Metric: "latency.p99", Labels: record.Labels{"load": "web"}, Below: &second, Unit: "s"}},
		},
	}
	h.Plan.Steady = s.steady
	if h.Host.Load = s.load; s.host != "" {
		h.Host.Kernel = s.host
	}
	if s.trio != nil {
		h.Targets, h.Plan.Arms = s.trio, nil
		for _, t := range s.trio {
			h.Plan.Arms = append(h.Plan.Arms, record.Arm{Name: "plain@" + t.Name, Target: t.Name})
		}
	}
	switch outside := (record.Arm{Name: s.arms[1], Set: s.instead, Native: true}); {
	case s.native && s.trio != nil:
		h.Plan.Arms = append(h.Plan.Arms, outside)
	case s.native:
		h.Plan.Arms[1] = outside
	}
	for repetition := 1; repetition <= s.repetitions; repetition++ {
		for _, step := range h.Plan.Steps {
			for _, arm := range h.Plan.Arms {
				h.Plan.Turns = append(h.Plan.Turns, record.Turn{Arm: arm.Name, Repetition: repetition, Step: step.Name})
			}
		}
	}
	return h
}

// keep writes the run and gives its directory.
func (s synthetic) keep(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	w, err := record.Create(dir, s.header())
	check(t, err)
	for i, turn := range w.Header.Plan.Turns {
		arm, tiles := 0, 1
		if turn.Arm == s.arms[1] {
			arm = 1
		}
		for i, t := range s.trio {
			if turn.Arm == "plain@"+t.Name {
				arm = i
			}
		}
		if turn.Step == "tiles=2" && (s.instead == nil || arm == 0) {
			tiles = 2
		}
		at := began.Add(time.Duration(i) * time.Minute)
		for tile := 1; tile <= tiles; tile++ {
			s.tile(t, w, turn, at, tile, s.rate(arm, turn.Repetition, tiles, tile), s.wait(arm, turn.Repetition, tile))
		}
		if s.more != nil {
			s.more(w, turn)
		}
		check(t, w.Finish(turn))
	}
	check(t, w.Seal(record.Complete))
	return dir
}

// tile writes what one tile did: a warm-up that is wrong in everything, and two
// windows.
func (s synthetic) tile(t *testing.T, w *record.Writer, turn record.Turn, at time.Time, tile int, rate, wait int64) {
	labels := record.Labels{"tile": fmt.Sprint(tile), "guest": "web", "load": "web", "op": "page"}
	add := func(window int, metric string, value float64, unit string) {
		check(t, w.Sample(record.Sample{Time: at, Turn: turn, Window: window, Metric: metric, Value: value, Unit: unit, Labels: labels}))
	}
	for window := range 3 {
		done := 10 * rate
		if window == record.WarmUp {
			done = 1
		}
		add(window, record.MetricDone, float64(done), "count")
		add(window, record.MetricErrors, 0, "count")
		add(window, record.MetricRate, float64(done)/10, "1/s")
		times := histogram.New()
		check(t, times.RecordValues(wait, done))
		h := record.Histogram{Time: at, Turn: turn, Window: window, Metric: record.MetricLatency, Unit: "µs", Labels: labels}
		check(t, h.Pack(times))
		check(t, w.Histogram(h))
	}
	for second := range 25 {
		window := 0
		if second >= 5 {
			window = 1 + (second-5)/10
		}
		check(t, w.Sample(record.Sample{Time: at.Add(time.Duration(second) * time.Second), Turn: turn, Window: window, Metric: record.MetricSecond, Value: float64(rate), Unit: "1/s", Labels: labels}))
	}
	add(1, record.MetricSent, float64(20*rate+1), "count")
	add(1, record.MetricServed, float64(20*rate+1), "count")
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
