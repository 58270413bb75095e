package pages

import (
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// disks is a run of a disk matrix: every place on its axes but those that are left
// out, with a rate for each.
func disks(t *testing.T, repetitions int, axes map[string][]string, rate func(axes map[string]string, repetition int) float64) *facts {
	t.Helper()
	r := &record.Run{Header: record.Header{Outcome: record.Complete, Scenario: record.Scenario{Name: "disks"}, Plan: record.Plan{
		Arms: []record.Arm{{Name: "plain"}}, Repetitions: repetitions, Windows: 1, Measure: 10,
	}}}
	places := []map[string]string{{}}
	for _, axis := range slices.Sorted(maps.Keys(axes)) {
		var more []map[string]string
		for _, at := range places {
			for _, value := range axes[axis] {
				one := maps.Clone(at)
				one[axis] = value
				more = append(more, one)
			}
		}
		places = more
	}
	for _, at := range places {
		r.Plan.Steps = append(r.Plan.Steps, record.Step{Name: record.Labels(at).Key(), Axes: at})
	}
	for repetition := 1; repetition <= repetitions; repetition++ {
		for _, step := range r.Plan.Steps {
			turn := record.Turn{Arm: "plain", Repetition: repetition, Step: step.Name}
			r.Plan.Turns = append(r.Plan.Turns, turn)
			r.Events = append(r.Events, record.Event{Turn: turn, Kind: record.Done})
			done := 10 * rate(step.Axes, repetition)
			if math.IsNaN(done) {
				continue // it was skipped
			}
			labels := record.Labels{"tile": "1", "load": "fio", "op": "write", "guest": "disk"}
			for metric, value := range map[string]float64{record.MetricDone: done, record.MetricRate: done / 10, "bytes": done * mebi} {
				r.Samples = append(r.Samples, record.Sample{Turn: turn, Window: 1, Metric: metric, Value: value, Labels: labels})
			}
		}
	}
	f, err := newFacts(r)
	check(t, err)
	return f
}

var someDisks = map[string][]string{
	"work": {"random-write", "sequential"}, "bus": {"virtio", "scsi", "ide"}, "cache": {"none", "writeback"}, "threads": {"1", "8"},
}

// speed is what a disk does whose writeback is twice as fast at random, whose IDE is
// four times slower, and which eight threads share to no avail.
func speed(axes map[string]string) float64 {
	rate := 100.0
	if axes["work"] == "random-write" && axes["cache"] == "writeback" {
		rate *= 2
	}
	if axes["bus"] == "ide" {
		rate /= 4
	}
	return rate
}

// noisy makes one of two parts in a hundred.
func noisy() func(float64) float64 {
	draws := rand.New(rand.NewPCG(4, 5))
	return func(x float64) float64 { return x * math.Exp(0.02*draws.NormFloat64()) }
}

// Promise: L50
func TestAWinnerIsFoundWithHowMuchItWinsBy(t *testing.T) {
	loud := noisy()
	f := disks(t, 4, someDisks, func(axes map[string]string, _ int) float64 { return loud(speed(axes)) })
	said := strings.Join(f.winners(), "\n")
	has(t, said,
		"Choice of cache: for random-write writeback wins, with 2.0", " times none (95 % ", "), more in all 6 places",
		"Choice of bus: for random-write ", " are not told apart, and ", " times the last, ide (95 %",
		"no difference of more than 10.0 % for sequential", "Choice of threads: no difference of more than 10.0 % for random-write, sequential.")
	if strings.Contains(said, "for sequential none wins") || strings.Contains(said, "for sequential writeback wins") {
		t.Errorf("a winner of equals:\n%s", said)
	}
	var c *contest
	for _, one := range f.contests() {
		if one.axis == "cache" && one.work == "random-write" {
			c = one
		}
	}
	// Three buses by two numbers of threads, four times each.
	if c == nil || c.best() != "writeback" || len(c.repeated) != 6 || len(c.next().a) != 24 || math.Abs(c.next().Ratio.Value-2) > 0.05 || !(c.next().Ratio.Low < 2 && c.next().Ratio.High > 1.95) {
		t.Errorf("%+v", c)
	}
	text := f.text()
	has(t, text, "Which choice wins where, all else equal", "Best place of all", "wins")
	summits := f.summits()
	if len(summits) != 2 || !strings.Contains(summits[0].first.step, "cache=writeback") || strings.Contains(summits[0].first.step, "ide") {
		t.Errorf("%+v", summits)
	}
	// What is best of twelve places with four repetitions each nobody can tell.
	if summits[0].why == "" {
		t.Error("a verdict on the best of all with four repetitions")
	}
}

// A choice that is refused in some places is held against the others where it was
// not; one that was measured nowhere beside them stands aside.
// Promise: L50
func TestChoicesAreComparedOnlyWhereAllWereMeasured(t *testing.T) {
	axes := map[string][]string{"work": {"random-write"}, "io": {"threads", "native", "io_uring"}, "cache": {"none", "writeback"}, "bus": {"virtio", "scsi"}}
	f := disks(t, 8, axes, func(axes map[string]string, repetition int) float64 {
		rate := 100 + float64(repetition%3)
		switch {
		case axes["io"] == "native" && axes["cache"] == "writeback":
			return math.NaN()
		case axes["io"] == "native":
			return 2 * rate
		case axes["cache"] == "writeback":
			return 10 * rate // where native was not
		}
		return rate
	})
	for _, c := range f.contests() {
		switch c.axis {
		case "io":
			if c.best() != "native" || len(c.repeated) != 2 || math.Abs(c.next().Ratio.Value-2) > 1e-9 || !c.won() {
				t.Errorf("native is twice as fast in the two places that it has: %+v", c)
			}
		case "cache":
			if len(c.repeated) != 4 || math.Abs(c.next().Ratio.Value-10) > 1e-9 {
				t.Errorf("caches where both were measured: %+v", c)
			}
		}
	}
	alone := disks(t, 8, map[string][]string{"store": {"file", "device", "other"}, "format": {"raw", "qcow2"}}, func(axes map[string]string, _ int) float64 {
		if (axes["store"] == "other") == (axes["format"] == "raw") {
			return math.NaN()
		}
		return 5
	})
	for _, c := range alone.contests() {
		if c.axis == "store" && (!slices.Equal(c.apart, []string{"other"}) || !slices.Equal(c.choices, []string{"file", "device"})) {
			t.Errorf("%+v", c)
		}
	}
	has(t, alone.text(), "measured nowhere beside the others")
}

// Promise: L50
func TestFewPairsAndDoubtsNameNoWinner(t *testing.T) {
	f := disks(t, 1, someDisks, func(axes map[string]string, _ int) float64 { return speed(axes) })
	said := strings.Join(f.winners(), "\n")
	if strings.Contains(said, "wins") || !strings.Contains(said, "Choice of cache: no verdict (6 pairs, 8 are wanted) for random-write, sequential.") {
		t.Errorf("six pairs:\n%s", said)
	}
	axes := maps.Clone(someDisks)
	axes["format"] = []string{"raw", "qcow2"}
	f = disks(t, 1, axes, func(axes map[string]string, _ int) float64 { return speed(axes) })
	said = strings.Join(f.winners(), "\n")
	if strings.Contains(said, "wins") || !strings.Contains(said, "Choice of cache: no verdict (places were measured once, and what one differs from itself by is not known) for random-write") {
		t.Errorf("twelve places, each once:\n%s", said)
	}
	f = disks(t, 9, map[string][]string{"cache": {"none", "writeback"}, "work": {"random-write"}, "bus": {"virtio", "scsi"}}, func(axes map[string]string, _ int) float64 { return speed(axes) })
	if !strings.Contains(strings.Join(f.winners(), "\n"), "writeback wins") {
		t.Fatal("what is twice as fast does not win")
	}
	for _, step := range f.run.Plan.Steps {
		f.run.Events = append(f.run.Events, record.Event{Turn: record.Turn{Arm: "plain", Step: step.Name, Repetition: 1}, Kind: record.Bad, What: "clock"})
	}
	f.contested = nil
	if said := f.winners(); len(said) > 0 {
		t.Errorf("clocks went wrong everywhere, and it is said %q", said)
	}
}

// far is what a place does by its axes: a hundred times as much as another.
func far(axes map[string]string) float64 {
	rate := 1.0
	if axes["bus"] == "ide" {
		rate /= 10
	}
	if axes["cache"] == "none" {
		rate /= 10
	}
	return rate
}

// What one choice does more in each place is found, however far the places are from
// each other, and is told with the places where it is another matter.
// Promise: L50
func TestWhatPartsPlacesIsNoNoise(t *testing.T) {
	axes := map[string][]string{"bus": {"virtio", "ide"}, "cache": {"none", "writeback"}, "threads": {"1", "8"}, "work": {"a"}}
	draws := rand.New(rand.NewPCG(6, 7))
	threads := func(gain func(axes map[string]string) float64) *weighed {
		f := disks(t, 4, axes, func(axes map[string]string, repetition int) float64 {
			rate := far(axes) * math.Exp(0.05*draws.NormFloat64())
			if repetition == 3 {
				rate /= 2 // the host was busy with something else
			}
			if axes["threads"] == "8" {
				rate *= gain(axes)
			}
			return rate
		})
		for _, c := range f.contests() {
			if c.axis == "threads" {
				return c.pairs[[2]string{"8", "1"}]
			}
		}
		return nil
	}
	everywhere := threads(func(map[string]string) float64 { return 1.3 })
	if everywhere == nil || everywhere.won() != "wins" || math.Abs(everywhere.Ratio.Value-1.3) > 0.1 || everywhere.noise > 0.2 {
		t.Fatalf("1.3 times in places a hundred times apart: %+v", everywhere)
	}
	has(t, everywhere.times("1"), "more in all 4 places")
	here := threads(func(axes map[string]string) float64 {
		if axes["bus"] == "ide" {
			return 0.9
		}
		return 4
	})
	if here == nil || here.won() != "wins" || here.noise > 0.2 || math.Abs(here.Ratio.Value-math.Sqrt(3.6)) > 0.15 {
		t.Fatalf("4 times in two places, 0.9 times in two: %+v", here)
	}
	has(t, here.times("1"), "more in 2 of 4 places")
	if in := here.inPlaces(); math.Abs(in.least-0.9) > 0.1 || math.Abs(in.most-4) > 0.4 {
		t.Errorf("%+v", in)
	}
}

// A place whose repetitions failed but for one tells no spread, and is left out where
// others do.
func TestAPlaceMeasuredOnceStandsAside(t *testing.T) {
	f := disks(t, 5, map[string][]string{"bus": {"virtio", "scsi", "ide"}, "cache": {"none", "writeback"}}, func(axes map[string]string, repetition int) float64 {
		if axes["bus"] == "ide" && repetition > 1 {
			return math.NaN()
		}
		return far(axes) * (1 + 0.01*float64(repetition))
	})
	for _, c := range f.contests() {
		if c.axis == "cache" && (!slices.Equal(c.repeated, []int{5, 5}) || !c.won()) {
			t.Errorf("%+v", c)
		}
	}
}

// Values that one thing took, dealt out to all places, however far these are from
// each other: nobody wins.
// Promise: L50
func TestNobodyWinsAgainstItself(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "stats", "testdata", "recorded.json"))
	check(t, err)
	var recordings []struct{ Values []float64 }
	check(t, json.Unmarshal(text, &recordings))
	for try := range 25 {
		draws := rand.New(rand.NewPCG(uint64(try), 9))
		values := recordings[try%len(recordings)].Values
		f := disks(t, 5, map[string][]string{"cache": {"none", "writeback"}, "io": {"threads", "native", "io_uring"}}, func(axes map[string]string, _ int) float64 {
			return far(axes) / values[draws.IntN(len(values))]
		})
		for _, c := range f.contests() {
			if c.axis == "io" && (c.next().finding != stats.Same || c.last().finding != stats.Same) {
				t.Errorf("try %d: %s, %s", try, c.next().words(), c.last().words())
			}
		}
	}
}

