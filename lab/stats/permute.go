package stats

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// Unpaired is a permutation test of two lists that were measured
// independently: how often does chance alone, dealing the same values out to
// two lists of these sizes, part their means at least as far as they are
// parted? When there are no more than 9,999 ways to deal, all are tried and the
// answer is exact; otherwise 9,999 are drawn, always the same for lists of the
// same sizes, and what was measured counts as one more, so the answer is never
// zero. It is 1 if a list is empty.
func Unpaired(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	all := slices.Concat(a, b)
	sum := total(all)
	parted := func(sumA float64) float64 {
		return math.Abs(sumA/float64(len(a)) - (sum-sumA)/float64(len(b)))
	}
	seen := parted(total(a)) - rounding(all)
	if ways := choose(len(all), len(a)); ways <= resamples {
		return exactly(all, len(a), func(sumA float64) bool { return parted(sumA) >= seen })
	}
	draws := rand.New(rand.NewPCG(uint64(len(a)), uint64(len(b))))
	return drawn(func() bool {
		// The first places of a shuffle are all that is needed of it.
		var sumA float64
		for i := range a {
			j := i + draws.IntN(len(all)-i)
			all[i], all[j] = all[j], all[i]
			sumA += all[i]
		}
		return parted(sumA) >= seen
	})
}

// Paired is a permutation test of values that were measured in pairs, one of a
// beside one of b: how often does chance alone, swapping the two of each pair
// or not, part the means at least as far? Up to 13 pairs it is exact; then it
// is drawn, as in Unpaired. It is 1 if there are no pairs. The lists must be of
// one length.
func Paired(a, b []float64) float64 {
	if len(a) != len(b) {
		panic("stats: pairs of lists of different lengths")
	}
	if len(a) == 0 {
		return 1
	}
	apart := make([]float64, len(a))
	for i := range a {
		apart[i] = a[i] - b[i]
	}
	seen := math.Abs(total(apart)) - rounding(apart)
	signed := func(negative func(i int) bool) bool {
		var sum float64
		for i, d := range apart {
			if negative(i) {
				d = -d
			}
			sum += d
		}
		return math.Abs(sum) >= seen
	}
	if ways := 1 << min(len(a), 30); ways <= resamples {
		as := 0
		for signs := range ways {
			if signed(func(i int) bool { return signs>>i&1 == 1 }) {
				as++
			}
		}
		return float64(as) / float64(ways)
	}
	draws := rand.New(rand.NewPCG(uint64(len(a)), 2))
	return drawn(func() bool { return signed(func(int) bool { return draws.Uint64()&1 == 1 }) })
}

// LeastUnpaired is the smallest chance that Unpaired can give for lists of these
// sizes, however far they are parted: with few values nothing is sure.
func LeastUnpaired(a, b int) float64 {
	if a == 0 || b == 0 {
		return 1
	}
	ways := choose(a+b, a)
	switch {
	case ways > resamples:
		return 1.0 / (resamples + 1)
	case a == b:
		return 2 / float64(ways) // the other way round is as far
	}
	return 1 / float64(ways)
}

// LeastPaired is the smallest chance that Paired can give for so many pairs.
func LeastPaired(pairs int) float64 {
	if pairs == 0 {
		return 1
	}
	if ways := 1 << min(pairs, 30); ways <= resamples {
		return 2 / float64(ways)
	}
	return 1.0 / (resamples + 1)
}

// rounding is what sums of the values may differ by when they are made in
// another order, and what therefore counts as no difference.
func rounding(values []float64) float64 {
	var size float64
	for _, v := range values {
		size += math.Abs(v)
	}
	return 1e-12 * size
}

// drawn gives the part of the draws that hold, with what was measured as one
// more of them.
func drawn(holds func() bool) float64 {
	as := 1
	for range resamples {
		if holds() {
			as++
		}
	}
	return float64(as) / (resamples + 1)
}

// exactly goes through all choices of n of the values, and gives the part of
// those whose sum holds. There are few values, for there are few choices.
func exactly(values []float64, n int, holds func(sum float64) bool) float64 {
	as, ways := 0, 0
	var choose func(from, left int, sum float64)
	choose = func(from, left int, sum float64) {
		if left == 0 {
			ways++
			if holds(sum) {
				as++
			}
			return
		}
		for i := from; i <= len(values)-left; i++ {
			choose(i+1, left-1, sum+values[i])
		}
	}
	choose(0, n, 0)
	return float64(as) / float64(ways)
}

// choose is the number of ways to choose k of n, or more than any bound if it
// does not fit.
func choose(n, k int) uint64 {
	k = min(k, n-k)
	ways := uint64(1)
	for i := range k {
		high, low := bits.Mul64(ways, uint64(n-i))
		if high != 0 {
			return math.MaxUint64
		}
		ways = low / uint64(i+1)
	}
	return ways
}

func total(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	return sum
}
