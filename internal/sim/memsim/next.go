package memsim

import "math"

// next is the design that the reference found best. Its rules come from the reference simulator of issue 27 (policy
// "next"), not from a published system:
//
//   - strict commitment: targets together stay below a share of RAM, and a guest grows only into memory that is there;
//   - each guest gets its need, a margin that is learned from how fast the need grew, and a learned worth of its cache;
//   - shares count only when the needs alone do not fit;
//   - a dead band holds what fits.
type next struct {
	nextParameters
	w      *World
	guests []nextGuest
	price  pricing
}

// nextParameters are the parameters, with the keys and the defaults of the reference.
type nextParameters struct {
	Util     float64 `json:"util"` // share of RAM that targets may hold together
	MinGrow  float64 `json:"m0"`   // least margin, as a share of a guest's size
	HalfLife float64 `json:"half"` // of a learned margin, in seconds
	Horizon  float64 `json:"H"`    // growth is measured over so many seconds
	Cache    float64 `json:"c0"`   // worth of cache at boot, as a share of a guest's size
	CacheUp  float64 `json:"cup"`  // factor when the guest misses cache
	CacheDn  float64 `json:"cdn"`  // share lost each second otherwise
	CacheMin float64 `json:"cmin"` // least worth, as a share of a guest's size
	MaxGrow  float64 `json:"mcap"` // largest margin, as a share of a guest's size
	Dead     float64 `json:"dead"` // dead band, as a share of a guest's size
	Lazy     bool    `json:"lazy"` // hold what fits, for fewer reversals
	Raise    float64 `json:"upd"`  // with free memory a guest is raised by no less than this share of its size
	Growth   bool    `json:"growth"`
	Learn    bool    `json:"cache"` // learn the worth of cache
	Report   bool    `json:"fpr"`
	Feedback bool    `json:"fb"`    // guests in distress get more margin
	Tick     int     `json:"tick"`  // period of the loop, in seconds
	Faults   float64 `json:"fth"`   // major faults a second that show missing cache
	Probe    float64 `json:"probe"` // seconds without a miss before the worth of cache falls; 0: at once
	Events   bool    `json:"ev"`    // distress runs the loop at once
}

func defaultNext() nextParameters {
	return nextParameters{
		Util: .95, MinGrow: .03, HalfLife: 900, Horizon: 12, Cache: .10, CacheUp: 1.06, CacheDn: .0010, CacheMin: .02,
		MaxGrow: .25, Dead: .01, Lazy: true, Raise: .05, Growth: true, Learn: true, Report: true, Feedback: true,
		Tick: 1, Faults: 8, Probe: 120, Events: true,
	}
}

// tunedNext are the values that were tuned on the traces of half "dev".
func tunedNext() nextParameters {
	p := defaultNext()
	p.Util, p.HalfLife, p.MinGrow, p.Probe, p.Dead, p.Raise = .975, 300, .02, 0, .02, .08
	return p
}

// Constants of next that the reference does not vary.
const (
	distressSwapIn  = .05 // MiB/s
	distressScans   = 1   // MiB/s
	boostSeconds    = 600 // a boost fades with this time constant
	boostStep       = .02 // of a guest's size, at each sample of distress
	boostMost       = .15
	cacheStep       = 4   // MiB, at each sample of missing cache
	cacheMost       = .6  // of a guest's size
	cacheTight      = 1.3 // cache within this factor of its worth, and
	cacheTightMiB   = 32  // this much more, is all that the guest could use
	stuckMiB        = 32  // a balloon so far above its target that does not move
	stuckMoves      = .5  // by so many MiB
	stuckSeconds    = 20  // for so long is taken for one that does not co-operate,
	stuckFor        = 300 // and left alone for so many seconds
	needSlack       = 1.005
	needSlackMiB    = 8
	cacheFirst      = .6  // of the caches is paid before margins above marginLeast
	marginLeast     = .25 // of the margins is paid before any cache
	scarcityTax     = .999
	quietSeconds    = 60  // between raises that nothing urges
	eagerSeconds    = 30  // between changes without Lazy
	inertKnown      = .01 // growth to expect of an inert guest with statistics, or without a driver
	inertUnknown    = .10 // growth to expect of another one; both are shares of its size
	poolSlack       = .025
	poolMost        = .985
	ksmTrust        = .5 // share of KSM's saving that is counted on
	grantedInUse    = .5 // share of granted memory that is expected to be used soon
	farPast         = -9e9
	probeMost       = 3600 // seconds
	overCommitted   = 1.005
	underCommitted  = .98
	unstickStep     = .02  // of its size, for a guest in distress that does not co-operate
	deadLeast       = 32   // MiB
	firstNeed       = 1e18 // MiB: there is no need yet, so the first one is the lowest
	marginWithoutIt = .1   // of the need: the margin without Growth
)

