package pages

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// truth is what really happens in a run that is made up.
type truth struct {
	stalls   bool // tile 1 of a pair stands still for 5 s, once, in the last of all turns
	half     bool // tile 2 is served half of what it asks for
	slow     bool // the second arm does a fifth less, and takes a quarter longer
	backlog  bool // nothing is served in the last 4 s of a warm-up
	coldErrs bool // three operations of a warm-up fail
}

// Two loads on one or two tiles: one by a schedule, one of a user who does not wait.
const truthText = `schema: lodge.lab/1
name: truth
profiles: {full: {tiles: [{tiles: 1}, {tiles: 2}]}}
arms: [{name: plain, set: {memory: 128MiB}}, {name: other, set: {memory: 256MiB}}]
steps: $tiles
repetitions: 7
warmup: 5s
measure: 30s
guests:
  - {role: web, count: $tiles, memory: $memory}
  - {role: client, count: $tiles, memory: 128MiB}
load:
  - {name: outside, kind: web, about: the client asks for a page, from: client, to: web, config: {mode: open, seed: "${load.seed}", rate: 5}}
  - {name: jobs, kind: mix-cpu, about: a user runs small jobs, from: web, config: {seed: "${load.seed}"}}
bounds: [{metric: errors, below: 1, unit: count}]
`

// simulated is a site whose guests work in no time, and tell what they would have done.
type simulated struct {
	truth
	mu      sync.Mutex
	slowed  bool // the arm whose guests are up is the second
	tiles   int  // that are up
	turns   int
	stalled bool
}

func (s *simulated) Describe() []record.Target {
	return []record.Target{{Name: "here", URI: "/here", Daemon: "lodged", Accelerator: "kvm"}}
}
func (s *simulated) Open(context.Context, string) error            { return nil }
func (s *simulated) Lacks(context.Context, []scenario.Guest) error { return nil }
func (s *simulated) Close(context.Context) error                   { return nil }
func (s *simulated) Reach(context.Context) error                   { return nil }

func (s *simulated) Boot(_ context.Context, spec experiment.Spec) (experiment.Guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec.Role == "web" {
		if spec.Tile == 1 {
			s.turns++
		}
		s.tiles, s.slowed = s.tiles+1, spec.Memory > 128*scenario.MiB
	}
	return &simulatedGuest{s, spec}, nil
}

type simulatedGuest struct {
	*simulated
	spec experiment.Spec
}

func (g *simulatedGuest) Address() string                                 { return g.spec.Name }
func (g *simulatedGuest) Definition() string                              { return "<domain/>" }
func (g *simulatedGuest) Prepare(context.Context, scenario.Service) error { return nil }
func (g *simulatedGuest) Serving(context.Context) error                   { return nil }
func (g *simulatedGuest) Counters(context.Context) (map[string]float64, error) {
	return nil, nil
}
func (g *simulatedGuest) Counted(context.Context) (map[string]int64, error) { return nil, nil }
func (g *simulatedGuest) Change(context.Context, scenario.Event) (map[string]float64, error) {
	return nil, nil
}

func (g *simulatedGuest) Clock(context.Context) (experiment.Clock, error) {
	now := time.Now()
	return experiment.Clock{At: now, Up: time.Duration(now.UnixNano())}, nil
}

func (g *simulatedGuest) Close(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spec.Role == "web" {
		g.tiles--
	}
	return nil
}

// seconds are those of a turn: 5 of warm-up, 30 that are measured, 2 to end in.
const truthSeconds = 37

func (g *simulatedGuest) Load(_ context.Context, kind string, config json.RawMessage, out func(workload.Interval) bool) error {
	var c struct {
		Seed uint64
		Rate float64
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	draws := rand.New(rand.NewPCG(c.Seed, 1))
	var all []workload.Interval
	if kind == "web" {
		all = g.schedule(draws, c.Rate)
	} else {
		all = g.jobs(draws)
	}
	for _, i := range all {
		out(i)
	}
	return nil
}

// lastTurn is that of two arms, two steps and seven repetitions.
const lastTurn = 28

var truthBegan = time.Unix(5000, 0)

func secondOf(second int) workload.Interval {
	return workload.Interval{Start: truthBegan.Add(time.Duration(second) * time.Second), Length: time.Second, Ops: map[string]workload.Count{}}
}

// standsStill is when nothing is answered, in s.
func (g *simulatedGuest) standsStill() (from, to float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.backlog:
		return 1, 5
	case g.stalls && !g.stalled && g.turns == lastTurn:
		g.stalled = true
		return 15, 20
	}
	return 0, 0
}

// schedule serves arrivals by chance, each when it comes or when the server goes on.
func (g *simulatedGuest) schedule(draws *rand.Rand, rate float64) []workload.Interval {
	var all []workload.Interval
	for second := range truthSeconds {
		all = append(all, secondOf(second))
	}
	from, to := 0.0, 0.0
	if g.spec.Tile == 1 {
		from, to = g.standsStill()
	}
	failures := 0
	for at := draws.ExpFloat64() / rate; at < 35; at += draws.ExpFloat64() / rate {
		took := 0.002 * math.Exp(0.1*draws.NormFloat64())
		if g.slow && g.slowed {
			took *= 1.25
		}
		ends := at + took
		if at >= from && at < to {
			ends = to + took
		}
		failed := g.half && g.spec.Tile == 2 && draws.IntN(2) == 0
		if g.coldErrs && at < 4 && failures < 3 {
			failed = true
			failures++
		}
		all[int(at)].Offered++
		ended(all, int(at), int(ends), failed, time.Duration(1e9*(ends-at)))
	}
	return all
}

