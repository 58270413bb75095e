package memsim

import "math"

// Constants of the guest's model: steps 1 to 6 of the format's description.
const (
	// reportShare of its unused memory above reportSlack of its size is reported by a guest each second.
	reportShare, reportSlack = .1, .02
	// touchShare of memory in swap is touched each second.
	touchShare = .1
	// cacheSeconds is how long missing useful cache takes to be read again.
	cacheSeconds = 30
	// tiny keeps divisions by sizes that may be 0 finite, in MiB.
	tiny = 1e-9
)

// live is one second of a running guest, before the host gives it memory.
func (g *guest) live(reporting bool) {
	pool := max(g.unneeded(), tiny)
	g.moveBalloon()
	if reporting && g.spec.Reporting {
		g.backed -= reportShare * max(g.backed-g.anon-g.cache-reportSlack*g.spec.Max, 0)
	}
	if g.cold > 0 { // pages that left the guest leave host swap, too, without any reading
		g.cold *= min(1, max(g.unneeded(), 0)/pool)
	}
	g.meetDemand()
	g.readSwap()
	g.fillCache()
	g.back()
}

// moveBalloon moves the balloon to its target, as fast as it can: it takes free memory first, then cache, then
// anonymous memory that the guest has to swap out.
func (g *guest) moveBalloon() {
	g.moved = 0
	if g.spec.Coop != cooperates {
		return
	}
	want := min(max(g.target, 0), g.spec.Max) - g.actual
	if want >= 0 {
		g.moved = min(want, g.spec.Deflate)
		g.actual += g.moved
		return
	}
	take := min(-want, g.spec.Inflate)
	free := min(take, g.free())
	cache := min(take-free, g.cache)
	anon := min(take-free-cache, g.spec.SwapRate, max(g.spec.Swap-g.swapped, 0), g.anon)
	backedShare := min(1, max(g.backed-g.anon-g.cache, 0)/max(g.actual-g.anon-g.cache, tiny))
	g.backed = g.backed - free*backedShare - cache - anon
	before := g.actual
	g.actual = g.actual - free - cache - anon
	g.moved = before - g.actual
	g.cache -= cache
	g.anon -= anon
	g.swapped += anon
}

// meetDemand grows or shrinks anonymous memory to the working set.
func (g *guest) meetDemand() {
	need := g.work - g.anon - g.swapped
	grow := max(need, 0)
	free := min(grow, g.free())
	g.dropped = min(grow-free, g.cache)
	g.cache -= g.dropped
	g.pushed = max(min(grow-free-g.dropped, g.spec.SwapRate, max(g.spec.Swap-g.swapped, 0)), 0)
	g.unmet = grow - free - g.dropped - g.pushed
	g.anon = g.anon + free + g.dropped
	g.swapped += g.pushed
	if g.spec.AutoDeflate {
		if given := min(g.unmet, g.spec.Deflate, g.spec.Max-g.actual); given > 0 {
			g.actual += given
			g.target = max(g.target, g.actual)
		}
	}
	if need < 0 {
		kept := 1 + need/max(g.anon+g.swapped, tiny)
		g.anon *= kept
		g.swapped *= kept
	}
}

// readSwap reads memory back from guest swap into free memory and cache that is not useful.
func (g *guest) readSwap() {
	g.missWork, g.readBack, g.thrashed = 0, 0, 0
	if g.swapped+g.unmet <= 0 {
		return
	}
	g.missWork = power(min(1, (g.swapped+g.unmet)/max(g.work, 1)), g.spec.Beta)
	room := g.free()
	g.readBack = min(touchShare*g.swapped, g.spec.SwapRate, room+max(g.cache-g.useful, 0))
	g.swapped -= g.readBack
	g.anon += g.readBack
	g.cache -= max(g.readBack-room, 0)
	if g.swapped > .5 {
		g.thrashed = min(touchShare*g.work*g.missWork, g.spec.SwapRate)
	}
}

// fillCache reads files into free memory: useful ones fast, others by the guest's habit. Cache never shrinks unless
// something pushes it out.
func (g *guest) fillCache() {
	rate := g.spec.Fill
	if g.cache < g.useful {
		rate = max(rate, min(g.useful-g.cache, g.useful/cacheSeconds))
	}
	g.cache += min(g.free(), rate)
	g.missCache = 0
	if g.useful > 1 && g.cache < g.useful {
		g.missCache = power(1-g.cache/g.useful, g.spec.Delta)
	}
}

// back asks the host for the pages that are used for the first time, and for cold ones in host swap that are used
// again: by growth, or because cache reuses them.
func (g *guest) back() {
	grown := max(g.backed, g.anon+g.cache)
	g.grown = grown - g.backed
	g.backed = grown
	g.coldPool = max(g.unneeded(), 0)
	g.hostFaults = 0
	if g.cold <= 0 {
		return
	}
	g.hostFaults = max(g.cold-g.coldPool, 0)
	g.cold -= g.hostFaults
	reused := min(min(g.spec.Fill, g.cache)*min(1, g.cold/max(g.coldPool, 1)), g.cold)
	g.cold -= reused
	g.hostFaults += reused
}

// negligible is a number so small that no result shows it. Smaller ones count as 0: most guests miss nothing in most
// seconds, and processors are slow with the tiny numbers that a fading value ends in.
const negligible = 1e-12

// power is base^exponent.
func power(base, exponent float64) float64 {
	if base < negligible {
		return 0
	}
	return math.Pow(base, exponent)
}

// smooth moves a smoothed value towards a new one.
func smooth(old, value, seconds float64) float64 {
	smoothed := old + (value-old)/seconds
	if smoothed < negligible {
		return 0
	}
	return smoothed
}

// Weights of a guest's statistics. A major fault reads 4 KiB, so a MiB takes 256; a quarter of the pages fault
// alone, as readahead brings the others. Useful cache is read at 2 % a second, 32 faults for each MiB.
const (
	faultsPerMiB      = 256 * .25
	cacheFaultsPerMiB = .02 * 32
	faultSeconds      = 3 // smoothing
	swapInSeconds     = 2
	scanSeconds       = 2
	droppedScans      = .3  // scans for each MiB of cache that growth drops
	cacheAvailable    = .95 // share of cache that the kernel calls available
)

// sample takes the guest's statistics of this second.
func (g *guest) sample() sample {
	if g.running {
		swapIn := g.thrashed + g.readBack
		faults := faultsPerMiB*swapIn + cacheFaultsPerMiB*g.useful*g.missCache
		g.majorFaults = smooth(g.majorFaults, faults, faultSeconds)
		g.swapIns = smooth(g.swapIns, swapIn, swapInSeconds)
		g.scans = smooth(g.scans, g.pushed+g.unmet+droppedScans*g.dropped, scanSeconds)
	}
	free := max(g.actual-g.anon-g.cache, 0)
	return sample{
		Actual: g.actual, Available: max(free-g.watermark, 0) + cacheAvailable*g.cache, Free: free, Cache: g.cache,
		GuestSwap: g.swapped, MajorFaults: g.majorFaults, SwapIn: g.swapIns, Scans: g.scans,
	}
}
