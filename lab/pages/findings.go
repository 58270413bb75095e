package pages

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/lodge-kvm/lodge/lab/stats"
)

// words says a finding.
func (w weighed) words() string {
	return fmt.Sprintf("%s is %s: %s times (95 %% %s), p %.2g.", w.what, w.finding, number(w.Ratio.Value), interval(w.Ratio), w.P)
}

// findings says those that were found, what was seen and is not settled, and what could
// not be weighed.
func findings(all []weighed) (said []string) {
	for _, w := range all {
		if w.why == "" && w.finding != stats.Same {
			said = append(said, w.words())
		}
	}
	return append(append(said, unsettled(all)...), unweighed(all)...)
}

// settled tells whether what a comparison did not find is at most as large as what would
// not matter.
func (w weighed) settled() bool {
	return w.Ratio.Low*(1+stats.Matters) >= 1 && w.Ratio.High <= 1+stats.Matters
}

// open says what was seen, how sure it is, and what would settle it.
func (w weighed) open() string {
	return fmt.Sprintf("%s: %s times was seen (95 %% %s), which is not settled: p %.2g. %s", w.what, number(w.Ratio.Value), interval(w.Ratio), w.P, w.settles())
}

// settles says what would.
func (w weighed) settles() string {
	if !math.IsNaN(w.noise) && !w.Ratio.Beyond(w.noise) {
		return fmt.Sprintf("It is within the noise of ±%s, by which a side differs from itself: a quieter host or longer windows would settle it.", percent(w.noise))
	}
	what := cmp.Or(w.counted, "repetition")
	switch n := stats.Wanted(w.a, w.b, w.beside, stats.Surely/float64(max(1, w.together))); {
	case n > stats.Most:
		return "It would take more repetitions than are worth while: the two may be the same."
	case n <= len(w.a):
		return fmt.Sprintf("A few more than %s would settle it.", plural(len(w.a), what))
	default:
		return fmt.Sprintf("About %s would settle it.", plural(n, what))
	}
}

// unsettled says of comparisons without a finding what was seen: one by one where it would
// matter, and together where it would not.
func unsettled(all []weighed) (said []string) {
	var seen, none, vague []weighed
	for _, w := range all {
		switch {
		case w.why != "" || w.finding != stats.Same:
		case w.Ratio.Beyond(stats.Matters):
			seen = append(seen, w)
		case w.settled():
			none = append(none, w)
		default:
			vague = append(vague, w)
		}
	}
	slices.SortStableFunc(seen, func(a, b weighed) int { return cmp.Compare(a.P, b.P) })
	for _, w := range seen[:min(len(seen), mostTold)] {
		said = append(said, w.open())
	}
	if rest := seen[min(len(seen), mostTold):]; len(rest) > 0 {
		said = append(said, fmt.Sprintf("%s of %d more show %s times, which are not settled either: see the table.", plural(len(rest), "comparison"), len(all), quotients(rest)))
	}
	if len(none) > 0 {
		low, high := reach(none)
		said = append(said, fmt.Sprintf("No difference of more than %s in %s of %d: the 95 %% intervals lie within %s–%s times.", percent(stats.Matters), plural(len(none), "comparison"), len(all), number(low), number(high)))
	}
	if len(vague) > 0 {
		low, high := reach(vague)
		said = append(said, fmt.Sprintf("No difference was settled in %s of %d: %s times were seen, and the 95 %% intervals reach from %s to %s. More repetitions would narrow them.",
			plural(len(vague), "comparison"), len(all), quotients(vague), number(low), number(high)))
	}
	return said
}

// unweighed says why comparisons have no verdict, with what was seen all the same.
func unweighed(all []weighed) (said []string) {
	var reasons []string
	few := map[string][]weighed{}
	for _, w := range all {
		if w.why == "" {
			continue
		}
		if few[w.why] == nil {
			reasons = append(reasons, w.why)
		}
		few[w.why] = append(few[w.why], w)
	}
	for _, why := range reasons {
		words := fmt.Sprintf("No verdict on %s of %d: %s.", plural(len(few[why]), "comparison"), len(all), why)
		if far := farthest(few[why]); far != nil {
			words += fmt.Sprintf(" Seen were %s times; the farthest is %s with %s times.", quotients(few[why]), far.what, number(far.Ratio.Value))
		}
		said = append(said, words)
	}
	return said
}

// farthest is what was seen to differ most, by more than would matter; nil if nothing was,
// or if the values are not to be believed.
func farthest(all []weighed) *weighed {
	var most *weighed
	size := func(w *weighed) float64 { return math.Abs(math.Log(w.Ratio.Value)) }
	for i, w := range all {
		if w.unsound != "" || !(w.Ratio.Value > 0) || math.IsInf(w.Ratio.Value, 0) || !w.Ratio.Beyond(stats.Matters) {
			continue
		}
		if most == nil || size(&w) > size(most) {
			most = &all[i]
		}
	}
	return most
}

// quotients are the least and the largest that were seen.
func quotients(all []weighed) string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, w := range all {
		if v := w.Ratio.Value; !math.IsNaN(v) && !math.IsInf(v, 0) {
			low, high = min(low, v), max(high, v)
		}
	}
	if number(low) == number(high) {
		return number(low)
	}
	return number(low) + "–" + number(high)
}

// reach is what the intervals lie between.
func reach(all []weighed) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, w := range all {
		low, high = min(low, w.Ratio.Low), max(high, w.Ratio.High)
	}
	return low, high
}