// ended counts an operation where it belongs.
func ended(all []workload.Interval, home, end int, failed bool, took time.Duration) {
	of := &all[end]
	if end != home {
		at := -1
		for i := range of.Late {
			if of.Late[i].Start.Equal(all[home].Start) {
				at = i
			}
		}
		if at < 0 {
			of.Late, at = append(of.Late, secondOf(home)), len(of.Late)
		}
		of = &all[end].Late[at]
	}
	c := of.Ops["page"]
	if failed {
		of.Failed++
		c.Errors++
		c.Example = "not done within the timeout"
	} else {
		of.Served++
		c.Done++
		if c.Latency == nil {
			c.Latency = histogram.New()
		}
		histogram.Record(c.Latency, took)
	}
	of.Ops["page"] = c
}

// jobs does a hundred in a second, more or less.
func (g *simulatedGuest) jobs(draws *rand.Rand) []workload.Interval {
	rate := 100 * math.Exp(0.02*draws.NormFloat64())
	if g.slow && g.slowed {
		rate *= 0.8
	}
	if g.half && g.spec.Tile == 2 {
		rate /= 2
	}
	var all []workload.Interval
	for second := range truthSeconds - 2 {
		i := secondOf(second)
		done := int64(rate * (1 + 0.05*draws.NormFloat64()))
		h := histogram.New()
		_ = h.RecordValues(int64(1e6/rate), done)
		i.Ops["job"] = workload.Count{Done: done, Latency: h}
		all = append(all, i)
	}
	return all
}

// lived is a run in which something is true, with its report as text and as a page.
type lived struct {
	text, page string
	facts      *facts
}

// lives are those that were made already: several tests look at one.
var lives sync.Map

func told(t *testing.T, what truth) lived {
	t.Helper()
	if known, ok := lives.Load(what); ok {
		return known.(lived)
	}
	one := live(t, what)
	lives.Store(what, one)
	return one
}

func live(t *testing.T, what truth) lived {
	t.Helper()
	s, err := scenario.Parse([]byte(truthText))
	check(t, err)
	plan, err := s.Plan("full")
	check(t, err)
	dir, site := filepath.Join(t.TempDir(), "run"), &simulated{truth: what}
	w, err := record.Create(dir, record.Header{
		ID: "lab-x", Seed: 7, Scenario: record.NewScenario("truth", "", "full", truthText), Targets: site.Describe(), Plan: experiment.Describe(plan, []string{"here"}, 7),
	})
	check(t, err)
	check(t, experiment.Do(t.Context(), w, experiment.Options{Scenario: s, Plan: plan, Sites: map[string]experiment.Site{"here": site}, Root: t.TempDir()}))
	f, err := load(dir)
	check(t, err)
	html, err := f.html()
	check(t, err)
	return lived{f.text(), string(html), f}
}

// What really happened in a run is what its report says, and nothing else.
// Promise: L55, L57
func TestTruth_IsWhatTheReportSays(t *testing.T) {
	const stall, unfair, less, more = "Stall: ", "Unfair: ", " is less: ", " is more: "
	for _, c := range []struct {
		name  string
		truth truth
		says  []string
		not   []string
	}{
		{"nothing", truth{}, []string{"All bounds were kept in the measured windows."}, []string{stall, unfair, less, more, "Not all went well"}},
		{
			"a stall of 5 s",
			truth{stalls: true},
			[]string{"Stall: nothing of outside ended for 5", "in tile 1 at tiles=", "from second 15"},
			[]string{unfair, less, more, "nothing of jobs", "more stalls"},
		},
		{
			"a tile that is served half",
			truth{half: true},
			[]string{
				"Unfair: outside, plain at tiles=2: tile 2 was served less than the others", "where the others were served 100 %",
				"Unfair: jobs, plain at tiles=2: tile 2 was given less than the others", "Not all went well (exit status 5)", "A bound was broken in",
			},
			[]string{stall, "tile 1 was", "All bounds were kept"},
		},
		{
			"an arm that is 20 % slower",
			truth{slow: true},
			[]string{
				"throughput of jobs at tiles=1, other against plain is less: 0.8", "throughput of jobs at tiles=2, other against plain is less: 0.8",
				"p99 of outside at tiles=2, other against plain is more: 1.2",
			},
			[]string{stall, unfair, "served of offered of outside at tiles=2, other against plain is"},
		},
		{
			"a warm-up whose backlog is done in the window",
			truth{backlog: true},
			[]string{"2 tiles were offered", "a second and served 100 % of it"},
			[]string{stall, unfair, less, more},
		},
		{
			"errors in the warm-up alone",
			truth{coldErrs: true},
			[]string{"Not all went well (exit status 5)", "outside of the measured windows: not done within the timeout", "None of the ", "operations failed outside of the measured windows"},
			[]string{stall, unfair, less, more},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := told(t, c.truth)
			verdict, _, _ := strings.Cut(run.text, "\nscenario ")
			shown, _, _ := strings.Cut(run.page, `<section id="what">`)
			shown = strings.NewReplacer("\u00a0", " ", "&#34;", `"`).Replace(shown)
			for _, words := range c.says {
				if !strings.Contains(verdict, words) || !strings.Contains(shown, words) {
					t.Errorf("%q is not said, or not on the page:\n%s", words, verdict)
				}
			}
			for _, words := range c.not {
				if strings.Contains(verdict, words) || strings.Contains(shown, words) {
					t.Errorf("%q is said:\n%s", words, verdict)
				}
			}
		})
	}
}

