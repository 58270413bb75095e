package pages

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

const micro = 1e-6

// enough is how many repetitions a comparison wants on each side: with fewer,
// chance alone deals out the largest difference too often.
const enough = 6

// enoughPairs is how many a comparison wants whose sides were measured beside
// each other: swapping sides, chance has fewer ways.
const enoughPairs = 8

// facts are what is known of a run.
type facts struct {
	run     *record.Run
	streams map[stream]*sums
	times   map[timed]*hdrhistogram.Histogram
	flows   []*flow // in the plan's order of steps, by load and operation, in the plan's order of arms
	known   map[name]*flow
	steps   map[string][]stream        // by step
	ops     map[string]map[string]bool // by load
	shape   shape
	lines   []line

	failedBefore float64         // operations outside of the windows
	unoffered    map[string]bool // open loads whose record does not tell what was offered

	seconds     map[record.Turn][]record.Sample // of time lines, of operations that count
	telemetry   map[record.Turn][]record.Telemetry
	beginnings  map[record.Turn]time.Time    // of loads
	warmed      map[record.Turn]record.Event // how warm-ups ended that had no length beforehand
	armsWeighed []weighed                    // of all arms beside the first; nil until somebody asks
	contested   []*contest                   // of all axes with choices; nil until somebody asks
}

// name is that of a flow.
type name struct{ step, arm, load, op string }

// Holds tells whether a directory is that of a run.
func Holds(path string) bool {
	_, err := os.Stat(filepath.Join(path, "run.json"))
	return err == nil
}

func load(dir string) (*facts, error) {
	run, err := record.Load(dir)
	if err != nil {
		return nil, err
	}
	return newFacts(run)
}

func newFacts(run *record.Run) (*facts, error) {
	f := &facts{
		run: run, streams: map[stream]*sums{}, times: map[timed]*hdrhistogram.Histogram{},
		known: map[name]*flow{}, steps: map[string][]stream{}, ops: map[string]map[string]bool{},
	}
	if err := f.gather(); err != nil {
		return nil, err
	}
	f.seconds = map[record.Turn][]record.Sample{}
	for _, s := range run.Samples {
		if s.Metric == record.MetricSecond && counted(s.Labels["op"]) {
			f.seconds[s.Turn] = append(f.seconds[s.Turn], s)
		}
	}
	f.telemetry = map[record.Turn][]record.Telemetry{}
	for _, t := range run.Telemetry {
		f.telemetry[t.Turn] = append(f.telemetry[t.Turn], t)
	}
	f.warmed = map[record.Turn]record.Event{}
	for _, e := range f.events(record.Window, record.WhatWarmup) {
		f.warmed[e.Turn] = e
	}
	f.beginnings = map[record.Turn]time.Time{}
	for _, e := range f.events(record.Window, "") {
		if _, told := f.beginnings[e.Turn]; !told && e.Window == record.WarmUp {
			f.beginnings[e.Turn] = e.Time
		}
	}
	f.shape = shapeOf(run.Plan.Steps)
	f.lines = f.shape.lines(run.Plan)
	for _, step := range run.Plan.Steps {
		names := f.names(step.Name)
		for _, load := range slices.Sorted(maps.Keys(names)) {
			for _, op := range names[load] {
				for _, arm := range run.Plan.Arms {
					if found := f.flow(step.Name, arm.Name, load, op); found != nil {
						f.flows = append(f.flows, found)
						f.known[name{step.Name, arm.Name, load, op}] = found
					}
				}
			}
		}
	}
	return f, nil
}

// find looks a flow up; nil where there is none.
func (f *facts) find(step, arm, load, op string) *flow {
	return f.known[name{step, arm, load, op}]
}

// events gives those of a kind, of one word if one is named.
func (f *facts) events(kind record.Kind, what string) (found []record.Event) {
	for _, e := range f.run.Events {
		if e.Kind == kind && (what == "" || e.What == what) {
			found = append(found, e)
		}
	}
	return found
}

// mechanism says why a run's figures are no performance; empty if they may be.
func (f *facts) mechanism() string {
	var why []string
	for _, t := range f.run.Targets {
		if t.Accelerator != "kvm" {
			why = append(why, fmt.Sprintf("%s's guests ran under %s", t.Name, known(t.Accelerator)))
		}
	}
	if p := f.run.Scenario.Profile; strings.HasPrefix(p, "mini") || p == "smoke" {
		why = append(why, "the profile is "+p)
	}
	if len(why) == 0 {
		return ""
	}
	return "Mechanism check, not a performance result: " + strings.Join(why, "; ") + "."
}

// median is that over repetitions, with its interval.
func median(values []float64) stats.Ratio { return stats.MedianRatio(values, []float64{1}) }

