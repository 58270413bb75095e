package pages

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// Promise: L14
func TestOtherWorkIsNotCompared(t *testing.T) {
	a := newSynthetic(1)
	b := a
	b.profile = "mini"
	b.target.Accelerator = "tcg"
	var out strings.Builder
	err := Compare([]string{a.keep(t), b.keep(t)}, Comparing{AcrossHosts: true}, &out)
	if err == nil || !strings.Contains(err.Error(), "profile: paper against mini") || !strings.Contains(err.Error(), "accelerator: kvm against tcg") || out.Len() > 0 {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, r := range []record.Outcome{record.Interrupted, ""} {
		half := &record.Run{Header: a.header(), Dir: "half"}
		half.Outcome = r
		if _, err := comparable(half, half, false); err == nil || !strings.Contains(err.Error(), "half is not complete") {
			t.Errorf("a run that is %q: %v", r, err)
		}
	}
	if err := Compare([]string{a.keep(t)}, Comparing{}, &out); err == nil || !strings.Contains(err.Error(), "has one target") {
		t.Errorf("one target beside itself: %v", err)
	}
}

func compared(t *testing.T, how Comparing, runs ...synthetic) string {
	t.Helper()
	var dirs []string
	for _, run := range runs {
		dirs = append(dirs, run.keep(t))
	}
	var out strings.Builder
	check(t, Compare(dirs, how, &out))
	return out.String()
}

// has tells which of the wanted texts is missing.
func has(t *testing.T, out string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

// row gives the line that begins with a text, of the table with a title.
func row(t *testing.T, out, title, begins string) string {
	t.Helper()
	_, table, _ := strings.Cut(out, "\n"+title+"\n\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, begins) {
			return line
		}
	}
	t.Errorf("no line begins with %q in\n%s", begins, out)
	return ""
}

// Promise: L14
func TestAKnownDifferenceIsFoundWithItsSize(t *testing.T) {
	a := newSynthetic(8)
	b := a
	b.target.Daemon = "other"
	b.rate = func(arm, repetition, tiles, tile int) int64 {
		rate := a.rate(arm, repetition, tiles, tile)
		if tiles == 2 && arm == 1 {
			return rate / 2
		}
		return rate
	}
	out := compared(t, Comparing{}, a, b)
	has(t, out, "B beside A: throughput of web at tiles=2, after is less: 0.50 times", "No difference of more than 10.0 % in 23 comparisons of 24: the 95 % intervals lie within 1.00–1.00 times.")
	has(t, row(t, out, "B beside A, tiles=2", "throughput of web, after"), "270", "135", "-1.00", "less")
	// Five are too few, whatever parts them.
	a.repetitions, b.repetitions = 5, 5
	out = compared(t, Comparing{}, a, b)
	has(t, out, "B beside A: No verdict on any of 24 figures: 5 and 5 repetitions, 6 each are wanted. The main ones follow; --all shows every one.")
	if strings.Contains(out, " is less") {
		t.Errorf("five repetitions:\n%s", out)
	}
}

// Promise: L40
func TestEveryFigureStandsBesideItsOtherHalf(t *testing.T) {
	a := newSynthetic(2)
	a.more = func(w *record.Writer, turn record.Turn) {
		add := func(metric string, value float64, unit string, labels record.Labels) {
			check(t, w.Sample(record.Sample{Turn: turn, Window: 1, Metric: metric, Value: value, Unit: unit, Labels: labels}))
		}
		web := record.Labels{"tile": "1", "guest": "web"}
		add(record.MetricBoot, 2, "s", web)
		add(record.MetricBoot, 4, "s", record.Labels{"tile": "2", "guest": "web"})
		add(record.MetricDuration, 0.5, "s", record.Labels{"guest": "web", "event": "vcpus"})
		add(record.MetricDrift, -0.001, "part", web)
		add(record.MetricOutage, 7, "s", record.Labels{"tile": "1", "guest": "web", "load": "web"})
		check(t, w.Event(record.Event{Time: began, Turn: turn, Kind: record.Window, Window: record.WarmUp}))
		for second, busy := range []float64{9, 9, 9, 9, 9, 1.5, 1.5} { // the warm-up does not count
			check(t, w.Telemetry(record.Telemetry{Time: began.Add(time.Duration(second) * time.Second), Turn: turn, Source: "host", Values: map[string]float64{"cpu_busy_cores": busy}}))
		}
	}
	b := a
	b.wait = func(arm, repetition, tile int) int64 { return 2 * a.wait(arm, repetition, tile) }
	out := compared(t, Comparing{All: true}, a, b)
	for _, c := range []struct{ step, begins, want string }{
		{"tiles=2", "throughput of web, before", "150"},
		{"tiles=1", "p95 of web, before", "2.00"},
		{"tiles=1", "boot of web, before", "3.00 s"},
		{"tiles=1", "time of vcpus of web, after", "500 ms"},
		{"tiles=1", "drift of web, after", "no ratio"},
		{"tiles=2", "outage of web, before", "7.00 s"},
		{"tiles=2", "use of the host's processors, after", "1.50 cores"},
	} {
		has(t, row(t, out, "B beside A, "+c.step, c.begins), c.want)
	}
	if strings.Contains(out, "errors of") {
		t.Errorf("nothing failed, and yet:\n%s", out)
	}
	b.more = nil
	has(t, compared(t, Comparing{}, a, b), "20 figures measured on one side only: outage of web at tiles=1, before: not at B;")
}

// Promise: L40, L41
func TestTargetsOfARunStandBesideEachOther(t *testing.T) {
	// Each repetition is slower than the last, for all alike: pairs stand that.
	three := newTrio(12, func(target string, repetition int) float64 {
		rate := 2000 * math.Pow(0.8, float64(repetition))
		switch target {
		case "again":
			return rate * (1 + 0.04*float64(repetition%3))
		case "other":
			return rate * 1.5
		}
		return rate
	})
	out := compared(t, Comparing{}, three)
	has(t, out,
		"again is first measured once more",
		"other beside first: throughput of web at tiles=1 is more: 1.50 times",
		"other beside first: throughput of web at tiles=2 is more: 1.50 times",
	)
	if strings.Contains(out, "again beside first: throughput of web at tiles=1 is") {
		t.Errorf("the same beside itself:\n%s", out)
	}
	// What the same daemon differs from itself by is no finding in another.
	loud := newTrio(12, func(target string, repetition int) float64 {
		switch target {
		case "again":
			return 1700
		case "other":
			return 1500
		}
		return 1000
	})
	out = compared(t, Comparing{}, loud)
	has(t, row(t, out, "other beside first, tiles=1", "throughput of web "), "1.50", "±70.0 %", "not settled: below the noise")
	// Of another accelerator it is other work.
	loud.trio[2].Accelerator = "tcg"
	if err := Compare([]string{loud.keep(t)}, Comparing{}, new(strings.Builder)); err == nil || !strings.Contains(err.Error(), "kvm against tcg") {
		t.Errorf("%v", err)
	}
}

// Promise: L41
func TestDisagreeingBooksGiveNoVerdict(t *testing.T) {
	three := newTrio(8, func(target string, _ int) float64 {
		return map[string]float64{"first": 1000, "again": 1000, "other": 2000}[target]
	})
	three.more = func(w *record.Writer, turn record.Turn) {
		if turn.Arm == "plain@other" && turn.Step == "tiles=2" {
			check(t, w.Event(record.Event{Turn: turn, Kind: record.Bad, What: "books", Text: "the load counts 5 done, the server 4"}))
		}
	}
	out := compared(t, Comparing{}, three)
	has(t, out, "throughput of web at tiles=1 is more: 2.00 times", "No verdict on 6 comparisons of 12: books disagree there.", "other beside first: 3 figures without a verdict are not shown, but with --all.")
	row(t, out, "other beside first, tiles=1", "p95 of web ")
	row(t, out, "other beside first, tiles=2", "p50 of web ")
	if strings.Count(out, "p95 of web ") != 1 {
		t.Errorf("one without a verdict is shown:\n%s", out)
	}
	if strings.Contains(out, "throughput of web at tiles=2 is more") {
		t.Errorf("%s", out)
	}
}

// Promise: L41
func TestAcrossHostsThereAreRatiosOnly(t *testing.T) {
	a := newSynthetic(8)
	b := a
	b.host = "another kernel"
	b.rate = func(arm, repetition, tiles, tile int) int64 { return 3 * a.rate(arm, repetition, tiles, tile) }
	if err := Compare([]string{a.keep(t), b.keep(t)}, Comparing{}, new(strings.Builder)); err == nil || !strings.Contains(err.Error(), "kernel: 6.1 against another kernel") {
		t.Errorf("%v", err)
	}
	out := compared(t, Comparing{AcrossHosts: true}, a, b)
	has(t, out, "No verdict on any of 24 figures: the hosts differ (kernel: 6.1 against another kernel).")
	has(t, row(t, out, "B beside A, tiles=1", "throughput of web, before"), "3.00")
}

func TestABusyMachineIsSaid(t *testing.T) {
	a := newSynthetic(1)
	a.load = 9
	has(t, compared(t, Comparing{}, a, newSynthetic(1)), "The machine was busy: when A began, 9.0 processes wanted its 2 processors already.")
}

func TestAComparisonGoesIntoAPage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	compared(t, Comparing{Page: page}, newSynthetic(1), newSynthetic(1))
	text, err := os.ReadFile(page)
	check(t, err)
	has(t, string(text), "<!-- known figures: written by lodge lab -->", "### B beside A, tiles=1", "| throughput of web, before | 100 1/s |")
}

