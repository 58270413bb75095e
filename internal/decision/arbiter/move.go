package arbiter

import "math"

// move keeps targets that are nearly right, because each move costs the guest work. A guest shrinks only while the
// promised memory exceeds the budget. It grows only while it has less than its claim, or in distress.
func (a *Arbiter) move(budget float64) {
	var promised float64
	for c := range a.movable() {
		promised += c.cost(&a.Rules, math.Min(c.Target, c.Max))
	}
	for c := range a.movable() {
		c.choose(&a.Rules, promised > budget*1.005)
	}
}

// choose decides whether the guest's target moves, and why.
func (c *claim) choose(r *Rules, over bool) {
	before := math.Min(c.Target, c.Max)
	dead := math.Max(r.Dead*c.Max, leastMove)
	why := Held
	switch {
	case c.target < before-dead && over:
		why = Shrunk
	case c.target > before+dead && c.strain:
		why = Distress
	case c.target > before+dead && c.Actual < c.base:
		why = Grown
	default:
		c.target = before
	}
	if c.reason == "" || why == Held {
		c.reason = why
	}
}

// pace lets guests grow only into free memory. The sum of resident memory, and of a part of the memory that guests were
// given and do not hold yet, stays below the host's limit.
func (a *Arbiter) pace(h Host) {
	room := a.Rules.Limit*h.Memory - h.Others + h.Shared
	var growth float64
	for i := range a.claims {
		c := &a.claims[i]
		if c.apart != "" {
			room -= c.Resident
			continue
		}
		room -= math.Min(c.Actual, c.Resident+a.Rules.Untouched*math.Max(0, c.Actual-c.Resident))
		growth += a.Rules.Untouched * math.Max(c.target-c.Actual, 0)
	}
	part := clamp(room/math.Max(growth, tiny), 0, 1)
	for c := range a.movable() {
		if c.target > c.Actual {
			c.target = c.Actual + (c.target-c.Actual)*part
		}
		c.target = clamp(c.target, c.Floor, c.Max)
	}
}