// The pairs of a run that is kept, whose sides are dealt out anew: what is told then
// is a false alarm, and those are as rare as they are said to be.
// Promise: L50
func TestPairsOfAKeptRunThatChangeSidesNameNoWinner(t *testing.T) {
	f, err := load("../../docs/lab/block-choices")
	check(t, err)
	draws := rand.New(rand.NewPCG(8, 9))
	alarms, asked := 0, 0
	for range 25 {
		var pairs []pair
		for _, c := range f.contests() {
			if c.axis != "bus" {
				continue // it has enough pairs, and few enough to be quick
			}
			for key := range c.pairs {
				p := c.between(key[0], key[1])
				for i := range p.a {
					if draws.IntN(2) == 0 {
						p.a[i], p.b[i] = p.b[i], p.a[i]
					}
				}
				pairs = append(pairs, p)
			}
		}
		for _, w := range weigh(pairs) {
			if asked++; w.finding != stats.Same {
				alarms++
			}
		}
	}
	// One is due in a hundred tries; three in so few come by chance once in five hundred times.
	if asked != 25*6 || alarms > 2 {
		t.Errorf("%d alarms of %d without a cause", alarms, asked)
	}
	for _, c := range f.contests() {
		if c.axis != "bus" && !c.won() {
			t.Errorf("%s: %s", c.axis, c.next().words())
		}
	}
}

func TestChoicesHaveTheirPictures(t *testing.T) {
	loud := noisy()
	f := disks(t, 4, someDisks, func(axes map[string]string, _ int) float64 { return loud(speed(axes)) })
	var titles []string
	for _, s := range f.sections() {
		for _, p := range s.Figures {
			titles = append(titles, p.Title)
		}
	}
	for _, want := range []string{"Which choice wins where: fio", "Best of all choices: fio"} {
		if !slices.Contains(titles, want) {
			t.Errorf("no %q among %q", want, titles)
		}
	}
	html, err := f.html()
	check(t, err)
	for _, want := range []string{"cache=writeback, random-write: wins", ">bus</text>", ">ide</text>", ">which is<"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("the page has no %q", want)
		}
	}
}
