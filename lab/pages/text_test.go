package pages

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/record"
)

var update = flag.Bool("update", false, "write the texts that are compared with")

func shown(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	check(t, Report(dir, &out, Output{}))
	return out.String()
}

// Promise: L11
func TestTheReportIsTheOneThatIsKnown(t *testing.T) {
	s := newSynthetic(2)
	s.more = func(w *record.Writer, turn record.Turn) {
		if turn.Step == "tiles=2" && turn.Arm == "after" {
			check(t, w.Event(record.Event{Turn: turn, Kind: record.Bad, What: "bound", Window: 1, Text: "web of tile 2: latency.p99 is 1.2 s"}))
			check(t, w.Event(record.Event{Turn: turn, Kind: record.Skipped, What: "vcpus", Text: "the daemon adds none"}))
		}
		check(t, w.Sample(record.Sample{Turn: turn, Metric: record.MetricBoot, Value: 2.5, Unit: "s", Labels: record.Labels{"tile": "1", "guest": "web"}}))
	}
	got := shown(t, s.keep(t))
	if _, rest, ok := strings.Cut(got, "\nended"); ok { // when the test ran
		line, _, _ := strings.Cut(rest, "\n")
		got = strings.Replace(got, "\nended"+line, "", 1)
	}
	golden := filepath.Join("testdata", "known.txt")
	if *update {
		check(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	check(t, err)
	if got != string(want) {
		t.Errorf("the report is\n%s\nand not\n%s", got, want)
	}
}

// Promise: L11
func TestSumsAreThoseOfTheRecord(t *testing.T) {
	f, err := load(newSynthetic(3).keep(t))
	check(t, err)
	w := f.find("tiles=2", "before", "web", all)
	if !slices.Equal(w.rates, []float64{150, 150, 150}) || w.sum.done != 150*20*3 {
		t.Errorf("rates %v of %v done", w.rates, w.sum.done)
	}
	if got := f.linear(w); got != 0.75 {
		t.Errorf("%v of linear", got)
	}
	if got, want := f.jain(w), 150.0*150/(2*(60*60+90*90)); math.Abs(got-want) > 1e-12 {
		t.Errorf("Jain's index is %v and not %v", got, want)
	}
	// Two fifths wait 1 ms and three 2 ms: no mean of percentiles gives these.
	if p50, p95, mean := w.times.ValueAtQuantile(39), w.times.ValueAtQuantile(41), w.times.Mean(); p50 != 1000 || p95 < 2000 || p95 > 2001 || math.Abs(mean-1600) > 1 {
		t.Errorf("%v, %v, %v", p50, p95, mean)
	}
}

// What was measured before the loads were steady carries that wherever it is shown.
// Promise: L32
func TestFiguresOfRestlessLoadsAreMarked(t *testing.T) {
	s := newSynthetic(2)
	s.steady = &record.Steady{Most: 60, Within: 0.05, Window: 10}
	s.more = func(w *record.Writer, turn record.Turn) {
		steady := 1.0
		if turn.Arm == "after" && (turn.Step == "tiles=2" || turn.Repetition == 1) {
			steady = 0
			check(t, w.Event(record.Event{Turn: turn, Kind: record.Bad, What: record.WhatWarmup, Text: "not steady after 60s: web by 12 %"}))
		}
		check(t, w.Event(record.Event{Turn: turn, Kind: record.Window, Window: 1, What: record.WhatWarmup, Values: map[string]float64{record.ValueWarmup: 45, record.ValueSteady: steady}}))
	}
	out := shown(t, s.keep(t))
	has(t, out, "In 3 of 8 turns the loads never became steady, within 60.0 s at most", "a warm-up of 5.00 s to 60.0 s, until three windows of 10.0 s differ by less than 5.00 %", "not steady after 60s: web by 12 %")
	row(t, out, "Loads, tiles=1", "web, after (not steady in 1 of 2)")
	row(t, out, "Loads, tiles=2", "web, after (not steady)")
	row(t, out, "Loads, tiles=2", "web, before  ")
	row(t, out, "Arms beside before", "throughput of web at tiles=2, after (not steady) against before ")
	other := newSynthetic(2)
	other.steady = s.steady
	out = compared(t, Comparing{All: true}, s, other)
	has(t, out, "B beside A: at A the loads never became steady in 2 steps.")
	row(t, out, "B beside A, tiles=2", "throughput of web, after (not steady at A)")
	s.more = func(w *record.Writer, turn record.Turn) {
		check(t, w.Event(record.Event{Turn: turn, Kind: record.Window, Window: 1, What: record.WhatWarmup, Values: map[string]float64{record.ValueWarmup: float64(10 * turn.Repetition), record.ValueSteady: 1}}))
	}
	dir := s.keep(t)
	if out = shown(t, dir); strings.Contains(out, "not steady") {
		t.Errorf("all were steady, and yet:\n%s", out)
	}
	has(t, out, "All loads were steady before they were measured, after 10.0 s to 20.0 s.")
	f, err := load(dir)
	check(t, err)
	if got := f.length(record.Turn{Arm: "before", Repetition: 2, Step: "tiles=1"}); got != 40 {
		t.Errorf("a turn of two windows of 10 s after 20 s is %v s long", got)
	}
}

// Promise: L11
func TestALoadThatEndsEarlyIsNotTheFaster(t *testing.T) {
	s := &sums{seconds: map[int]float64{1: 10}, ops: map[string]*tally{all: {done: 1000}}}
	if got := s.rate(all, record.Plan{Windows: 2, Measure: 10}); got != 50 {
		t.Errorf("%v a second over two windows of which it missed one", got)
	}
	s.seconds = map[int]float64{2: 40} // it told all at its end
	if got := s.rate(all, record.Plan{Windows: 2, Measure: 10}); got != 25 {
		t.Errorf("%v a second of 1000 in 40 s", got)
	}
}

// Promise: L12
func TestEmulationIsNoPerformance(t *testing.T) {
	s := newSynthetic(1)
	if out := shown(t, s.keep(t)); strings.Contains(out, "Mechanism") {
		t.Errorf("a run under KVM:\n%s", out)
	}
	s.target.Accelerator = "tcg"
	if out := shown(t, s.keep(t)); !strings.HasPrefix(out, "Mechanism check, not a performance result: here's guests ran under tcg.") {
		t.Errorf("a run under TCG:\n%s", out)
	}
	s = newSynthetic(1)
	s.profile = "mini"
	if out := shown(t, s.keep(t)); !strings.HasPrefix(out, "Mechanism check, not a performance result: the profile is mini.") {
		t.Errorf("a small run:\n%s", out)
	}
}

// Promise: L12
func TestFewRepetitionsGiveNoVerdict(t *testing.T) {
	s := newSynthetic(5)
	if out := shown(t, s.keep(t)); !strings.Contains(out, "No verdict on 4 comparisons of 4: 5 and 5 repetitions, 6 each are wanted.") || strings.Contains(out, " is more:") {
		t.Errorf("five repetitions:\n%s", out)
	}
	s = newSynthetic(6)
	out := shown(t, s.keep(t))
	if !strings.Contains(out, "throughput of web at tiles=2, after against before is more: 1.80 times") {
		t.Errorf("six repetitions that are 1.8 times as fast:\n%s", out)
	}
	if strings.Contains(out, "throughput of web at tiles=1, after against before is more") {
		t.Errorf("the same is found more:\n%s", out)
	}
}

// Promise: L13
func TestWordsOfARecordSteerNoTerminal(t *testing.T) {
	s := newSynthetic(1)
	s.arms[1] = "evil\x1b[2J\nThe run is perfect"
	s.target.Daemon = "\x1b]0;owned\a"
	s.more = func(w *record.Writer, turn record.Turn) {
		check(t, w.Event(record.Event{Turn: turn, Kind: record.Failed, What: "boot", Text: "\x9b31m\u202e"}))
	}
	out := shown(t, s.keep(t))
	if strings.ContainsAny(out, "\x1b\a\u009b\u202e") || strings.Contains(out, "\nThe run is perfect") {
		t.Errorf("%q", out)
	}
}

// A page keeps its own words, and nothing of a record ends its marks or begins an
// element.
func TestARunGoesBetweenThePagesMarks(t *testing.T) {
	s := newSynthetic(2)
	s.target.Name = "<!-- end of known figures -->"
	dir := s.keep(t)
	page := filepath.Join(t.TempDir(), "figures.md")
	const before, after = "# Mine\n\n<!-- known figures: written by lodge lab -->\n", "<!-- end of known figures -->\nmore\n"
	check(t, os.WriteFile(page, []byte(before+"old\n"+after), 0o644))
	check(t, Report(dir, &strings.Builder{}, Output{Markdown: page}))
	text, err := os.ReadFile(page)
	check(t, err)
	got := string(text)
	if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) || strings.Contains(got, "old\n") || strings.Count(got, "<!-- end") != 1 {
		t.Errorf("the page is\n%s", got)
	}
	for _, want := range []string{"### Loads, tiles=2", "### Tiles together", "| web, after |", "Jain's index", "- host: "} {
		if !strings.Contains(got, want) {
			t.Errorf("the page has no %q:\n%s", want, got)
		}
	}
}