// Where nothing can be decided the reason is said once, and the main figures are
// enough, until somebody asks for all.
// Promise: L38
func TestWhatIsUndecidedIsShort(t *testing.T) {
	three := newTrio(2, func(string, int) float64 { return 1000 })
	three.more = func(w *record.Writer, turn record.Turn) {
		labels := record.Labels{"tile": "1", "guest": "web", "load": "web", "op": "image"}
		check(t, w.Sample(record.Sample{Turn: turn, Window: 1, Metric: record.MetricDone, Value: 10, Unit: "count", Labels: labels}))
		check(t, w.Sample(record.Sample{Turn: turn, Window: 1, Metric: record.MetricErrors, Value: 1, Unit: "count", Labels: labels}))
		check(t, w.Sample(record.Sample{Turn: turn, Metric: record.MetricBoot, Value: 2, Unit: "s", Labels: record.Labels{"tile": "1", "guest": "web"}}))
	}
	short, long := compared(t, Comparing{}, three), compared(t, Comparing{All: true}, three)
	const why = "2 and 2 repetitions, 8 each are wanted"
	if n := strings.Count(short, why); n != 2 { // of each target beside the first
		t.Errorf("the reason is said %d times:\n%s", n, short)
	}
	for _, want := range []string{"throughput of web ", "p50 of web ", "p99 of web ", "errors of web ", "boot of web "} {
		row(t, short, "other beside first, tiles=1", want)
	}
	for _, no := range []string{"p95 of web", "web page", "web image", "effect"} {
		if strings.Contains(short, no) {
			t.Errorf("%q is among the main figures:\n%s", no, short)
		}
		if no != "web page" {
			has(t, long, no)
		}
	}
	has(t, short, "first", "other", "quotient")
}

