package pages

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/record"
)

// Values that one thing took on a host, dealt out to arms, tiles, processors and the
// times before and after something was done: nothing parts them, and whatever a run
// has, its verdict says so.
// Promise: L17
func TestNothingIsSaidOfAThingBesideItself(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "stats", "testdata", "recorded.json"))
	check(t, err)
	var recordings []struct{ Values []float64 }
	check(t, json.Unmarshal(text, &recordings))
	for try := range 100 {
		draws := rand.New(rand.NewPCG(uint64(try), 3))
		values := recordings[try%len(recordings)].Values
		deal := func() float64 { return 1 / values[draws.IntN(len(values))] }
		kind := []string{"tiles", "vcpus", "disk", "arm", "deed"}[try/len(recordings)%5]
		for _, sentence := range dealt(t, kind, deal).verdict() {
			if strings.Contains(sentence, " is more:") || strings.Contains(sentence, " is less:") {
				t.Errorf("try %d, %s: %s", try, kind, sentence)
			}
		}
	}
}

// dealt is a run of a kind whose every rate is dealt.
func dealt(t *testing.T, kind string, deal func() float64) *facts {
	t.Helper()
	const repetitions = 7
	r := &record.Run{Header: record.Header{Outcome: record.Complete, Plan: record.Plan{
		Arms: []record.Arm{{Name: "before"}}, Repetitions: repetitions, Windows: 1, Measure: 10,
	}}}
	if kind == "arm" {
		r.Plan.Arms = append(r.Plan.Arms, record.Arm{Name: "after"})
	}
	places := map[string][]string{"tiles": {"1", "2"}, "vcpus": {"1", "2"}, "disk": {"ide", "virtio"}, "arm": {"x"}, "deed": {"x"}}[kind]
	for _, place := range places {
		r.Plan.Steps = append(r.Plan.Steps, record.Step{Name: kind + "=" + place, Axes: map[string]string{kind: place}})
	}
	for repetition := 1; repetition <= repetitions; repetition++ {
		for i, step := range r.Plan.Steps {
			for _, arm := range r.Plan.Arms {
				turn := record.Turn{Arm: arm.Name, Repetition: repetition, Step: step.Name}
				r.Plan.Turns = append(r.Plan.Turns, turn)
				tiles := 1
				if kind == "tiles" {
					tiles += i
				}
				for tile := 1; tile <= tiles; tile++ {
					labels := record.Labels{"tile": fmt.Sprint(tile), "load": "web", "op": "page"}
					done := 10 * deal()
					r.Samples = append(r.Samples,
						record.Sample{Turn: turn, Window: 1, Metric: record.MetricDone, Value: done, Labels: labels},
						record.Sample{Turn: turn, Window: 1, Metric: record.MetricRate, Value: done / 10, Labels: labels})
				}
				r.Events = append(r.Events, record.Event{Turn: turn, Kind: record.Done})
				if kind == "deed" {
					r.Events = append(r.Events, record.Event{
						Turn: turn, Kind: record.Change, What: "vcpus", Text: "vcpus 2", Guest: "lab-x-t1-web",
						Values: map[string]float64{"duration_s": 1, "web " + record.MetricBefore: deal(), "web " + record.MetricAfter: deal()},
					})
				}
			}
		}
	}
	f, err := newFacts(r)
	check(t, err)
	return f
}

// Each kind of scenario has its own sentences, and what is really more is found.
// Promise: L17
func TestEachKindOfRunHasItsVerdict(t *testing.T) {
	for scenario, want := range map[string][]string{
		"tile":               {"outside: 32 tiles were offered 16", " a second and served 75.0 % of it; one was offered 5", "jobs: 32 tiles do 2", "of linear", "latency.mean of outside below 1 s holds up to tiles=", "Along tiles: No verdict on 6 comparisons of 6: 2 and 2 repetitions, 6 each are wanted."},
		"lamp-scale-up":      {"shop at vcpus=8 does 5.", "what it does at vcpus=1.", "Efficiency of shop at ", "of what the same stack does outside of a guest."},
		"lamp-consolidation": {"Efficiency of shop at ", "vcpus=2, against bare-metal (guests=1, vcpus=16, users=560): the guests do ", "of what the same stack does outside of a guest."},
		"block-io":           {"fio random-write lies between ", "bus=ide", "cache=unsafe", "MiB in a second.", "Between steps: No verdict on ", ": 1 and 1 repetitions"},
		"oltp-hotadd":        {"vcpus 8 of db took 1.", "orders did 3", " in a second before vcpus 8 of db and ", "the longest that it waited meanwhile is 200 ms.", "Around what was done: No verdict on ", ": 3 and 3 repetitions, 6 each are wanted."},
		"oltp-backing":       {"throughput of orders at all, huge-pages against plain is more: 1.2"},
		"lamp-scale-out":     {"shop, vcpus=2: 8 guests do ", "All loads were steady before they were measured, after 180 s.", "Along guests: No verdict"},
	} {
		for _, k := range kindsOfRuns {
			if k.scenario != scenario {
				continue
			}
			f := invented(t, k)
			said := strings.Join(f.verdict(), "\n")
			for _, words := range want {
				if !strings.Contains(said, words) {
					t.Errorf("%s: %q is not said in\n%s", scenario, words, said)
				}
			}
			if strings.Contains(said, "NaN") || strings.Contains(said, "%!") {
				t.Errorf("%s:\n%s", scenario, said)
			}
		}
	}
	k := kindOfRun{scenario: "oltp-hotadd", profile: "paper", repetitions: 6}
	if said := strings.Join(invented(t, k).verdict(), "\n"); !strings.Contains(said, "Around what was done: throughput of orders after vcpus 8 of db, against before, is more: 1.7") {
		t.Errorf("what is nearly twice as much is not found:\n%s", said)
	}
}