// nextGuest is what next knows of a guest. MiB and seconds.
type nextGuest struct {
	// Of the guest's lines: constants of the run.
	needDecay, marginDecay float64

	need       float64 // at the last sample; negative: none yet
	low        float64 // least need of the last seconds, rising slowly
	margin     float64 // learned growth
	cacheWorth float64
	boost      float64 // margin that distress added
	lastSample int
	wasValid   bool
	hungryAt   float64 // last miss of cache
	backOff    float64 // wait after it
	lastActual float64
	stuckFor   float64
	stuckAt    float64
	movedAt    float64

	// Of this step:
	fresh, distress, managed    bool
	wantNeed, wantMargin        float64
	wantCache, base, goal, held float64
}

func (n *next) Parameters() any { return &n.nextParameters }

func (n *next) Begin(w *World) {
	n.w = w
	n.Tick = max(1, n.Tick)
	if !n.Report {
		w.DisableReporting()
	}
	n.guests = make([]nextGuest, len(w.Guests()))
	n.price.begin(len(n.guests), scarcityTax)
	for i, v := range w.Guests() {
		period := float64(v.Period)
		n.guests[i] = nextGuest{
			needDecay: 1 - math.Exp(-period/n.Horizon), marginDecay: math.Exp(-period * .693 / n.HalfLife),
			need: -1, low: firstNeed, cacheWorth: n.Cache * v.Max, lastSample: -1, lastActual: v.Balloon,
			stuckAt: farPast, movedAt: -999, hungryAt: -999, backOff: n.Probe,
		}
	}
}

func (n *next) Step(second int) {
	distress := n.learn(second)
	event := distress && n.Events
	if second%n.Tick != 0 && !event {
		return
	}
	budget := n.sortOut(second)
	left := n.divide(budget)
	n.addSurplus(left)
	n.hold(second, budget)
	n.set(second)
}

// learn takes new samples. It reports whether a guest is in distress.
func (n *next) learn(second int) bool {
	anyFresh, anyNeed, anyDistress := false, false, false
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		isNew := v.Valid && !g.wasValid
		g.wasValid = v.Valid
		g.fresh = v.Valid && v.SampledAt > g.lastSample
		if g.fresh {
			g.lastSample = v.SampledAt
		}
		g.boost *= 1 - 1.0/boostSeconds
		if isNew {
			g.cacheWorth, g.margin, g.boost = n.Cache*v.Max, n.MinGrow*v.Max, 0
			g.low = firstNeed
		}
		g.distress = g.fresh && (v.SwapIn > distressSwapIn || v.Scans > distressScans)
		anyFresh = anyFresh || g.fresh
		anyNeed = anyNeed || g.need >= 0
		anyDistress = anyDistress || g.distress
	}
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		if anyFresh {
			n.learnNeed(g, v, anyNeed)
			if n.Learn && g.fresh {
				n.learnCache(g, v, float64(second))
			}
		}
		if n.Feedback && g.distress {
			g.boost = min(boostMost*v.Max, g.boost+boostStep*v.Max)
		}
	}
	return anyDistress
}

