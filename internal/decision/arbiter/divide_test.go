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
		g.Resident = g.Max * part.Draw(t, "resident")
		c := claim{Guest: g, account: &account{}}
		c.need = g.Floor + (g.Max-g.Floor)*part.Draw(t, "need")
		c.margin = (g.Max - c.need) * part.Draw(t, "margin")
		c.cache = (g.Max - c.need - c.margin) * part.Draw(t, "cache")
		claims[i] = c
	}
	return claims
}

// sums adds up the floors, needs and costs of claims, in MiB.
func sums(claims []claim) (floors, need, cost float64) {
	for i := range claims {
		c := &claims[i]
		floors, need, cost = floors+c.Floor, need+c.need, cost+c.cost(&Tuned, c.whole())
	}
	return floors, need, cost
}

// byGrains is the slow twin of the division by shares: each grain goes to the guest with the least for each share.
func byGrains(claims []claim, budget float64) []float64 {
	const grain = .25
	got := make([]float64, len(claims))
	for i, c := range claims {
		got[i] = c.Floor
		budget -= c.Floor
	}
	for ; budget > 0; budget -= grain {
		next, least := -1, math.Inf(1)
		for i, c := range claims {
			if per := got[i] / (c.Shares * c.Max); got[i] < c.need && per < least {
				next, least = i, per
			}
		}
		if next < 0 {
			break
		}
		got[next] += grain
	}
	return got
}

// byLooking is the slow twin of the squeeze: it tries one squeeze after the other.
func byLooking(claims []claim, budget float64) []float64 {
	got := make([]float64, len(claims))
	for step := range 15001 {
		by, cost := float64(step)/5000, 0.
		for i := range claims {
			got[i] = claims[i].squeezed(&Tuned, by)
			cost += claims[i].cost(&Tuned, got[i])
		}
		if cost <= budget {
			break
		}
	}
	return got
}

func TestDivide_SameAsSlowTwins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(Tuned)
		a.claims = drawClaims(t)
		floors, need, cost := sums(a.claims)
		budget := rapid.Float64Range(floors, 1.1*math.Max(need, cost)+1).Draw(t, "budget")
		a.divide(budget)
		var want []float64
		switch {
		case need > budget:
			want = byGrains(a.claims, budget)
		case cost > budget:
			want = byLooking(a.claims, budget)
		default:
			return // all get their whole
		}
		var sum, wanted float64
		for i := range a.claims {
			sum, wanted = sum+a.claims[i].cost(&Tuned, a.claims[i].base), wanted+a.claims[i].cost(&Tuned, want[i])
			// A guest's base jumps to its whole claim at its resident size: there the twins may differ.
			if c := &a.claims[i]; math.Abs(c.base-want[i]) > 2+.002*c.Max && want[i] != c.whole() && c.base != c.whole() {
				t.Fatalf("guest %d gets %.1f MiB, by the slow twin %.1f: %+v", i, c.base, want[i], *c.Guest)
			}
		}
		if math.Abs(sum-wanted) > .02*wanted+10 {
			t.Fatalf("all get %.1f MiB, by the slow twin %.1f", sum, wanted)
		}
	})
}

// TestDivide_Bounds: no guest is below its floor or above its maximum.
func TestDivide_Bounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(Tuned)
		a.claims = drawClaims(t)
		a.divide(rapid.Float64Range(-1000, 200000).Draw(t, "budget"))
		for i := range a.claims {
			if c := &a.claims[i]; c.target < c.Floor-.01 || c.target > c.Max+.01 {
				t.Fatalf("target %.2f is outside %.2f to %.2f", c.target, c.Floor, c.Max)
			}
		}
	})
}
