package resources

import (
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// The pace: how many launches run at once.
const (
	// firstPerCPU places for each processor are enough to keep it busy while some
	// launches sleep; crowding alone never takes that away, as a processor that
	// waits for the next start costs more than threads that wait for a processor.
	firstPerCPU = 2
	// maxLaunches bounds the limit.
	maxLaunches = 256

	// idleStall is the share of time with some thread waiting for a processor
	// below which there is processor time left, and idle and crowded the runnable
	// threads for each processor that say so of less and of more.
	idleStall     = 0.6
	idleQueue     = 1.0
	crowdedQueue  = 3.0
	crowdedShrink = 8 // the part of the limit that crowding takes away

	// Memory is short when some threads wait for it for this share of the time, or
	// all of them for that.
	memorySome = 0.20
	memoryFull = 0.05

	// windowTime and windowStarts are what a throughput is measured over, at least.
	windowTime   = 100 * time.Millisecond
	windowStarts = 4
	// gain is the part of the added places that must show in the throughput.
	gain = 0.25
	// firstHold and lastHold are for how many windows a limit is kept after more
	// did not finish more; each time in a row doubles it.
	firstHold, lastHold = 4, 64
	// cutPause is the least time between two cuts for want of memory.
	cutPause = 500 * time.Millisecond
	// rest is after how long without a start that had to wait what was learned of
	// the limit is forgotten.
	rest = 30 * time.Second
)

// signs are what tells how busy the host is. Counters run since boot.
type signs struct {
	memory   kernel.Memory
	runnable uint64
	// told says that the kernel tells of pressure: the three times below.
	told                            bool
	cpuSome, memorySome, memoryFull time.Duration
	// stalls are waits for memory, where the kernel does not tell of pressure.
	stalls uint64
}

// signReader reads a host's signs: five small files at most.
type signReader struct {
	root kernel.Root
	mute bool // the kernel does not tell of pressure
}

func (r *signReader) read() (s signs, err error) {
	if s.memory, err = r.root.Memory(); err != nil {
		return s, err
	}
	queue, err := r.root.RunQueue()
	if err != nil {
		return s, err
	}
	s.runnable = queue.Runnable - min(queue.Runnable, 1) // without this reader
	if !r.mute {
		cpu, err := r.root.Pressure(kernel.CPUPressure)
		if err == nil {
			var memory kernel.Pressure
			memory, err = r.root.Pressure(kernel.MemoryPressure)
			s.told, s.cpuSome, s.memorySome, s.memoryFull = err == nil, cpu.Some.Total, memory.Some.Total, memory.Full.Total
		}
		r.mute = fault.Is(err, fault.NotFound)
	}
	if !s.told {
		s.stalls, err = r.root.AllocationStalls()
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
	}
	return s, err
}

// pace decides how many launches run at once. It adds places while the processors
// have time left and more places finish more starts, and takes them away, in
// proportion, when memory is short or threads crowd.
type pace struct {
	processors int
	limit      int
	why        string

	last   signs
	lastAt time.Time
	cutAt  time.Time
	heldAt time.Time // when a start last had to wait for a place
	// heldBack says that within the window a start had to wait for a place: else
	// throughput says nothing about the limit.
	heldBack bool

	window   window
	before   trial
	hold     int // windows for which the limit is not raised
	nextHold int
}

// window is what was seen since it began.
type window struct {
	began    time.Time
	finished int
	looks    int
	runnable float64 // sum over looks
	stall    time.Duration
	looked   time.Duration // the time that stall is out of
}

// trial is the limit before the last raise, and its throughput in starts a second.
type trial struct {
	limit      int
	throughput float64
}

func newPace(processors int) pace {
	processors = max(processors, 1)
	return pace{processors: processors, limit: min(firstPerCPU*processors, maxLaunches), why: "the number of processors", nextHold: firstHold}
}

// floor is what crowding leaves.
func (p *pace) floor() int { return min(firstPerCPU*p.processors, maxLaunches) }

func (p *pace) reason() string {
	return fmt.Sprintf("one of %d places for launches, which follow %s", p.limit, p.why)
}

// finished notes the end of a launch, and closes the window when it has enough.
func (p *pace) finished(now time.Time) {
	if p.window.began.IsZero() {
		p.window.began = now // the first end begins to count
		return
	}
	p.window.finished++
	if p.heldBack {
		p.heldAt = now
	}
	if p.window.finished >= max(windowStarts, p.limit) && now.Sub(p.window.began) >= windowTime {
		p.judge(now)
	}
}

// look takes in the host's signs.
func (p *pace) look(now time.Time, s signs) {
	last, passed := p.last, now.Sub(p.lastAt)
	first := p.lastAt.IsZero()
	p.last, p.lastAt = s, now
	if first || passed <= 0 || passed > rest {
		return
	}
	p.window.looks++
	p.window.runnable += float64(s.runnable)
	if s.told && last.told {
		p.window.stall += s.cpuSome - last.cpuSome
		p.window.looked += passed
	}
	short := ""
	switch share := func(d time.Duration) float64 { return float64(d) / float64(passed) }; {
	case s.told && last.told && share(s.memoryFull-last.memoryFull) > memoryFull:
		short = "that everything waits for memory"
	case s.told && last.told && share(s.memorySome-last.memorySome) > memorySome:
		short = "that threads wait for memory"
	case !s.told && !last.told && s.stalls > last.stalls:
		short = "that memory has to be freed before it is given"
	}
	if short != "" && now.Sub(p.cutAt) >= cutPause {
		p.set(p.limit*7/10, short)
		p.cutAt = now
		p.restart(now)
	}
	if !p.heldAt.IsZero() && now.Sub(p.heldAt) > rest {
		*p = newPace(p.processors)
		p.last, p.lastAt = s, now
	}
}

func (p *pace) set(limit int, why string) {
	p.limit = min(max(limit, 1), maxLaunches)
	p.why = why
}

// restart begins a window in which nothing has been seen, and drops a trial: what
// it was measured against is no longer so.
func (p *pace) restart(now time.Time) {
	p.window, p.before, p.heldBack = window{began: now}, trial{}, false
}

// judge closes a window.
func (p *pace) judge(now time.Time) {
	w, held, before := p.window, p.heldBack, p.before
	p.window, p.before, p.heldBack = window{began: now}, trial{}, false
	if !held {
		return
	}
	throughput := float64(w.finished) / now.Sub(w.began).Seconds()
	idle, crowded := p.crowd(w)
	switch {
	case before.limit > 0 && before.limit < p.limit && throughput < before.needed(p.limit):
		p.set(before.limit, fmt.Sprintf("that %d at once finished no more", p.limit))
		p.hold, p.nextHold = p.nextHold, min(2*p.nextHold, lastHold)
	case crowded && p.limit > p.floor():
		p.set(max(p.limit-max(p.limit/crowdedShrink, 1), p.floor()), "that threads crowd the processors")
	case p.hold > 0:
		p.hold--
	case (idle || p.limit < p.floor()) && p.limit < maxLaunches:
		if before.limit > 0 {
			p.nextHold = firstHold // the last raise paid
		}
		if p.limit >= p.floor() { // below it, which memory forced, it must come back
			p.before = trial{p.limit, throughput}
		}
		p.set(p.limit+max(p.limit/4, 1), "that the processors have time left")
	}
}

// needed is the throughput that makes a raise worth it.
func (t trial) needed(limit int) float64 {
	return t.throughput * (1 + gain*(float64(limit)/float64(t.limit)-1))
}

// crowd says whether processors were idle in the window, or crowded. Without a
// look it was neither.
func (p *pace) crowd(w window) (idle, crowded bool) {
	if w.looks == 0 {
		return false, false
	}
	queue := w.runnable / float64(w.looks) / float64(p.processors)
	idle = queue < idleQueue
	if w.looked > 0 && float64(w.stall)/float64(w.looked) < idleStall {
		idle = true
	}
	return idle, queue > crowdedQueue && !idle
}
