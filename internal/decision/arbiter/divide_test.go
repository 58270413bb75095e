package arbiter

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// drawClaims makes guests that may move, with claims that fit their maximum.
func drawClaims(t *rapid.T) []claim {
	claims := make([]claim, rapid.IntRange(1, 12).Draw(t, "guests"))
	for i := range claims {
		part := rapid.Float64Range(0, 1)
		g := &Guest{ID: fmt.Sprint(i), Max: rapid.Float64Range(256, 16384).Draw(t, "max"), Shares: rapid.Float64Range(100, 4000).Draw(t, "shares")}
		g.Floor = g.Max * .5 * part.Draw(t, "floor")
		c := claim{Guest: g, account: &account{}}
		c.need = g.Floor + (g.Max-g.Floor)*part.Draw(t, "need")
		c.margin = (g.Max - c.need) * part.Draw(t, "margin")
		c.cache = (g.Max - c.need - c.margin) * part.Draw(t, "cache")
		claims[i] = c
	}
	return claims
}

// inGrains is the slow twin of divide: it hands the budget out in small grains, each to the guest that comes first by
// the rules of the package's doc. It returns the targets.
func inGrains(claims []claim, budget, grain float64) []float64 {
	got := make([]float64, len(claims))
	for i, c := range claims {
		got[i] = c.Floor
		budget -= c.Floor
	}
	var need float64
	for _, c := range claims {
		need += c.need - c.Floor
	}
	if need > budget { // by shares: the next grain goes to the guest with the least for each share
		for ; budget > 0; budget -= grain {
			best, least := -1, math.Inf(1)
			for i, c := range claims {
				if got[i] < c.need && got[i]/(c.Shares*c.Max) < least {
					best, least = i, got[i]/(c.Shares*c.Max)
				}
			}
			if best < 0 {
				break
			}
			got[best] += grain
		}
		return got
	}
	for i, c := range claims {
		got[i] = c.need
	}
	return pour(claims, got, budget-need)
}

// pour hands out what is left after all needs, in rounds of a thousandth of each part.
func pour(claims []claim, got []float64, left float64) []float64 {
	const rounds = 10000
	fill := func(part func(c *claim) float64, from, to float64) {
		var all float64
		for i := range claims {
			all += part(&claims[i])
		}
		for range int(math.Round(rounds * (to - from))) {
			step := math.Min(all/rounds, math.Max(left, 0))
			for i := range claims {
				got[i] += part(&claims[i]) * step / math.Max(all, tiny)
			}
			left -= step
		}
	}
	margin := func(c *claim) float64 { return c.margin }
	cache := func(c *claim) float64 { return c.cache }
	fill(margin, 0, .25)
	fill(cache, 0, .6)
	fill(margin, .25, 1)
	fill(cache, .6, 1)
	fill(func(c *claim) float64 { return c.Max - c.need - c.margin - c.cache }, 0, 1)
	return got
}

func TestDivide_SameAsInGrains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claims := drawClaims(t)
		var most, floors float64
		for _, c := range claims {
			most, floors = most+c.Max, floors+c.Floor
		}
		budget := rapid.Float64Range(floors, 1.1*most).Draw(t, "budget")
		want := inGrains(claims, budget, .25)
		divide(claims, budget)
		for i, c := range claims {
			if math.Abs(c.target-want[i]) > 2+.002*c.Max {
				t.Fatalf("guest %d gets %.1f MiB, in grains %.1f: %+v", i, c.target, want[i], *c.Guest)
			}
		}
	})
}

// TestDivide_Bounds: no guest is below its floor or above its maximum, and all together fit whenever the floors do.
func TestDivide_Bounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claims := drawClaims(t)
		budget := rapid.Float64Range(0, 200000).Draw(t, "budget")
		divide(claims, budget)
		var sum, floors float64
		for _, c := range claims {
			sum, floors = sum+c.target, floors+c.Floor
			if c.target < c.Floor-.01 || c.target > c.Max+.01 {
				t.Fatalf("target %.2f is outside %.2f to %.2f", c.target, c.Floor, c.Max)
			}
		}
		if sum > math.Max(budget, floors)+.1 {
			t.Fatalf("targets of %.1f MiB do not fit into %.1f", sum, budget)
		}
	})
}