// Promise: L41
func TestTooManyFiguresAreNotToldFromLuck(t *testing.T) {
	var pairs []pair
	for i := range 10 {
		a, b := []float64{}, []float64{}
		for range 8 {
			a, b = append(a, 3), append(b, 1)
		}
		pairs = append(pairs, pair{what: fmt.Sprint(i), a: a, b: b, family: "p99", beside: true})
	}
	for _, w := range weigh(pairs) {
		if !strings.Contains(w.why, "8 repetitions are too few to tell luck among so many figures of a kind") || w.finding != stats.Same {
			t.Errorf("%+v", w)
		}
	}
	if w := weigh(pairs[:1])[0]; w.why != "" || w.finding != stats.More {
		t.Errorf("one alone: %+v", w)
	}
}

// TestTheWholeOfALoadIsAskedBeforeItsParts: with eight repetitions a load of five
// operations is still told from luck, and its operations are not.
func TestTheWholeOfALoadIsAskedBeforeItsParts(t *testing.T) {
	first, second := newSide("first"), newSide("second")
	for _, op := range []string{all, "browse", "cycle", "login", "new-customer", "purchase"} {
		name := figureName{kind: "throughput", of: "shop " + op, op: op, step: "step", arm: onlyArm}
		slow, fast := map[int]float64{}, map[int]float64{}
		for repetition := range 8 {
			slow[repetition], fast[repetition] = 1, 3
		}
		first.add(&figure{name: name, unit: "1/s", values: slow})
		second.add(&figure{name: name, unit: "1/s", values: fast})
	}
	pairs, _ := contrast(first, second, nil, true)
	for i, w := range weigh(pairs) {
		if whole := i == 0; whole != (w.why == "" && w.finding == stats.More) {
			t.Errorf("%s: %s, %s", w.what, w.finding, w.why)
		}
	}
}

