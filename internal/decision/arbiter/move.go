package arbiter

import (
	"math"
	"time"
)

// move keeps targets that are near enough to what they should be, since each move costs the guest work and a move that
// is taken back helps nobody. A guest shrinks only while the targets do not fit.
func (a *Arbiter) move(now time.Time, budget float64) {
	var held float64
	for i := range a.claims {
		if c := &a.claims[i]; c.apart == "" {
			held += math.Min(c.Guest.Target, c.Max)
		}
	}
	over, roomy := held > budget*1.005, held < budget*.98
	for i := range a.claims {
		c := &a.claims[i]
		if c.apart != "" {
			continue
		}
		if c.wants(&a.Rules, now, over, roomy); c.target != c.Guest.Target {
			c.moved = now
		}
	}
}

// wants decides whether the guest's target moves, and why.
func (c *claim) wants(r *Rules, now time.Time, over, roomy bool) {
	before := math.Min(c.Guest.Target, c.Max)
	dead := math.Max(r.Dead*c.Max, leastMove)
	rise := c.target - before
	short := c.Actual < c.base()
	switch {
	case rise < -dead && over:
		c.explain(Shrunk)
	case rise > dead && c.strain:
		c.explain(Distress)
	case rise > dead && short:
		c.explain(Grown)
	case rise > dead && roomy && rise > r.Upgrade*c.Max && now.Sub(c.moved) > r.Rest:
		c.explain(Lent)
	default:
		c.target, c.reason = before, Held
	}
}

// explain sets the reason, unless the division gave a stronger one.
func (c *claim) explain(why Reason) {
	if c.reason == "" {
		c.reason = why
	}
}

// pace lets guests grow only into memory that is there: what the guests hold, and half of what they were given and do
// not hold yet, stays below the host's memory.
func (a *Arbiter) pace(h Host) {
	pool := (a.Rules.Use+a.Rules.Headroom)*h.Memory - h.Others + h.Shared
	var wanted float64
	for i := range a.claims {
		c := &a.claims[i]
		if c.apart != "" {
			pool -= c.Resident
			continue
		}
		pool -= math.Min(c.Actual, (c.Actual+c.Resident)/2)
		wanted += math.Max(c.target-c.Actual, 0)
	}
	part := math.Min(1, math.Max(pool, 0)/math.Max(wanted, tiny))
	for i := range a.claims {
		if c := &a.claims[i]; c.apart == "" {
			if c.target > c.Actual {
				c.target = c.Actual + (c.target-c.Actual)*part
			}
			c.target = clamp(c.target, c.Floor, c.Max)
		}
	}
}
