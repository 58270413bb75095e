package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// The double threshold of a finding.
const (
	Surely  = 0.01 // chance of a false alarm below which a difference is believed
	Matters = 0.10 // part of the smaller by which two must differ to matter
)

// Comparison is what may be said of one list of times or sizes beside another.
type Comparison struct {
	Ratio  Ratio   // of the medians, or of the pairs
	P      float64 // chance that nothing parts the two but luck
	Effect float64 // Cliff's delta: -1 all of a below all of b, 0 mixed, 1 all above
}

// Compare weighs a against b, which were measured independently. What is
// measured is above zero and its noise multiplies, so the test is of the
// logarithms: a ratio of geometric means.
func Compare(a, b []float64) Comparison {
	return Comparison{MedianRatio(a, b), Unpaired(logs(a), logs(b)), Effect(a, b)}
}

// ComparePairs weighs a against b, of which each a[i] was measured beside its
// b[i], so that what troubled the host troubled both.
func ComparePairs(a, b []float64) Comparison {
	return Comparison{PairedRatio(a, b), Paired(logs(a), logs(b)), Effect(a, b)}
}

// Finding is what a comparison comes to.
type Finding int

// The findings. Same does not say that two things are equal: it says that no
// difference that matters was shown.
const (
	Same Finding = iota
	Less
	More
)

func (f Finding) String() string { return [...]string{"same", "less", "more"}[f] }

// Find is the double threshold: a difference is one only if chance hardly makes
// it (p below Surely) and it is larger than the part of the smaller that matters
// (Matters, or the host's Noise where that is more), so that neither a loud nor a
// very quiet host makes news of nothing, and either side may come first. Where
// several things are compared at once, p comes from Holm.
func (c Comparison) Find(matters float64) Finding {
	switch {
	case !(c.P < Surely), !c.Ratio.Beyond(matters):
		return Same
	case c.Ratio.Value < 1:
		return Less
	}
	return More
}

// Beyond tells whether two medians differ by more than a part of the smaller.
func (r Ratio) Beyond(part float64) bool { return max(r.Value, 1/r.Value) > 1+part }

// PairedRatio is the median of the quotients of pairs, with a bootstrap over the
// pairs. The lists must be of one length; with no pairs all is NaN.
func PairedRatio(a, b []float64) Ratio {
	if len(a) != len(b) {
		panic("stats: pairs of lists of different lengths")
	}
	quotients := make([]float64, len(a))
	for i := range a {
		quotients[i] = a[i] / b[i]
	}
	return MedianRatio(quotients, []float64{1})
}

// Effect is Cliff's delta: the chance that a value of a is above one of b, less
// the chance that it is below. It is 0 if a list is empty.
func Effect(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(b))
	above, below := 0, 0
	for _, v := range a {
		first, _ := slices.BinarySearch(sorted, v)
		last, _ := slices.BinarySearch(sorted, math.Nextafter(v, math.Inf(1)))
		above += first
		below += len(sorted) - last
	}
	return float64(above-below) / float64(len(a)*len(b))
}

// Holm corrects the chances of false alarm of several tests that are read
// together: each becomes the chance that this or a smaller one of them is an
// alarm without a cause. The order stays.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		switch {
		case p[i] < p[j]:
			return -1
		case p[i] > p[j]:
			return 1
		}
		return 0
	})
	corrected, least := make([]float64, len(p)), 0.0
	for rank, i := range order {
		least = max(least, min(1, float64(len(p)-rank)*p[i]))
		corrected[i] = least
	}
	return corrected
}

// Noise is what the host does to a comparison of a thing with itself: the values
// are parted at random into halves 999 times, and this is the part by which the
// medians of two halves differed at most. A difference below it is not worth a
// word. It is NaN of fewer than four values.
func Noise(values []float64) float64 {
	if len(values) < 4 {
		return math.NaN()
	}
	draws := rand.New(rand.NewPCG(uint64(len(values)), 3))
	dealt, half := slices.Clone(values), len(values)/2
	most := 0.0
	for range 999 {
		draws.Shuffle(len(dealt), func(i, j int) { dealt[i], dealt[j] = dealt[j], dealt[i] })
		most = max(most, math.Abs(math.Log(Median(dealt[:half])/Median(dealt[half:]))))
	}
	return math.Expm1(most)
}

func logs(values []float64) []float64 {
	all := make([]float64, len(values))
	for i, v := range values {
		all[i] = math.Log(v)
	}
	return all
}
