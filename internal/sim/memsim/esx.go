package memsim

import (
	"math"
	"math/rand/v2"
)

// esx is VMware ESX's allocation (C. Waldspurger, Memory Resource Management in VMware ESX Server, OSDI 2002; vSphere
// Resource Management, "Mem.MinFreePct"), without its own swapping and page sharing: sampled activity, shares with a
// tax of 75 % on idle memory, and no balloon above 65 % of a guest. The noise of sampling is drawn from a source of our
// own, so single runs differ from the reference's and means do not.
type esx struct {
	w       *World
	noise   func() float64 // normal, with deviation 1
	guests  []esxGuest
	minFree float64
	price   pricing
}

// esxGuest has the moving averages of a guest's activity, as shares of its memory; active is the largest of them.
type esxGuest struct{ fast, slow, active float64 }

// Constants of the paper, and of vSphere's documentation for the memory that is kept free.
const (
	esxTax          = .75
	esxSampleTick   = 30  // s
	esxSamplePages  = 100 // in each period
	esxTick         = 15  // s
	esxFastWeight   = .7  // of a new sample in the fast moving average
	esxSlowWeight   = .2
	esxYoung        = 60 // s after a boot, while all memory counts as active
	esxBalloonMost  = .65
	esxMinFree      = 899   // MiB, and
	esxMinFreeShare = .01   // of memory
	esxMinFreeAbove = 28672 // above so many MiB
	esxSoft         = 1.5   // times the minimum free: guests do not shrink above this
	esxHigh         = 3     // times the minimum free: guests get everything above this
	esxCacheTouched = .3    // share of cache that a sample finds active
	esxSeed         = 7
)

func (e *esx) Begin(w *World) {
	e.w = w
	if e.noise == nil {
		e.noise = rand.New(rand.NewPCG(esxSeed, esxSeed)).NormFloat64
	}
	e.guests = make([]esxGuest, len(w.guests))
	e.minFree = (esxMinFree + esxMinFreeShare*max(0, w.trace.Host.RAM-esxMinFreeAbove)) / w.factor
	e.price.begin(len(w.guests), esxTax)
}

func (e *esx) Step(second int) {
	if second%esxSampleTick == esxSampleTick-1 {
		e.sample()
	}
	if second%esxTick != 0 {
		return
	}
	inert := 0.0
	for i := range e.guests {
		g, v := &e.w.guests[i], &e.w.views[i]
		active := e.guests[i].active * g.actual
		if g.running && second-g.booted < esxYoung {
			active = max(active, g.anon)
		}
		manages := g.running && g.spec.Coop != driverless
		if g.running && !manages {
			inert += g.resident()
		}
		e.price.claims[i] = claim{
			shares: v.Shares * v.Max * shareUnit, need: active,
			floor: max(v.Floor, (1-esxBalloonMost)*v.Max), most: v.Max, takesPart: manages,
		}
	}
	host := e.w.Host()
	price := e.price.spend(host.RAM - host.Reserved - inert - e.minFree)
	free := (1 - host.Used) * host.RAM
	for i := range e.guests {
		if !e.price.claims[i].takesPart {
			continue
		}
		target := e.price.get(i, price)
		switch {
		case free > esxHigh*e.minFree:
			target = e.w.views[i].Max
		case free > esxSoft*e.minFree:
			target = max(e.w.Target(i), target)
		}
		e.w.SetTarget(i, target)
	}
}

// sample looks at random pages of each guest, and finds how many are active. The noise is that of a binomial
// distribution, drawn from a normal one.
func (e *esx) sample() {
	for i := range e.guests {
		g, s := &e.w.guests[i], &e.guests[i]
		active := clampShare((g.spec.Touch*g.anon + esxCacheTouched*min(g.cache, g.useful)) / max(g.actual, 1))
		active = clampShare(active + e.noise()*math.Sqrt(active*(1-active)/esxSamplePages))
		s.fast += (active - s.fast) * esxFastWeight
		s.slow += (active - s.slow) * esxSlowWeight
		s.active = max(s.fast, s.slow, active)
	}
}

// clampShare clips to [0, 1].
func clampShare(x float64) float64 { return min(max(x, 0), 1) }
