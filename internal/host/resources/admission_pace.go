package resources

import (
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// The pace: how many launches run at once.
const (
	// firstPerCPU slots for each processor keep it busy while some launches sleep. Crowding alone never takes
	// these away: an idle processor costs more than threads that wait for one.
	firstPerCPU = 2
	// maxLaunches bounds the limit.
	maxLaunches = 256

	// idleStall is a share of time in which some thread waits for a processor; below it, processor time is
	// left. idle and crowded are numbers of runnable threads for each processor: below idle it has time left,
	// above crowded it is overloaded.
	idleStall     = 0.6
	idleQueue     = 1.0
	crowdedQueue  = 3.0
	crowdedShrink = 8 // the limit shrinks by 1/crowdedShrink when the processors are crowded

	// Memory is short if some threads wait for it for the share memorySome of the time, or all of them for the
	// share memoryFull.
	memorySome = 0.20
	memoryFull = 0.05

	// windowTime and windowStarts are the minimum span of one measurement of throughput.
	windowTime   = 100 * time.Millisecond
	windowStarts = 4
	// gain is the share of added slots that must show as added throughput.
	gain = 0.25
	// firstHold and lastHold bound how many windows a limit is kept after a raise brought no throughput. The
	// number doubles with each failure in a row.
	firstHold, lastHold = 4, 64
	// cutPause is the minimum time between two cuts for lack of memory.
	cutPause = 500 * time.Millisecond
	// forgetAfter is how long no start must have had to wait before the learned limit is forgotten.
	forgetAfter = 30 * time.Second
)

// hostLoad are the host's load figures. Counters run since boot.
type hostLoad struct {
	memory   kernel.Memory
	runnable uint64
	// hasPressure says that the kernel reports pressure (PSI), which gives the three times below.
	hasPressure                     bool
	cpuSome, memorySome, memoryFull time.Duration
	// stalls counts waits for memory, where the kernel does not report pressure.
	stalls uint64
}

// loadReader reads a host's load figures: at most five small files.
type loadReader struct {
	root            kernel.Root
	withoutPressure bool // the kernel does not report pressure
}

func (r *loadReader) read() (s hostLoad, err error) {
	if s.memory, err = r.root.Memory(); err != nil {
		return s, err
	}
	queue, err := r.root.RunQueue()
	if err != nil {
		return s, err
	}
	s.runnable = queue.Runnable - min(queue.Runnable, 1) // without this reader's own thread
	if !r.withoutPressure {
		cpu, err := r.root.Pressure(kernel.CPUPressure)
		if err == nil {
			var memory kernel.Pressure
			memory, err = r.root.Pressure(kernel.MemoryPressure)
			s.hasPressure, s.cpuSome, s.memorySome, s.memoryFull = err == nil, cpu.Some.Total, memory.Some.Total, memory.Full.Total
		}
		r.withoutPressure = fault.Is(err, fault.NotFound)
	}
	if !s.hasPressure {
		s.stalls, err = r.root.AllocationStalls()
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
	}
	return s, err
}

// launchPace decides how many launches run at once. It adds slots while processors have time left and more slots
// give more throughput. It removes slots, in proportion, when memory is short or threads crowd.
type launchPace struct {
	processors int
	limit      int
	why        string

	last   hostLoad
	lastAt time.Time
	cutAt  time.Time
	heldAt time.Time // when a start last had to wait for a slot
	// heldBack says that a start had to wait for a slot in this window. Otherwise the throughput says nothing
	// about the limit.
	heldBack bool

	window      throughputWindow
	baseline    raiseBaseline
	holdWindows int // windows in which the limit is not raised
	nextHold    int
}

// throughputWindow is a measurement since began.
type throughputWindow struct {
	began    time.Time
	finished int
	samples  int
	runnable float64 // sum over all samples
	stall    time.Duration
	sampled  time.Duration // the time that stall is a share of
}

// raiseBaseline is the limit before the last raise, with its throughput in starts per second.
type raiseBaseline struct {
	limit      int
	throughput float64
}

func newLaunchPace(processors int) launchPace {
	processors = max(processors, 1)
	return launchPace{processors: processors, limit: min(firstPerCPU*processors, maxLaunches), why: "the number of processors", nextHold: firstHold}
}

// floor is the limit that crowding cannot lower.
func (p *launchPace) floor() int { return min(firstPerCPU*p.processors, maxLaunches) }

func (p *launchPace) reason() string {
	return fmt.Sprintf("one of %d places for launches, which follow %s", p.limit, p.why)
}

// finished counts the end of a launch, and closes the window if it is long enough.
func (p *launchPace) finished(now time.Time) {
	if p.window.began.IsZero() {
		p.window.began = now // the first end starts the measurement
		return
	}
	p.window.finished++
	if p.heldBack {
		p.heldAt = now
	}
	if p.window.finished >= max(windowStarts, p.limit) && now.Sub(p.window.began) >= windowTime {
		p.closeWindow(now)
	}
}

// applyLoad applies new load figures.
func (p *launchPace) applyLoad(now time.Time, s hostLoad) {
	last, passed := p.last, now.Sub(p.lastAt)
	first := p.lastAt.IsZero()
	p.last, p.lastAt = s, now
	if first || passed <= 0 || passed > forgetAfter {
		return
	}
	p.window.samples++
	p.window.runnable += float64(s.runnable)
	if s.hasPressure && last.hasPressure {
		p.window.stall += s.cpuSome - last.cpuSome
		p.window.sampled += passed
	}
	short := ""
	switch share := func(d time.Duration) float64 { return float64(d) / float64(passed) }; {
	case s.hasPressure && last.hasPressure && share(s.memoryFull-last.memoryFull) > memoryFull:
		short = "that everything waits for memory"
	case s.hasPressure && last.hasPressure && share(s.memorySome-last.memorySome) > memorySome:
		short = "that threads wait for memory"
	case !s.hasPressure && !last.hasPressure && s.stalls > last.stalls:
		short = "that memory has to be freed before it is given"
	}
	if short != "" && now.Sub(p.cutAt) >= cutPause {
		p.setLimit(p.limit*7/10, short)
		p.cutAt = now
		p.restartWindow(now)
	}
	if !p.heldAt.IsZero() && now.Sub(p.heldAt) > forgetAfter {
		*p = newLaunchPace(p.processors)
		p.last, p.lastAt = s, now
	}
}

func (p *launchPace) setLimit(limit int, why string) {
	p.limit = min(max(limit, 1), maxLaunches)
	p.why = why
}

// restartWindow begins an empty window and drops the baseline, which no longer holds.
func (p *launchPace) restartWindow(now time.Time) {
	p.window, p.baseline, p.heldBack = throughputWindow{began: now}, raiseBaseline{}, false
}

// closeWindow closes a window and sets the limit.
func (p *launchPace) closeWindow(now time.Time) {
	w, held, before := p.window, p.heldBack, p.baseline
	p.window, p.baseline, p.heldBack = throughputWindow{began: now}, raiseBaseline{}, false
	if !held {
		return
	}
	throughput := float64(w.finished) / now.Sub(w.began).Seconds()
	idle, crowded := p.crowding(w)
	switch {
	case before.limit > 0 && before.limit < p.limit && throughput < before.neededThroughput(p.limit):
		p.setLimit(before.limit, fmt.Sprintf("that %d at once finished no more", p.limit))
		p.holdWindows, p.nextHold = p.nextHold, min(2*p.nextHold, lastHold)
	case crowded && p.limit > p.floor():
		p.setLimit(max(p.limit-max(p.limit/crowdedShrink, 1), p.floor()), "that threads crowd the processors")
	case p.holdWindows > 0:
		p.holdWindows--
	case (idle || p.limit < p.floor()) && p.limit < maxLaunches:
		if before.limit > 0 {
			p.nextHold = firstHold // the last raise gained throughput
		}
		if p.limit >= p.floor() { // below the floor, where lack of memory put it, the limit must recover
			p.baseline = raiseBaseline{p.limit, throughput}
		}
		p.setLimit(p.limit+max(p.limit/4, 1), "that the processors have time left")
	}
}

// neededThroughput is the throughput that justifies a raise.
func (t raiseBaseline) neededThroughput(limit int) float64 {
	return t.throughput * (1 + gain*(float64(limit)/float64(t.limit)-1))
}

// crowding says whether processors were idle or crowded in the window. Without a sample they were neither.
func (p *launchPace) crowding(w throughputWindow) (idle, crowded bool) {
	if w.samples == 0 {
		return false, false
	}
	queue := w.runnable / float64(w.samples) / float64(p.processors)
	idle = queue < idleQueue
	if w.sampled > 0 && float64(w.stall)/float64(w.sampled) < idleStall {
		idle = true
	}
	return idle, queue > crowdedQueue && !idle
}
