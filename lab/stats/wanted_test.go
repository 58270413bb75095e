package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A difference that so many repetitions are said to find is found by them, as a rule.
// Promise: L56
func TestWanted_IsEnoughAndNotMuchMore(t *testing.T) {
	draws := rand.New(rand.NewPCG(4, 2))
	sample := func(n int, centre, noise float64) []float64 {
		all := make([]float64, n)
		for i := range all {
			all[i] = centre * math.Exp(noise*draws.NormFloat64())
		}
		return all
	}
	for _, c := range []struct{ ratio, noise float64 }{{0.8, 0.1}, {0.73, 0.2}, {1.3, 0.3}} {
		// By many values, so that what is wanted is known well.
		n := Wanted(sample(500, c.ratio, c.noise), sample(500, 1, c.noise), false, Surely)
		found := func(n int) (of int) {
			for range 40 {
				if Unpaired(logs(sample(n, c.ratio, c.noise)), logs(sample(n, 1, c.noise))) < Surely {
					of++
				}
			}
			return of
		}
		if many, fewer := found(n), found(max(4, n/3)); many < 28 || fewer > 30 && n > 12 {
			t.Errorf("%v with a noise of %v: %d repetitions find it %d times of 40, a third of them %d times", c.ratio, c.noise, n, many, fewer)
		}
	}
}

func TestWanted_Known(t *testing.T) {
	same := []float64{1, 1.1, 0.9, 1}
	for _, c := range []struct {
		what   string
		a, b   []float64
		paired bool
		want   int
	}{
		{"nothing parts them", same, same, false, Most + 1},
		{"nothing is there", nil, same, false, Most + 1},
		{"no noise: as few as a permutation can tell", []float64{2, 2}, []float64{1, 1}, false, 5},
		{"no noise, in pairs", []float64{2, 2}, []float64{1, 1}, true, 8},
	} {
		if got := Wanted(c.a, c.b, c.paired, Surely); got != c.want {
			t.Errorf("%s: %d, and %d are right", c.what, got, c.want)
		}
	}
}
