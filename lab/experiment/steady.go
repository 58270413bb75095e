package experiment

import (
	"math"

	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// reading is what a load came to over one window of its warm-up, and by how much
// chance alone has it off: its standard error.
type reading struct{ value, chance float64 }

// rangeOfThree is how far apart three draws of chance lie in one case of twenty, in
// standard errors.
const rangeOfThree = 3.31

// apart says by which part of their mean the last three readings differ, and which
// part is no more than what chance makes of so few operations. Too few readings, or
// ones of nothing, differ without bound.
func apart(all []reading) (part, chance float64) {
	if len(all) < scenario.SteadyWindows {
		return math.Inf(1), 0
	}
	all = all[len(all)-scenario.SteadyWindows:]
	least, most, sum, squares := all[0].value, all[0].value, 0.0, 0.0
	for _, r := range all {
		least, most = min(least, r.value), max(most, r.value)
		sum, squares = sum+r.value, squares+r.chance*r.chance
	}
	mean, n := sum/scenario.SteadyWindows, float64(scenario.SteadyWindows)
	if !(mean > 0) {
		return math.Inf(1), 0
	}
	return (most - least) / mean, rangeOfThree * math.Sqrt(squares/n) / mean
}

// mostChance is how far apart chance may have readings for them to tell anything:
// where it makes more, nobody knows whether the load is steady, and it is not called so.
const mostChance = 0.25

// steady decides: the last three readings differ by less than the part that is
// allowed, or by no more than chance alone may have them.
func steady(all []reading, within float64) bool {
	part, chance := apart(all)
	return part < max(within, min(chance, mostChance))
}

// readRate is what a load did in a window by itself: its count has the error of a count.
func readRate(window workload.Count) reading {
	return reading{float64(window.Done), math.Sqrt(float64(window.Done))}
}

// readTime is how long an operation took, in the middle: what a load is read by that
// is told when to begin its operations, and so does as many warm or cold. Its error
// is that of the middle's rank.
func readTime(window workload.Count) reading {
	times := window.Latency
	if times == nil || times.TotalCount() == 0 {
		return readRate(window)
	}
	rank := 50 / math.Sqrt(float64(times.TotalCount())) // in percent
	low, high := times.ValueAtQuantile(max(0, 50-rank)), times.ValueAtQuantile(min(100, 50+rank))
	return reading{float64(times.ValueAtQuantile(50)), float64(high-low) / 2}
}
