// Package stats is the lab's arithmetic: what a list of measured values says,
// and how sure one may be of it.
package stats

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Median is the middle value; NaN of none.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Quantile is the value below which the fraction q (0 to 1) of the values lies,
// interpolated between neighbours; NaN of none.
func Quantile(values []float64, q float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), q)
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	place := min(max(q, 0), 1) * float64(len(sorted)-1)
	below := int(place)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + (place-float64(below))*(sorted[below+1]-sorted[below])
}

// GeometricMean is the mean of values whose noise multiplies; NaN of none. All must be
// above zero.
func GeometricMean(values []float64) float64 {
	return math.Exp(total(logs(values)) / float64(len(values)))
}

// Ratio is a quotient of two medians, or a mean of quotients, and the interval that
// holds the true one with 95 percent.
type Ratio struct{ Value, Low, High float64 }

const (
	resamples  = 9999
	confidence = 0.95
)

// MedianRatio divides the median of a by that of b. Its interval is a bootstrap:
// both are drawn anew, with replacement, again and again, and the middle 95
// percent of the quotients stay. The same values give the same interval. With
// no values in a or b all is NaN.
func MedianRatio(a, b []float64) Ratio {
	if len(a) == 0 || len(b) == 0 {
		return Ratio{math.NaN(), math.NaN(), math.NaN()}
	}
	draws := rand.New(rand.NewPCG(uint64(len(a)), uint64(len(b))))
	quotients := make([]float64, resamples)
	above, below := newSampler(a), newSampler(b)
	for i := range quotients {
		quotients[i] = above.median(draws) / below.median(draws)
	}
	slices.Sort(quotients)
	return Ratio{
		Value: quantile(above.sorted, 0.5) / quantile(below.sorted, 0.5),
		Low:   quantile(quotients, (1-confidence)/2),
		High:  quantile(quotients, (1+confidence)/2),
	}
}

// sampler draws samples of its values' number from them, with replacement. It counts
// how often each is drawn, by its rank, so that no sample is sorted.
type sampler struct {
	sorted []float64
	rank   []int // of values[i] in sorted
	drawn  []int // by rank
}

func newSampler(values []float64) *sampler {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(values[i], values[j]) })
	s := &sampler{make([]float64, len(values)), make([]int, len(values)), make([]int, len(values))}
	for rank, i := range order {
		s.sorted[rank], s.rank[i] = values[i], rank
	}
	return s
}

// median is that of one more sample.
func (s *sampler) median(draws *rand.Rand) float64 {
	clear(s.drawn)
	for range s.rank {
		s.drawn[s.rank[draws.IntN(len(s.rank))]]++
	}
	// The middle one, or the middle two, by the number of those up to a rank.
	low, high := (len(s.rank)-1)/2, len(s.rank)/2
	seen, first := 0, -1
	for rank, n := range s.drawn {
		seen += n
		if first < 0 && seen > low {
			first = rank
		}
		if seen > high {
			return s.sorted[first] + (s.sorted[rank]-s.sorted[first])/2
		}
	}
	return math.NaN()
}
