package arbiter

import (
	"math"
	"time"
)

// account holds the learned values of one run of a guest. Sizes are in MiB.
type account struct {
	started time.Time
	sampled time.Time // the newest sample that it knows
	need    float64   // of that sample, and of it in the guest's own swap, by its word alone:
	swapped float64
	low     float64 // the lowest need of late
	margin  float64 // the largest rise of the need of late
	cache   float64 // that the guest is worth giving
	strain  bool    // the sample is new, and shows swap-in or direct scans
	lies    bool    // it has claimed more than it ever held
	held    peak    // host memory and swap of the guest

	seen   time.Time // of the last Decide
	actual float64   // at that time
	waits  time.Duration
	stuck  time.Time // when its balloon was last found not to follow
}

// learn takes the guest's newest sample into account.
func (a *account) learn(r *Rules, now time.Time, g *Guest) {
	a.held.add(now, g.Resident+g.Swapped)
	a.watchBalloon(r, now, g)
	a.strain = false
	if s := g.Sample; s != nil && s.At.After(a.sampled) {
		a.learnNeed(r, g, s)
		a.learnCache(r, g, s)
		a.strain = !a.lies && (s.SwapIn > strainSwapIn || s.Scans > strainScans)
		a.sampled = s.At
	}
}

// Swap-in, in MiB/s, and direct scans a second, above which a guest lacks memory now.
const strainSwapIn, strainScans = .05, 1

// learnNeed takes the need from a sample, and the margin from its rise over the lowest need of late. A guest that
// grows in bursts keeps room for the next one. The host's own count bounds the need: a guest cannot use
// more than the host ever held for it. The size of the guest's own swap cannot be checked.
func (a *account) learnNeed(r *Rules, g *Guest, s *Sample) {
	said, most := math.Max(s.Actual-s.Available-.05*s.Cache, 0), a.held.most()+16+.01*g.Max
	a.lies = a.lies || said > most+r.Lie*g.Max
	a.swapped = s.Swapped
	if a.lies {
		a.swapped = 0
	}
	a.need = math.Min(said, most) + a.swapped
	if a.sampled.IsZero() {
		a.low, a.margin, a.cache = a.need, r.LeastMargin*g.Max, r.FirstCache*g.Max
	}
	since := s.Period
	if !a.sampled.IsZero() {
		since = s.At.Sub(a.sampled)
	}
	a.low = math.Min(a.need, a.low+(a.need-a.low)*(1-math.Exp(-since.Seconds()/r.GrowthWindow.Seconds())))
	a.margin = math.Max(math.Min(a.need-a.low, r.MostMargin*g.Max), a.margin*math.Exp2(-since.Seconds()/r.MarginHalf.Seconds()))
}

// learnCache raises the cache while the guest reads dropped pages again. Otherwise the cache falls slowly. The faults of
// a guest that holds much more cache than that show nothing.
func (a *account) learnCache(r *Rules, g *Guest, s *Sample) {
	switch {
	case s.MajorFaults > r.Refaults*s.Cache && s.SwapIn < strainSwapIn:
		a.cache = math.Min(a.cache*r.CacheRise+leastCache, r.MostCache*g.Max)
	case s.Cache < 1.3*a.cache+leastMove && !a.sampled.IsZero():
		a.cache = math.Max(r.LeastCache*g.Max, a.cache*(1-r.CacheFall*s.At.Sub(a.sampled).Seconds()))
	}
}

// watchBalloon finds a guest that does not give memory back although it was asked to.
func (a *account) watchBalloon(r *Rules, now time.Time, g *Guest) {
	if g.Target < g.Actual-leastMove && g.Actual > a.actual-.5 {
		a.waits += now.Sub(a.seen)
	} else {
		a.waits = 0
	}
	if a.waits >= r.StuckAfter {
		a.stuck = now
	}
	a.seen, a.actual = now, g.Actual
}

// peakWindow is longer than any sample in use is old.
const peakWindow = 30 * time.Second

// peak keeps the largest value of the last one to two windows.
type peak struct {
	turned       time.Time
	before, last float64
}

func (p *peak) add(now time.Time, value float64) {
	if now.Sub(p.turned) >= peakWindow {
		p.turned, p.before, p.last = now, p.last, value
	}
	p.last = math.Max(p.last, value)
}

func (p *peak) most() float64 { return math.Max(p.before, p.last) }
