package pages

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/record"
)

// around gives values around a centre that chance spreads.
func around(draws *rand.Rand, centre, noise float64) []float64 {
	all := make([]float64, 8)
	for i := range all {
		all[i] = centre * math.Exp(noise*draws.NormFloat64())
	}
	return all
}

// One arm stands at about 73 % and chance may have made that: what was seen is told, how
// sure it is, and what would settle it. What is the same is told to be so only as far as
// its interval reaches.
// Promise: L56
func TestFindings_WhatIsNotSettledIsTold(t *testing.T) {
	draws := rand.New(rand.NewPCG(3, 9))
	quiet := pair{what: "throughput of the same", family: "throughput", a: around(draws, 100, 0.01), b: around(draws, 100, 0.01)}
	wide := pair{what: "throughput of the noisy", family: "throughput", a: around(draws, 100, 0.25), b: around(draws, 103, 0.25)}
	for wide.ratio().Beyond(0.1) {
		wide.a, wide.b = around(draws, 100, 0.25), around(draws, 103, 0.25)
	}
	slow := pair{what: "throughput of the slow", family: "throughput", a: []float64{90, 70, 55, 73, 100, 60, 75, 66}, b: []float64{100, 98, 104, 82, 74, 101, 110, 80}}
	paired := slow
	paired.what, paired.beside, paired.family = "time of the slow, in pairs,", true, "pairs"
	one := pair{what: "throughput once", a: []float64{50}, b: []float64{100}}
	said := strings.Join(findings(weigh([]pair{quiet, wide, slow, paired, one})), "\n")
	for _, want := range []string{
		"throughput of the slow: 0.72 times was seen (95 % ", "which is not settled: p 0.0", "would settle it.",
		"No difference of more than 10.0 % in 1 comparison of 5: the 95 % intervals lie within ",
		"No difference was settled in 1 comparison of 5: ",
		"No verdict on 1 comparison of 5: 1 and 1 repetitions, 6 each are wanted. Seen were 0.50 times; the farthest is throughput once with 0.50 times.",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in\n%s", want, said)
		}
	}
	for _, no := range []string{"worth a word", " is less", " is more", "NaN", "Inf"} {
		if strings.Contains(said, no) {
			t.Errorf("%q is said in\n%s", no, said)
		}
	}
	// It wants more than it has, and not without end; or it is lost in the noise.
	weighed := weigh([]pair{slow})[0]
	var n int
	if _, err := fmt.Sscanf(weighed.settles(), "About %d repetitions would settle it.", &n); err == nil && (n <= 8 || n > 100) {
		t.Errorf("of 8 repetitions: %s", weighed.settles())
	} else if err != nil && !strings.Contains(weighed.settles(), "noise of ±") {
		t.Error(weighed.settles())
	}
}

// Every word that a report uses without saying what it means is explained in it, and no
// word that it does not use.
// Promise: L57
func TestLegend_ExplainsWhatTheReportUses(t *testing.T) {
	text := told(t, truth{half: true}).text
	report, words, _ := strings.Cut(text, "\nWords\n")
	for _, word := range []string{"tile", "arm", "open load", "closed load", "offered", "served of offered", "share", "of linear", "Jain's index", "noise", "window"} {
		if !strings.Contains(words, "\n"+word+"  ") {
			t.Errorf("%q is not explained:\n%s", word, words)
		}
	}
	for _, word := range []string{"KSM", "stall", "steal"} {
		if strings.Contains(words, "\n"+word+"  ") {
			t.Errorf("%q is explained, and not used", word)
		}
	}
	has(t, report, "the client asks for a page; open: by a schedule that no server slows down", "a user runs small jobs; closed: each user waits for an answer")
	for line := range strings.Lines(words) {
		if len([]rune(line)) > mostLine+1 {
			t.Errorf("a line is %d long: %s", len(line), line)
		}
	}
	page := told(t, truth{half: true}).page
	if !strings.Contains(page, "<dt>served of offered</dt>") || !strings.Contains(page, "the client asks for a page") {
		t.Error("the page explains less")
	}
}

// A record of an older lab has no account of what its open loads were offered: neither
// shares nor linearity are made of what they did instead. Closed loads have both.
// Promise: L59
func TestOlder_SaysWhatItCannotTell(t *testing.T) {
	s := newSynthetic(2)
	run, err := record.Load(s.keep(t))
	check(t, err)
	run.Schema = "lodge.lab/1"
	f, err := newFacts(run)
	check(t, err)
	has(t, f.text(), "web, before: 2 tiles do 1.50 times what one does, 75.0 % of linear.")
	h := record.Histogram{Turn: run.Plan.Turns[0], Window: 1, Metric: record.MetricService, Unit: "µs", Labels: record.Labels{"tile": "1", "guest": "web", "load": "web", "op": "page"}}
	check(t, h.Pack(histogram.New()))
	run.Histograms = append(run.Histograms, h)
	f, err = newFacts(run)
	check(t, err)
	text := f.text()
	has(t, text, "web: the record does not hold what was offered", "not kept")
	// 600 of one and 900 of the other in a repetition are more than chance; 134 and 179 are not.
	has(t, text, "Unfair: web, before at tiles=2: tile 1 was given less than the others, at least 60.0 a second where the others did 90.0; the record does not hold")
	w := f.find("tiles=2", "before", "web", all)
	w.tiles, w.rates, w.sum.done = map[string][]float64{"1": {6.7, 6.7}, "2": {8.95, 8.95}}, []float64{15.65, 15.65}, 2*(134+179)
	if words := f.worse(w); words != "" {
		t.Errorf("chance is unfair: %s", words)
	}
	if strings.Contains(text, "of linear.") {
		t.Errorf("what nobody knows is told:\n%s", text)
	}
	if got := row(t, text, "Tiles together", "web, before"); strings.Count(got, "–") < 3 {
		t.Errorf("the row is %s", got)
	}
}