// Promise: L14
func TestADifferenceBelowTheNoiseIsNone(t *testing.T) {
	// Chance alone hardly parts the two so, and yet halves of one side differ more.
	var a, b []float64
	for i := range 20 {
		a, b = append(a, 115*(1+0.03*float64(i))), append(b, 100*(1+0.03*float64(i)))
	}
	w := weigh([]pair{{what: "x", unit: "1/s", a: a, b: b}})[0]
	if w.P >= stats.Surely || w.Ratio.Value < 1+stats.Matters || w.noise < 0.15 {
		t.Fatalf("this tries nothing: %+v", w)
	}
	if w.finding != stats.Same {
		t.Errorf("%+v", w)
	}
	if w := weigh([]pair{{what: "x", unit: "1/s", a: []float64{1, 1, 1, 1, 1, 0}, b: []float64{1, 1, 1, 1, 1, 1}}})[0]; w.why == "" || w.finding != stats.Same {
		t.Errorf("a repetition without anything: %+v", w)
	}
}

// Promise: L14
func TestTheSameAgainstItselfIsNeverNews(t *testing.T) {
	for try := range uint64(100) {
		draws, loud := rand.New(rand.NewPCG(try, 100)), 0.02+0.003*float64(try)
		side := func() (values []float64) {
			for range 6 {
				values = append(values, 100*math.Exp(loud*draws.NormFloat64()))
			}
			return values
		}
		var pairs []pair
		for i := range 2 {
			pairs = append(pairs, pair{what: fmt.Sprint(i), unit: "1/s", a: side(), b: side()})
		}
		for _, w := range weigh(pairs) {
			if w.why != "" || w.finding != stats.Same {
				t.Errorf("try %d: %+v", try, w)
			}
		}
	}
}

// What is kept in docs/lab can be compared again by anybody.
// Promise: L37
func TestKeptRunsAreStillCompared(t *testing.T) {
	kept, err := filepath.Glob("../../docs/lab/*/run.json")
	check(t, err)
	if len(kept) == 0 {
		t.Fatal("no run is kept: has docs/lab moved?")
	}
	for _, path := range kept {
		var out strings.Builder
		header, err := record.Peek(filepath.Dir(path))
		check(t, err)
		if len(header.Targets) < 2 { // there is nothing to compare it with
			check(t, Report(filepath.Dir(path), &out, Output{}))
			continue
		}
		if err := Compare([]string{filepath.Dir(path)}, Comparing{}, &out); err != nil {
			t.Error(err)
		}
		has(t, out.String(), "again is lodged measured once more", "libvirtd beside lodged")
	}
}