// learnNeed learns what the guest's programs need, and how fast that grows. The lowest need rises whenever any guest
// has a new sample, as in the reference: the growth is then measured over less than the horizon on hosts with many
// guests.
func (n *next) learnNeed(g *nextGuest, v *GuestView, anyNeed bool) {
	need := max(v.Actual-v.Available-(1-cacheAvailable)*v.Cache, 0) + v.GuestSwap
	if anyNeed && g.low < firstNeed {
		g.low = min(need, g.low+(need-g.low)*g.needDecay)
	} else {
		g.low = need
	}
	if g.fresh {
		rise := max(0, need-g.low)
		g.margin = max(min(rise, n.MaxGrow*v.Max), g.margin*g.marginDecay)
		g.need = need
	}
}

// learnCache raises the worth of the guest's cache when it reads files again that it had dropped, and lowers it
// slowly while the guest uses no more than that.
func (n *next) learnCache(g *nextGuest, v *GuestView, second float64) {
	if v.MajorFaults > n.Faults && v.SwapIn < distressSwapIn {
		if second-g.hungryAt > g.backOff && n.Probe > 0 {
			g.backOff = min(probeMost, g.backOff*2)
		}
		g.hungryAt = second
		g.cacheWorth = min(g.cacheWorth*n.CacheUp+cacheStep, cacheMost*v.Max)
		return
	}
	tight := v.Cache < cacheTight*g.cacheWorth+cacheTightMiB
	if tight && second-g.hungryAt > g.backOff {
		g.cacheWorth = max(n.CacheMin*v.Max, g.cacheWorth*(1-n.CacheDn*float64(v.Period)))
	}
}

// sortOut tells managed guests from those that do not co-operate or have no statistics yet, and what each managed one
// wants. It gives the budget: memory for the managed guests' targets, in MiB.
func (n *next) sortOut(second int) float64 {
	inert := 0.0
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		if n.w.Target(i) < v.Balloon-stuckMiB && v.Balloon > g.lastActual-stuckMoves {
			g.stuckFor += float64(n.Tick)
		} else {
			g.stuckFor = 0
		}
		g.lastActual = v.Balloon
		if g.stuckFor >= stuckSeconds {
			g.stuckAt = float64(second)
		}
		g.managed = v.Valid && !n.uncooperative(g, second) && g.need >= 0
		g.wantNeed, g.wantMargin, g.wantCache = 0, 0, 0
		if !g.managed {
			if v.Running {
				inert += n.inert(i, v)
			}
			continue
		}
		g.wantNeed = min(max(g.need*needSlack+needSlackMiB, v.Floor), v.Max)
		margin := g.margin
		if !n.Growth {
			margin = marginWithoutIt * g.need
		}
		g.wantMargin = min(max(n.MinGrow*v.Max, margin)+g.boost, v.Max-g.wantNeed)
		g.wantCache = max(min(g.cacheWorth, v.Max-g.wantNeed-g.wantMargin), 0)
	}
	host := n.w.Host()
	return n.Util*host.RAM - host.Reserved - inert + ksmTrust*host.KSMSaving
}

func (n *next) uncooperative(g *nextGuest, second int) bool {
	return float64(second)-g.stuckAt < stuckFor
}

// inert is the memory that a guest which is not managed may soon hold.
func (n *next) inert(i int, v *GuestView) float64 {
	growth := inertUnknown
	if v.Valid || n.w.guests[i].spec.Coop == driverless {
		growth = inertKnown
	}
	return min(v.Max, v.Resident+growth*v.Max)
}

// divide gives each managed guest its base: need first, then a common share of margins, then one of caches. It gives
// the rest of the budget, in MiB.
func (n *next) divide(budget float64) float64 {
	needs, margins, caches := 0.0, 0.0, 0.0
	for i := range n.guests {
		g := &n.guests[i]
		needs += g.wantNeed
		margins += g.wantMargin
		caches += g.wantCache
	}
	left := budget - needs
	if left < 0 {
		n.divideByShares(budget)
		return 0
	}
	marginShare := min(max((left-cacheFirst*caches)/max(margins, tiny), marginLeast), 1)
	forCache := left - marginShare*margins
	cacheShare := min(max(forCache/max(caches, tiny), 0), 1)
	if forCache < 0 {
		marginShare = min(max(left/max(margins, tiny), 0), 1)
	}
	for i := range n.guests {
		g := &n.guests[i]
		g.base = g.wantNeed + marginShare*g.wantMargin + cacheShare*g.wantCache
	}
	return max(0, forCache-cacheShare*caches)
}

