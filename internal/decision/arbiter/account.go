package arbiter

import (
	"math"
	"time"
)

// account is what the arbiter has learned of one guest. Sizes are in MiB.
type account struct {
	started time.Time
	sampled time.Time // the newest sample that it knows
	need    float64   // of that sample
	low     float64   // the lowest need of late
	growth  float64   // how far the need has risen above low, fading
	lacked  float64   // what distress adds to the margin, fading
	cache   float64   // that the guest is worth giving
	hungry  time.Time // when it last read again what it had dropped
	strain  bool      // the newest sample shows swap-in or direct scans, and is new

	seen   time.Time // of the last Decide
	actual float64   // at that time
	waits  time.Duration
	stuck  time.Time // when its balloon was last found not to follow
	moved  time.Time // when its target was last changed
}

// learn takes the guest's newest sample into account.
func (a *account) learn(r *Rules, now time.Time, g *Guest) {
	elapsed := now.Sub(a.seen)
	a.strain = false
	a.lacked *= fade(elapsed, r.DistressFades)
	if s := g.Sample; s != nil && s.At.After(a.sampled) {
		if a.sampled.IsZero() {
			*a = account{started: a.started, need: needOf(s), low: needOf(s), growth: r.LeastMargin * g.Max, cache: r.FirstCache * g.Max, seen: a.seen, actual: a.actual, stuck: a.stuck}
		}
		a.learnGrowth(r, g, s)
		a.learnCache(r, g, s)
		a.strain = s.SwapIn > .05 || s.Scans > 1
		if a.strain {
			a.lacked = min(r.MostDistress*g.Max, a.lacked+r.Distress*g.Max)
		}
		a.sampled = s.At
	}
	a.watchBalloon(r, now, g, elapsed)
	a.seen, a.actual = now, g.Actual
}

// needOf is what the guest's programs hold, in memory and in swap.
func needOf(s *Sample) float64 { return max(s.Actual-s.Available-.05*s.Cache, 0) + s.Swapped }

// learnGrowth compares the need with the lowest one of late. A guest that grows in bursts keeps a margin for the
// next burst.
func (a *account) learnGrowth(r *Rules, g *Guest, s *Sample) {
	a.need = needOf(s)
	a.low = min(a.need, a.low+(a.need-a.low)*(1-fade(s.Period, r.GrowthWindow)))
	a.growth = max(min(a.need-a.low, r.MostMargin*g.Max), a.growth*halved(s.Period, r.MarginHalf))
}

// learnCache raises the cache while the guest reads again what it has dropped, and lets it fall slowly otherwise. A
// guest that holds more cache than it is given shows nothing.
func (a *account) learnCache(r *Rules, g *Guest, s *Sample) {
	switch {
	case s.MajorFaults > r.Hungry && s.SwapIn < .05:
		a.cache, a.hungry = min(a.cache*r.CacheRise+4, r.MostCache*g.Max), s.At
	case s.Cache < 1.3*a.cache+leastMove:
		a.cache = max(r.LeastCache*g.Max, a.cache*(1-r.CacheFall*s.Period.Seconds()))
	}
}

// watchBalloon finds a guest that does not give memory back although it was asked to.
func (a *account) watchBalloon(r *Rules, now time.Time, g *Guest, elapsed time.Duration) {
	if g.Target < g.Actual-leastMove && g.Actual > a.actual-.5 {
		a.waits += elapsed
	} else {
		a.waits = 0
	}
	if a.waits >= r.StuckAfter {
		a.stuck = now
	}
}

// fade is what remains of a quantity after a while, if 1/e of it remains after the time constant.
func fade(after, constant time.Duration) float64 {
	return math.Exp(-after.Seconds() / constant.Seconds())
}

func halved(after, half time.Duration) float64 { return math.Exp2(-after.Seconds() / half.Seconds()) }
