package pages

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

func TestOtherWorkIsNotCompared(t *testing.T) {
	a := newSynthetic(1)
	b := a
	b.profile = "mini"
	b.target.Accelerator = "tcg"
	var out strings.Builder
	err := Compare(a.keep(t), b.keep(t), &out)
	if err == nil || !strings.Contains(err.Error(), "profile: paper against mini") || !strings.Contains(err.Error(), "accelerator: kvm against tcg") || out.Len() > 0 {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, r := range []record.Outcome{record.Interrupted, ""} {
		half := &record.Run{Header: a.header(), Dir: "half"}
		half.Outcome = r
		if err := comparable(half, half); err == nil || !strings.Contains(err.Error(), "half is not complete") {
			t.Errorf("a run that is %q: %v", r, err)
		}
	}
}

func compared(t *testing.T, a, b synthetic) string {
	t.Helper()
	var out strings.Builder
	check(t, Compare(a.keep(t), b.keep(t), &out))
	return out.String()
}

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
	out := compared(t, a, b)
	for _, want := range []string{
		"throughput of web at tiles=2, after is less: 0.50 times",
		"No difference worth a word was shown in 7 comparisons of 8.",
		"270", "135", "-1.00",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	// Five are too few, whatever parts them.
	a.repetitions, b.repetitions = 5, 5
	if out = compared(t, a, b); !strings.Contains(out, "No verdict on 8 comparisons of 8: 5 and 5 repetitions, 6 each are wanted.") || strings.Contains(out, " is less") {
		t.Errorf("five repetitions:\n%s", out)
	}
}

func TestADifferenceBelowTheNoiseIsNone(t *testing.T) {
	// Chance alone hardly parts the two so, and yet halves of one side differ more.
	var a, b []float64
	for i := range 20 {
		a, b = append(a, 115*(1+0.03*float64(i))), append(b, 100*(1+0.03*float64(i)))
	}
	w := weigh([]pair{{"x", "1/s", a, b}})[0]
	if w.P >= stats.Surely || w.Ratio.Value < 1+stats.Matters || w.noise < 0.15 {
		t.Fatalf("this tries nothing: %+v", w)
	}
	if w.finding != stats.Same {
		t.Errorf("%+v", w)
	}
	if w := weigh([]pair{{"x", "1/s", []float64{1, 1, 1, 1, 1, 0}, []float64{1, 1, 1, 1, 1, 1}}})[0]; w.why == "" || w.finding != stats.Same {
		t.Errorf("a repetition without anything: %+v", w)
	}
}

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
			pairs = append(pairs, pair{fmt.Sprint(i), "1/s", side(), side()})
		}
		for _, w := range weigh(pairs) {
			if w.why != "" || w.finding != stats.Same {
				t.Errorf("try %d: %+v", try, w)
			}
		}
	}
}
