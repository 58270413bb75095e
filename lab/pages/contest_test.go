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

func TestAWinnerIsFoundWithHowMuchItWinsBy(t *testing.T) {
	loud := noisy()
	f := disks(t, 4, someDisks, func(axes map[string]string, _ int) float64 { return loud(speed(axes)) })
	said := strings.Join(f.winners(), "\n")
	has(t, said,
		"Choice of cache: for random-write writeback wins, with 2.0", " times none (95 % ",
		"Choice of bus: for random-write ", " are not told apart, and ", " times the last, ide (95 %",
		"no difference worth a word for sequential", "Choice of threads: no difference worth a word for random-write, sequential.")
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
	if c == nil || c.best() != "writeback" || c.places != 6 || len(c.next().a) != 24 || math.Abs(c.next().Ratio.Value-2) > 0.05 || !(c.next().Ratio.Low < 2 && c.next().Ratio.High > 1.95) {
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
			if c.best() != "native" || c.places != 2 || math.Abs(c.next().Ratio.Value-2) > 1e-9 || !c.won() {
				t.Errorf("native is twice as fast in the two places that it has: %+v", c)
			}
		case "cache":
			if c.places != 4 || math.Abs(c.next().Ratio.Value-10) > 1e-9 {
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

func TestFewPairsAndDoubtsNameNoWinner(t *testing.T) {
	f := disks(t, 1, someDisks, func(axes map[string]string, _ int) float64 { return speed(axes) })
	said := strings.Join(f.winners(), "\n")
	if strings.Contains(said, "wins") || !strings.Contains(said, "Choice of cache: no verdict (6 pairs, 8 are wanted) for random-write, sequential.") {
		t.Errorf("six pairs:\n%s", said)
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

// Values that one thing took, dealt out to all places: nobody wins.
func TestNobodyWinsAgainstItself(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "stats", "testdata", "recorded.json"))
	check(t, err)
	var recordings []struct{ Values []float64 }
	check(t, json.Unmarshal(text, &recordings))
	for try := range 25 {
		draws := rand.New(rand.NewPCG(uint64(try), 9))
		values := recordings[try%len(recordings)].Values
		f := disks(t, 5, map[string][]string{"bus": {"virtio", "scsi", "ide"}, "cache": {"none", "writeback"}, "work": {"a", "b"}}, func(map[string]string, int) float64 {
			return 1 / values[draws.IntN(len(values))]
		})
		for _, sentence := range f.winners() {
			if strings.Contains(sentence, "wins") || strings.Contains(sentence, "not told apart") {
				t.Errorf("try %d: %s", try, sentence)
			}
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