// yields are what each tile got, in medians: of an open load what was served of what it
// was offered, because chance offers one more than another; of a closed one, which has no
// schedule, what it did in a second. They are nil where what was offered is not known.
func (f *facts) yields(w *flow) map[string]float64 {
	if f.unoffered[w.load] {
		return nil
	}
	of := w.tiles
	if w.open {
		of = w.parts
	}
	all := map[string]float64{}
	for tile, values := range of {
		all[tile] = stats.Median(values)
	}
	return all
}

// jain is Jain's index of fairness of what the tiles got: 1 where all get the same, one
// by their number where one gets all.
func (f *facts) jain(w *flow) float64 {
	sum, squares := 0.0, 0.0
	for _, got := range f.yields(w) {
		sum, squares = sum+got, squares+got*got
	}
	if squares == 0 {
		return math.NaN()
	}
	return sum * sum / (float64(len(w.tiles)) * squares)
}

// one finds the same flow of one tile, in the step that differs in nothing else.
func (f *facts) one(w *flow) *flow {
	at := slices.IndexFunc(f.lines, func(l line) bool {
		return l.arm == w.arm && slices.ContainsFunc(l.steps, func(s record.Step) bool { return s.Name == w.step })
	})
	if at < 0 || len(w.tiles) < 2 {
		return nil
	}
	for _, s := range f.lines[at].steps {
		if alone := f.find(s.Name, w.arm, w.load, w.op); alone != nil && len(alone.tiles) == 1 {
			return alone
		}
	}
	return nil
}

// linear is how well many tiles do beside one: of an open load what was served of what
// they were offered, by the same of one tile; of a closed one how much of so many times
// one tile's rate they do together. It is not a number where one tile was not measured,
// or where what was offered is not known.
func (f *facts) linear(w *flow) float64 {
	alone := f.one(w)
	if alone == nil || f.unoffered[w.load] {
		return math.NaN()
	}
	r := f.beyondOne(w, alone)
	if !(stats.Median(r.b) > 0) {
		return math.NaN()
	}
	return stats.Median(r.a) / stats.Median(r.b)
}

// beyondOne sets many tiles beside one, so that the quotient is that of linear.
func (f *facts) beyondOne(w, alone *flow) pair {
	if w.open {
		return pair{a: w.served, b: alone.served}
	}
	base := make([]float64, len(alone.rates))
	for i, rate := range alone.rates {
		base[i] = float64(len(w.tiles)) * rate
	}
	return pair{a: w.rates, b: base}
}

// chance is how far from one quotient of two counts another may lie by chance alone, as a
// part, in nineteen cases of twenty: closed loads with few operations tell little.
func chance(a, b float64) float64 {
	if a <= 0 || b <= 0 {
		return math.NaN()
	}
	return 1.96 * math.Sqrt(1/a+1/b)
}

// broken counts the windows of a step in which an arm broke a bound, and all.
func (f *facts) broken(b record.Bound, step, arm string) (broken, of int) {
	for s := range f.streams {
		if s.turn.Step == step && s.turn.Arm == arm && b.Concerns(s.load) {
			of += f.run.Plan.Windows
		}
	}
	type window struct {
		turn   record.Turn
		number int
		labels string
	}
	seen := map[window]bool{} // two bounds of one metric may be broken by one window
	for _, e := range f.events(record.Bad, record.WhatBound) {
		if e.Step == step && e.Arm == arm && b.BrokenBy(e) {
			seen[window{e.Turn, e.Window, e.Labels.Key()}] = true
		}
	}
	return len(seen), of
}

// number writes one to about three digits.
func number(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case v == 0 || size >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case size >= 9.995:
		return fmt.Sprintf("%.1f", v)
	case size >= 0.01:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// tick writes a number at an axis, without zeros that say nothing.
func tick(v float64) string { return trimmed(number(v)) }

// tickSeconds writes a time there.
func tickSeconds(s float64) string {
	value, unit, _ := strings.Cut(seconds(s), " ")
	return trimmed(value) + " " + unit
}

func trimmed(digits string) string {
	if !strings.Contains(digits, ".") || strings.Contains(digits, "e") {
		return digits
	}
	return strings.TrimRight(strings.TrimRight(digits, "0"), ".")
}

// seconds writes a time in the unit that suits it.
func seconds(s float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1, "s"}, {1e-3, "ms"}} {
		if s >= 0.9995*unit.of {
			return number(s/unit.of) + " " + unit.name
		}
	}
	return number(s*1e6) + " µs"
}

// interval writes the bounds of a value; none for one value alone.
func interval(r stats.Ratio) string {
	if !(r.Low < r.High) {
		return "–"
	}
	return number(r.Low) + "–" + number(r.High)
}

func known(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// plain keeps words of a record to one line, and a terminal from obeying them.
func plain(words string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, words)
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
