package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// places are the logarithms of quotients that were measured in several places. Every
// place weighs the same, however often it was measured, and what parts one place from
// another is no chance: it is taken out before chance is asked for.
type places struct {
	shares [][]float64 // of each place's each quotient in mean
	mean   float64     // of the places' means
	left   [][]float64 // what shares differ from their place's mean by; as wide as if that were known
}

func newPlaces(quotients [][]float64) places {
	var p places
	for _, some := range quotients {
		n := float64(len(some))
		weight := 1 / n / float64(len(quotients))
		shares, left := logs(some), make([]float64, len(some))
		for i := range shares {
			shares[i] *= weight
		}
		sum := total(shares)
		for i := range left {
			// The mean of few lies nearer to them than the true one.
			left[i] = (shares[i] - sum/n) * math.Sqrt(n/max(n-1, 1))
		}
		p.shares, p.left = append(p.shares, shares), append(p.left, left)
		p.mean += sum
	}
	return p
}

// repeated tells whether every place was measured twice at least: otherwise nothing
// is known of what one differs from itself by.
func (p places) repeated() bool {
	return len(p.left) > 0 && !slices.ContainsFunc(p.left, func(some []float64) bool { return len(some) < 2 })
}

// ComparePlaces weighs one thing against another where both were measured beside
// each other in several places, again and again: quotients[i] are those of place i, of
// one repetition each. Places may be as unlike as they like, in what both do there and
// in how far the two lie apart. The ratio is the geometric mean of the places'
// geometric means; its interval a bootstrap over the repetitions within each place,
// not a number where a place has but one; the chance that of pairs which change
// sides, as in Paired; the effect the mean over places of Cliff's delta against 1.
func ComparePlaces(quotients [][]float64) Comparison {
	if slices.ContainsFunc(quotients, func(some []float64) bool { return len(some) == 0 }) {
		panic("stats: a place where nothing was measured")
	}
	c := Comparison{Ratio: Ratio{math.NaN(), math.NaN(), math.NaN()}, P: 1}
	if len(quotients) == 0 {
		return c
	}
	p := newPlaces(quotients)
	c.Ratio.Value = math.Exp(p.mean)
	if p.repeated() {
		c.Ratio.Low, c.Ratio.High = p.interval()
	}
	c.P = p.chance()
	for _, some := range quotients {
		c.Effect += Effect(some, []float64{1}) / float64(len(quotients))
	}
	return c
}

// chance is that of means as far from none if the two of each pair change sides.
func (p places) chance() float64 {
	shares := slices.Concat(p.shares...)
	return Paired(shares, make([]float64, len(shares)))
}

func (p places) interval() (low, high float64) {
	draws := rand.New(rand.NewPCG(uint64(len(p.left)), 5))
	means := make([]float64, resamples)
	for i := range means {
		means[i] = p.mean
		for _, some := range p.left {
			for range some {
				means[i] += some[draws.IntN(len(some))]
			}
		}
	}
	slices.Sort(means)
	return math.Exp(quantile(means, (1-confidence)/2)), math.Exp(quantile(means, (1+confidence)/2))
}

// NoiseInPlaces is what the host does to such a comparison of a thing with itself:
// what parts the two in each place is taken out, the two of each pair change sides at
// random 999 times, and this is the part by which they differed at most. It is NaN
// where a place was measured but once.
func NoiseInPlaces(quotients [][]float64) float64 {
	p := newPlaces(quotients)
	if !p.repeated() {
		return math.NaN()
	}
	draws := rand.New(rand.NewPCG(uint64(len(quotients)), 6))
	left, most := slices.Concat(p.left...), 0.0
	for range 999 {
		var sum float64
		for _, d := range left {
			if draws.Uint64()&1 == 1 {
				d = -d
			}
			sum += d
		}
		most = max(most, math.Abs(sum))
	}
	return math.Expm1(most)
}
