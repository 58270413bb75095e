package arbiter

import "math"

// tiny keeps a division by nothing finite.
const tiny = 1e-9

// divide gives the budget, in MiB, to the claims. If all fit, each guest gets its whole claim and a part of the rest.
// Otherwise the claims are squeezed. If even the needs do not fit, shares decide.
func (a *Arbiter) divide(budget float64) {
	var whole, wholeCost, need float64
	for c := range a.movable() {
		c.base = c.whole()
		whole, wholeCost, need = whole+c.base, wholeCost+c.cost(&a.Rules, c.base), need+c.need
	}
	switch {
	case need > budget:
		a.divideByShares(budget)
	case wholeCost > budget:
		a.squeeze(budget)
	}
	a.giveSpare(budget - whole)
}

// squeeze finds the least squeeze with which all claims fit, by halving an interval: 14 times, to 0.02 % of it.
func (a *Arbiter) squeeze(budget float64) {
	_, by := halve(0, 3, 14, func(by float64) bool { return a.costSqueezed(by) <= budget })
	for c := range a.movable() {
		c.base = c.squeezed(&a.Rules, by)
	}
}

func (a *Arbiter) costSqueezed(by float64) (sum float64) {
	for c := range a.movable() {
		sum += c.cost(&a.Rules, c.squeezed(&a.Rules, by))
	}
	return sum
}

// squeezed is the claim squeezed by 0 to 3: up to 1 the margin falls to LastMargin of it, up to 2 the cache falls to
// nothing, and up to 3 the rest of the margin. A guest that holds less than that keeps its whole claim: it has nothing
// to give back.
func (c *claim) squeezed(r *Rules, by float64) float64 {
	ofMargin, ofCache := 1-(1-r.LastMargin)*math.Min(by, 1), 1-clamp(by-1, 0, 1)
	if by > 2 {
		ofMargin = r.LastMargin * (3 - by)
	}
	if size := c.need + ofMargin*c.margin + ofCache*c.cache; size < c.Resident {
		return size
	}
	return c.whole()
}

// divideByShares divides a budget that does not hold all needs. A guest gets its part by shares and size, at most its
// need and at least its floor; what some do not need goes to the others in the same way.
func (a *Arbiter) divideByShares(budget float64) {
	perShare, _ := halve(0, 1, 60, func(perShare float64) bool { return a.sumByShares(perShare) > budget })
	for c := range a.movable() {
		c.base, c.reason = c.byShares(perShare), Scarce
	}
}

func (a *Arbiter) sumByShares(perShare float64) (sum float64) {
	for c := range a.movable() {
		sum += c.byShares(perShare)
	}
	return sum
}

// halve narrows an interval to where reached changes from false to true, by halving it a number of times.
func halve(low, high float64, times int, reached func(float64) bool) (below, above float64) {
	for range times {
		if middle := (low + high) / 2; reached(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return low, high
}

func (c *claim) byShares(perShare float64) float64 {
	return clamp(c.Shares*c.Max*perShare, c.Floor, c.need)
}

// giveSpare divides the rest of the budget among all guests, in proportion to their distance from their maximum.
func (a *Arbiter) giveSpare(left float64) {
	var below float64
	for c := range a.movable() {
		below += c.Max - c.base
	}
	part := clamp(left/math.Max(below, tiny), 0, 1)
	for c := range a.movable() {
		c.target = c.base + (c.Max-c.base)*part
	}
}
