package arbiter

import "math"

// divide gives the budget, in MiB, to the claims: need, margin, cache, and what is left to all in proportion to what
// they are below their maximum. In scarcity first caches are cut, then margins to a quarter, then caches again until
// nothing is left of them, then margins. All are cut by the same fraction.
func divide(claims []claim, budget float64) {
	var need, margin, cache float64
	for i := range claims {
		c := &claims[i]
		need, margin, cache = need+c.need, margin+c.margin, cache+c.cache
	}
	left := budget - need
	if left < 0 {
		divideByShares(claims, budget)
		return
	}
	ofMargin := clamp((left-.6*cache)/math.Max(margin, tiny), .25, 1)
	if ofMargin*margin > left {
		ofMargin = left / math.Max(margin, tiny)
	}
	left -= ofMargin * margin
	ofCache := clamp(left/math.Max(cache, tiny), 0, 1)
	left -= ofCache * cache
	var below float64
	for i := range claims {
		if c := &claims[i]; c.apart == "" {
			c.margin, c.cache = c.margin*ofMargin, c.cache*ofCache
			below += c.Max - c.base()
		}
	}
	ofSpare := math.Min(1, math.Max(left, 0)/math.Max(below, tiny))
	for i := range claims {
		if c := &claims[i]; c.apart == "" {
			c.spare = (c.Max - c.base()) * ofSpare
			c.target = c.base() + c.spare
		}
	}
}

// tiny keeps a division by nothing finite.
const tiny = 1e-9

// divideByShares divides a budget that does not hold all needs. A guest gets its shares' part, at most its need and
// at least its floor; what some do not need goes to the others by their shares.
func divideByShares(claims []claim, budget float64) {
	low, high := 0., 1.
	granted := func(c *claim, perShare float64) float64 {
		return clamp(c.Shares*c.Max*perShare, c.Floor, math.Max(c.need, c.Floor))
	}
	sum := func(perShare float64) (all float64) {
		for i := range claims {
			if claims[i].apart == "" {
				all += granted(&claims[i], perShare)
			}
		}
		return all
	}
	for range 60 {
		if middle := (low + high) / 2; sum(middle) > budget {
			high = middle
		} else {
			low = middle
		}
	}
	for i := range claims {
		if c := &claims[i]; c.apart == "" {
			c.target = granted(c, low)
			c.need, c.margin, c.cache, c.reason = c.target, 0, 0, Scarce
		}
	}
}