// Chance offers one tile more than another. Both are served all of it: they are treated
// alike, and two do as well as one.
// Promise: L55
func TestTruth_ChanceIsNotUnfair(t *testing.T) {
	run := told(t, truth{})
	f := run.facts
	unlike := 0.0
	for _, w := range f.flows {
		if w.load != "outside" || w.op != all || len(w.tiles) < 2 {
			continue
		}
		if jain, linear := f.jain(w), f.linear(w); jain != 1 || linear != 1 {
			t.Errorf("%s: Jain's index is %v, and it is %v of linear", w.name(), jain, linear)
		}
		for i := range w.turns {
			unlike = max(unlike, math.Abs(w.offers["1"][i]/w.offers["2"][i]-1))
		}
	}
	if unlike < 0.1 {
		t.Errorf("tiles were offered the same, within %v: that tells nothing", unlike)
	}
	has(t, row(t, run.text, "Tiles, tiles=2", "outside, plain"), "100 %", "50.0 %")
	// No repetition is offered what another one was.
	offered := f.find("tiles=2", "plain", "outside", all).offered()
	for i, one := range offered[1:] {
		if one == offered[i] && one == offered[0] {
			t.Errorf("in each repetition the same is offered: %v", offered)
		}
	}
}

// What a warm-up leaves behind is no throughput of the window that follows.
// Promise: L54
func TestTruth_NoLoadDoesMoreThanItIsOffered(t *testing.T) {
	f := told(t, truth{backlog: true}).facts
	for _, w := range f.flows {
		if w.load != "outside" || w.op != all {
			continue
		}
		for i, rate := range w.rates {
			if offered := w.offered()[i]; rate > offered+1e-9 {
				t.Errorf("%s at %s, repetition %d: %v a second were done of %v", w.name(), w.step, w.turns[i], rate, offered)
			}
		}
		if worst := w.times.Max(); worst > 100_000 {
			t.Errorf("%s: a time of the warm-up, %d µs, is in the window", w.name(), worst)
		}
	}
}

// A stall is zeros on the line that is drawn, and not a line between what is beside it.
// Promise: L55
func TestTruth_AStallIsDrawn(t *testing.T) {
	f := told(t, truth{stalls: true}).facts
	zeros := map[record.Turn]int{}
	for _, turn := range f.run.Plan.Turns {
		points, _ := f.perSecond(turn, "outside")
		run := 0
		for _, p := range points {
			if run++; p.Y > 0 {
				run = 0
			}
			zeros[turn] = max(zeros[turn], run)
		}
	}
	longest := f.stalls()[0].turn
	if strings.HasSuffix(longest.Step, "=1") && zeros[longest] < 5 {
		t.Errorf("in %v the line is zero for %d s", longest, zeros[longest])
	}
	lines, _ := f.timeLines(longest, "outside")
	zero := 0.0
	for _, one := range lines["1"] {
		if one.rate == 0 && one.at >= 15 && one.at < 20 {
			zero += one.length
		}
	}
	if math.Abs(zero-5) > 0.01 {
		t.Errorf("of the 5 s of the stall %v are zero", zero)
	}
}

// A guest that did not answer for a while has a gap, and no line that leads over it.
func TestTruth_WhatDidNotAnswerHasAGap(t *testing.T) {
	f := told(t, truth{}).facts
	turn := f.run.Plan.Turns[0]
	began := f.began(turn)
	var telemetry []record.Telemetry
	for second := range 30 {
		if second >= 10 && second < 15 {
			continue
		}
		telemetry = append(telemetry, record.Telemetry{Time: began.Add(time.Duration(second) * time.Second), Turn: turn, Source: "host", Values: map[string]float64{"cpu_busy_cores": 1}})
	}
	alone := &facts{run: f.run, beginnings: f.beginnings, telemetry: map[record.Turn][]record.Telemetry{turn: telemetry}}
	gaps := 0
	for _, p := range alone.told(turn, "", ofHost[0]) {
		if math.IsNaN(p.Y) {
			gaps++
			if p.X < 10 || p.X >= 15 {
				t.Errorf("a gap at second %v", p.X)
			}
		}
	}
	if gaps != 1 {
		t.Errorf("%d gaps", gaps)
	}
}
