package memsim

// Constants of the host's model: steps 7 and 8 of the format's description.
const (
	// swapReserve is the share of RAM that the host keeps free by swapping out.
	swapReserve = .015
	// coldChoice of the pages that the host swaps out are pages that the guest does not need: its LRU sees no more.
	coldChoice = .75
	// faultRate is how fast one guest faults pages back from host swap, in MiB/s.
	faultRate = 200
	// touchedLeast is the least memory that hot pages in swap are compared with, in MiB.
	touchedLeast = 64
	// maxSlowdown bounds a slowdown: a guest that is ten times slower, or dead, is of no use.
	maxSlowdown = 10
	// fullSeconds of missing memory with host swap full end in an OOM kill; guestSeconds in a guest.
	fullSeconds, guestSeconds = 5, 10
	// pressureWeight is the weight of this second in the pressure.
	pressureWeight = .6
)

// serve serves reads from host swap, merges pages, swaps out what does not fit, and stalls growth that found no room.
func (h *hostState) serve(guests []guest) {
	congestion := h.swapInHot(guests)
	resident, swapped, grown := 0.0, 0.0, 0.0
	for i := range guests {
		g := &guests[i]
		resident += g.resident()
		swapped += g.cold + g.hot
		grown += g.grown
	}
	capacity := h.ram - h.reserved + h.saved
	slots := max(0, h.swap-swapped)
	// Reads come first, but leave half of their time to writes.
	writes := h.swapRate - min(h.swapIn, h.swapRate)*.5
	h.swapOut = min(max(0, resident-(capacity-swapReserve*h.ram)), writes, slots)
	if h.swapOut > 0 {
		h.evict(guests)
	}
	missing := max(0, resident-h.swapOut-capacity)
	h.fullSeconds++
	if missing <= 0 || slots-h.swapOut >= 1 {
		h.fullSeconds = 0
	}
	for i := range guests {
		g := &guests[i]
		g.stall = 0
		if g.grown >= 1 {
			g.stall = min(maxSlowdown, missing/max(grown, 1))
		}
		g.hostWait = 0
		if g.hot > 0 || g.hostFaults > 0 {
			inUse := max(g.work+min(g.cache, g.useful), touchedLeast)
			g.hostWait = g.spec.Alpha*g.hot/inUse*congestion + g.hostFaults/faultRate*congestion
		}
	}
}

// swapInHot reads what guests touch from host swap. It gives the congestion: demand over the swap's speed, at least 1.
func (h *hostState) swapInHot(guests []guest) float64 {
	wanted := 0.0
	for i := range guests {
		wanted += touchShare*guests[i].hot + guests[i].hostFaults
	}
	served := min(1, h.swapRate/max(wanted, tiny))
	h.swapIn = wanted * served
	for i := range guests {
		guests[i].hot -= touchShare * guests[i].hot * served
	}
	return max(1, wanted/h.swapRate)
}

// merge moves KSM's saving towards its share of the mergeable memory.
func (h *hostState) merge(ksm *KSM, guests []guest) {
	if ksm == nil || ksm.Share == 0 {
		return
	}
	mergeable := 0.0
	for i := range guests {
		if guests[i].mergeable {
			mergeable += guests[i].anon
		}
	}
	h.saved += (ksm.Share*mergeable - h.saved) / ksm.Tau
}

// evict swaps out: three quarters from cold pages and the rest from the others, in proportion to what guests hold.
func (h *hostState) evict(guests []guest) {
	allCold, allHot := 0.0, 0.0
	for i := range guests {
		cold, hot := guests[i].evictable()
		allCold += cold
		allHot += hot
	}
	outCold := min(coldChoice*h.swapOut, allCold)
	outHot := min(h.swapOut-outCold, allHot)
	coldShare, hotShare := outCold/max(allCold, tiny), outHot/max(allHot, tiny)
	for i := range guests {
		g := &guests[i]
		cold, hot := g.evictable()
		g.cold += cold * coldShare
		g.hot += hot * hotShare
	}
}

// evictable is the guest's resident memory that it does not need, and the rest of it.
func (g *guest) evictable() (cold, hot float64) {
	cold = max(g.coldPool-g.cold, 0)
	return cold, max(g.resident()-cold, 0)
}

// slowDown finds each guest's slowdown, and the host's pressure.
func (w *World) slowDown() {
	waiting, running := 0.0, 0.0
	for i := range w.guests {
		g := &w.guests[i]
		switch {
		case g.running:
			running++
			waiting += g.hostWait + g.stall
			g.slowdown = min(maxSlowdown,
				g.spec.Alpha*g.missWork+g.hostWait+g.spec.Gamma*g.missCache+g.stall)
		case g.deadUntil > w.second && w.trace.running[w.second*len(w.guests)+i]:
			g.slowdown = maxSlowdown
		default:
			g.slowdown = 0
		}
	}
	w.host.pressure = smooth(w.host.pressure, min(1, waiting/max(running, 1)), 1/pressureWeight)
}

// kill ends guests that ran out of memory, and the largest one if the host did.
func (w *World) kill() {
	for i := range w.guests {
		g := &w.guests[i]
		starving := g.running && g.unmet > 1 && g.spec.Swap-g.swapped < 1 && !(g.spec.AutoDeflate && g.actual < g.spec.Max)
		g.oomSeconds++
		if !starving {
			g.oomSeconds = 0
		}
	}
	victim := -1
	if w.host.fullSeconds >= fullSeconds {
		w.host.fullSeconds = 0
		w.metrics.HostKills++
		largest := 0.0
		for i := range w.guests {
			if held := w.guests[i].resident(); victim < 0 || held > largest {
				victim, largest = i, held
			}
		}
	}
	for i := range w.guests {
		g := &w.guests[i]
		if g.oomSeconds >= guestSeconds {
			w.metrics.GuestKills++
		} else if i != victim {
			continue
		}
		g.oomSeconds = 0
		g.deadUntil = w.second + outage
		g.anon, g.swapped, g.cache, g.backed, g.cold, g.hot = 0, 0, 0, 0, 0, 0
	}
}

// measure finds how much of the host is used.
func (h *hostState) measure(guests []guest) {
	resident := 0.0
	for i := range guests {
		resident += guests[i].resident()
	}
	h.used = (resident + h.reserved - h.saved) / h.ram
}

// sum adds values up.
func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}
