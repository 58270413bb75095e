// Package stats is the lab's arithmetic: what a list of measured values says,
// and how sure one may be of it.
package stats

import (
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

// Ratio is a quotient of two medians and the interval that holds the true one
// with 95 percent.
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
	sampleA, sampleB := make([]float64, len(a)), make([]float64, len(b))
	for i := range quotients {
		quotients[i] = draw(draws, a, sampleA) / draw(draws, b, sampleB)
	}
	slices.Sort(quotients)
	return Ratio{
		Value: Median(a) / Median(b),
		Low:   quantile(quotients, (1-confidence)/2),
		High:  quantile(quotients, (1+confidence)/2),
	}
}

// draw fills a sample from the values, and gives its median.
func draw(draws *rand.Rand, values, sample []float64) float64 {
	for i := range sample {
		sample[i] = values[draws.IntN(len(values))]
	}
	slices.Sort(sample)
	return quantile(sample, 0.5)
}
