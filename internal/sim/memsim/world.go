package memsim

// World is the host and its guests at one second of one run. A policy reads it through Guests, HostView and Target, and
// changes it through SetTarget and DisableReporting. One goroutine owns it.
type World struct {
	trace  *Trace
	factor float64
	second int
	host   hostState
	guests []guest
	views  []GuestView
	// samples is a ring by second, with one sample for each guest.
	samples [ringSize][]sample
	// reporting is whether the host gets back the pages that guests report as free.
	reporting bool
	metrics   metrics
}

// hostState is the host, with RAM and swap divided by the load factor. MiB and MiB/s.
type hostState struct {
	ram, reserved, swap, swapRate float64
	saved                         float64 // by KSM
	used                          float64 // share of RAM
	swapIn, swapOut               float64 // in this second
	pressure                      float64 // as PSI: share of time that guests wait for memory, smoothed
	fullSeconds                   int     // for so long host swap is full and memory is missing
}

// guest is one guest's state. MiB and MiB/s.
type guest struct {
	spec      *Guest
	watermark float64
	mergeable bool

	actual, target float64 // balloon's size and its target
	anon           float64 // resident anonymous memory
	swapped        float64 // anonymous memory in the guest's own swap
	cache          float64 // page cache
	backed         float64 // memory that the host ever backed; of it in host swap:
	cold, hot      float64 // pages that the guest does not need, and pages that it does
	coldPool       float64 // backed pages that the guest does not need

	running, ran bool // in this second, in the last one
	booted       int  // second of the last boot
	deadUntil    int  // second when a killed guest boots again
	oomSeconds   int  // for so long demand is unmet with guest swap full

	// Of this second:
	work, useful float64 // demand: working set and useful cache
	pushed       float64 // demand met by swapping older memory out
	dropped      float64 // demand met by dropping cache
	unmet        float64 // demand that was not met
	moved        float64 // by the balloon, in either direction
	missWork     float64 // how often work misses memory, after the curve
	missCache    float64 // the same for page cache
	readBack     float64 // read from guest swap, for good
	thrashed     float64 // read from guest swap, and pushed out again
	grown        float64 // newly backed by the host
	hostFaults   float64 // cold pages that were needed after all
	stall        float64 // slowdown by waiting for the host to find memory
	hostWait     float64 // slowdown by host swap
	slowdown     float64

	majorFaults, swapIns, scans float64 // statistics, smoothed
}

// ringSize is how many seconds of samples are kept.
const ringSize = 64

// outage is how long a killed guest is down, in seconds.
const outage = 60

// newWorld makes the world before second 0. amend may change a copy of a guest's line, or is nil.
func newWorld(tr *Trace, factor float64, amend func(*Guest)) *World {
	h := &tr.Host
	w := &World{
		trace: tr, factor: factor, reporting: true,
		host: hostState{
			ram: h.RAM / factor, reserved: h.Reserved / factor, swap: h.Swap / factor, swapRate: h.SwapRate / factor,
		},
		guests: make([]guest, len(tr.Guests)), views: make([]GuestView, len(tr.Guests)),
	}
	specs := append([]Guest(nil), tr.Guests...)
	for i := range w.guests {
		g, spec := &w.guests[i], &specs[i]
		*g = guest{spec: spec, watermark: spec.watermark(), mergeable: h.KSM != nil && spec.Label == "a", booted: spec.StartsAt}
		if amend != nil {
			amend(spec)
		}
		g.actual, g.target = spec.Current, spec.Current
		w.views[i] = GuestView{Max: spec.Max, Floor: spec.Floor, Shares: spec.Shares, Period: spec.StatPeriod}
	}
	for k := range w.samples {
		w.samples[k] = make([]sample, len(w.guests))
	}
	w.metrics = newMetrics(w)
	return w
}

// step lets one second pass: starts and ends, the policy, balloons, demand, the host, and kills, in this order.
func (w *World) step(p Policy) {
	for i := range w.guests {
		w.startOrEnd(i)
	}
	w.observe()
	p.Step(w.second)
	for i := range w.guests {
		if g := &w.guests[i]; g.running {
			g.live(w.reporting)
		}
	}
	w.host.merge(w.trace.Host.KSM, w.guests)
	w.host.serve(w.guests)
	w.slowDown()
	w.kill()
	w.host.measure(w.guests)
	samples := w.samples[w.second%ringSize]
	for i := range w.guests {
		samples[i] = w.guests[i].sample()
	}
	w.metrics.take(w)
	w.second++
}

// startOrEnd takes this second's demand, and resets a guest that starts, ends or was killed.
func (w *World) startOrEnd(i int) {
	g := &w.guests[i]
	at := w.second*len(w.guests) + i
	g.running = w.trace.running[at] && g.deadUntil <= w.second
	g.work, g.useful = 0, 0
	if g.running {
		g.work, g.useful = w.trace.work[at], w.trace.useful[at]
	}
	if g.running != g.ran {
		g.reset()
		g.target, g.actual = g.spec.Current, g.spec.Current
		g.majorFaults, g.swapIns, g.scans = 0, 0, 0
		w.metrics.restartLegs(i, g.actual)
		if g.running {
			g.booted = w.second
		}
	}
	g.ran = g.running
}

// reset empties a guest that is off.
func (g *guest) reset() {
	g.anon, g.swapped, g.cache, g.backed, g.cold, g.hot = 0, 0, 0, 0, 0, 0
	g.pushed, g.dropped, g.unmet, g.moved, g.missWork, g.missCache = 0, 0, 0, 0, 0, 0
	g.readBack, g.thrashed, g.grown, g.hostFaults, g.coldPool, g.stall, g.hostWait = 0, 0, 0, 0, 0, 0, 0
}

// resident is the memory of the host that a guest holds. As in the reference, a guest that gives memory up keeps its
// hot pages in host swap, so the result may fall below 0; on the twelve traces of half "dev" it never does.
func (g *guest) resident() float64 { return g.backed - g.cold - g.hot }

// free is the guest's free memory above the watermark.
func (g *guest) free() float64 { return max(g.actual-g.watermark-g.anon-g.cache, 0) }

// unneeded is the backed memory that the guest does not need, in use or not.
func (g *guest) unneeded() float64 { return g.backed - g.anon - min(g.cache, g.useful) }