// divideByShares is for scarcity: the needs do not fit.
func (n *next) divideByShares(budget float64) {
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		n.price.claims[i] = claim{
			shares: v.Shares * v.Max * shareUnit, need: max(g.wantNeed, 1), floor: v.Floor, most: v.Max, takesPart: g.managed,
		}
	}
	price := n.price.spend(max(budget, 1))
	for i := range n.guests {
		n.guests[i].base = n.price.get(i, price)
	}
}

// addSurplus shares the rest of the budget, in proportion to the memory that each guest lacks.
func (n *next) addSurplus(left float64) {
	lacking := 0.0
	for i := range n.guests {
		if g := &n.guests[i]; g.managed {
			lacking += n.w.Guests()[i].Max - g.base
		}
	}
	share := min(1, left/max(lacking, tiny))
	for i := range n.guests {
		if g := &n.guests[i]; g.managed {
			g.goal = g.base + (n.w.Guests()[i].Max-g.base)*share
		}
	}
}

// hold keeps targets that are good enough: inside the dead band, or where nothing urges a change.
func (n *next) hold(second int, budget float64) {
	total := 0.0
	for i := range n.guests {
		g := &n.guests[i]
		g.held = 0
		if g.managed {
			g.held = min(n.w.Target(i), n.w.Guests()[i].Max)
		}
		total += g.held
	}
	over, under := total > budget*overCommitted, total < budget*underCommitted
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		if !g.managed {
			continue
		}
		dead := max(n.Dead*v.Max, deadLeast)
		urged := v.Balloon < g.base || g.distress
		since := float64(second) - g.movedAt
		var lower, raise bool
		if n.Lazy {
			lower = over
			raise = urged || under && g.goal > g.held+n.Raise*v.Max && since > quietSeconds
		} else {
			lower = over || since > eagerSeconds
			raise = urged || since > eagerSeconds
		}
		if !(g.goal < g.held-dead && lower || g.goal > g.held+dead && raise) {
			g.goal = g.held
		}
		if math.Abs(g.goal-n.w.Target(i)) > 1 {
			g.movedAt = float64(second)
		}
	}
}

// set sets the targets. Guests grow only into memory that is there: resident memory, and half of the granted memory that
// is not used yet, stay below the pool.
func (n *next) set(second int) {
	host := n.w.Host()
	growth, inUse := 0.0, 0.0
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		switch {
		case g.managed:
			growth += max(g.goal-v.Balloon, 0)
			inUse += min(v.Balloon, v.Resident+grantedInUse*(v.Balloon-v.Resident))
		case v.Running:
			inUse += v.Resident
		}
	}
	pool := max(0, min(poolMost, n.Util+poolSlack)*host.RAM-host.Reserved+host.KSMSaving-inUse)
	share := min(1, pool/max(growth, tiny))
	for i := range n.guests {
		g, v := &n.guests[i], &n.w.Guests()[i]
		switch {
		case g.managed:
			goal := g.goal
			if goal > v.Balloon {
				goal = v.Balloon + (goal-v.Balloon)*share
			}
			n.w.SetTarget(i, min(max(goal, v.Floor), v.Max))
		case v.Valid && n.uncooperative(g, second):
			// The target follows what the guest has: a guest that cannot shrink further starves otherwise.
			target := max(n.w.Target(i), v.Balloon)
			if g.distress {
				target = max(target, v.Balloon+unstickStep*v.Max)
			}
			n.w.SetTarget(i, target)
		}
	}
}
