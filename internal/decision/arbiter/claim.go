package arbiter

import (
	"math"
	"time"
)

// claim holds the memory that one guest could use, and its share of it. Sizes are in MiB.
type claim struct {
	*Guest
	*account

	apart               Reason // why its balloon stays where it is; empty: it may move
	need, margin, cache float64
	base                float64 // the part of the three that it is given
	target              float64
	reason              Reason
}

// setApart decides whether the balloon may move. The target of one that does not follow is at least what the guest
// has: otherwise the guest would starve once it follows again.
func (c *claim) setApart(r *Rules, now time.Time) {
	switch {
	case c.Apart != "":
		c.apart = Apart
	case c.sampled.IsZero():
		c.apart = Unsampled
	case !c.stuck.IsZero() && now.Sub(c.stuck) < r.StuckFor:
		c.apart, c.target = Stuck, math.Max(c.Target, c.Actual)
		if c.strain {
			c.target = math.Min(c.Max, math.Max(c.target, c.Actual+r.LeastMargin*c.Max))
		}
	}
	c.reason = c.apart
}

// say sets the three parts, so that they fit the guest's floor and maximum.
func (c *claim) say(need, margin, cache float64) {
	c.need = clamp(need*1.005+slack, c.Floor, c.Max)
	c.margin = math.Min(margin, c.Max-c.need)
	c.cache = math.Max(0, math.Min(cache, c.Max-c.need-c.margin))
}

// whole is all that the guest could use.
func (c *claim) whole() float64 { return c.need + c.margin + c.cache }

// cost is what a target of that size costs the host: what the guest holds of it in full, the rest in part.
func (c *claim) cost(r *Rules, size float64) float64 {
	return math.Min(size, c.Resident) + r.Untouched*math.Max(0, size-c.Resident)
}

// decision has no parts for a guest whose balloon stays where it is.
func (c *claim) decision() Decision {
	d := Decision{ID: c.ID, Target: c.target, Reason: c.reason, Need: c.need, Margin: c.margin, Cache: c.cache}
	if c.apart == "" {
		d.Spare = math.Max(0, c.target-c.base)
	}
	return d
}

func clamp(x, low, high float64) float64 { return math.Min(math.Max(x, low), high) }
