package memsim

import (
	"math"
	"slices"
)

// failShare of all guest-seconds may fail at the bound.
const failShare = .01

// boundLow and boundHigh bracket the factors that the search for the bound looks at.
const (
	boundLow, boundHigh = .05, 20.0
	boundSteps          = 40
)

// Bound is a load factor that no policy can exceed: memory moves at once and for free, 1 % of the guest-seconds may
// fail, and those hold no memory. Of all choices of failing guests the largest ones first are the fewest. The bound is
// loose, and cannot be reached.
func (tr *Trace) Bound() float64 {
	n := len(tr.Guests)
	// rest[second*(n+1)+k] is the need of that second when the k largest guests fail.
	rest := make([]float64, tr.Duration()*(n+1))
	needs := make([]float64, n)
	running := 0
	for second := range tr.Duration() {
		for i, need := range tr.at(tr.need, second) {
			needs[i] = need * (1 - tr.merged(i))
			if tr.running[second*n+i] {
				running++
			}
		}
		slices.Sort(needs)
		slices.Reverse(needs)
		row := rest[second*(n+1) : (second+1)*(n+1)]
		for k, need := range needs {
			row[k+1] = row[k] + need
		}
		all := row[n]
		for k := range row {
			row[k] = all - row[k]
		}
	}
	allowed := failShare * float64(running)
	capacity := tr.Host.RAM - tr.Host.Reserved
	low, high := boundLow, boundHigh
	for range boundSteps {
		factor := math.Sqrt(low * high)
		failing := 0
		for _, need := range rest {
			if need > capacity/factor {
				failing++
			}
		}
		if float64(failing) <= allowed {
			low = factor
		} else {
			high = factor
		}
	}
	return low
}

// merged is the share of guest i's anonymous memory that KSM saves in the long run.
func (tr *Trace) merged(i int) float64 {
	if tr.Host.KSM == nil || tr.Guests[i].Label != "a" {
		return 0
	}
	return tr.Host.KSM.Share
}
