package experiment

import (
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// tally sorts the intervals of one load into windows. Their times are the load's
// own, which may run in a guest whose clock is another: they are taken from its
// first interval on, or that after what it has set up for itself.
type tally struct {
	plan    *scenario.Plan
	warming *warming
	warmed  *warmed   // in that
	began   time.Time // here, when the first interval began
	first   time.Time // there
	windows []workload.Total
	lengths []time.Duration // of the intervals in each window
	all     workload.Total  // whatever the window
	seconds []second
	gap     time.Duration // the longest time without anything done, in the windows
	idle    time.Duration // the one that goes on
}

// second is one interval of the time line.
type second struct {
	at     time.Time
	window int
	length time.Duration
	ops    map[string]int64
	done   int64         // of the operations that count
	worst  time.Duration // that one of those took
}

func newTally(plan *scenario.Plan, warming *warming, load scenario.Load) *tally {
	return &tally{
		plan: plan, warming: warming, warmed: warming.join(load),
		windows: make([]workload.Total, plan.Windows+1), lengths: make([]time.Duration, plan.Windows+1),
	}
}

// window is that of a moment after a warm-up: what is before it and what is behind
// the last are number 0, which never counts.
func (t *tally) window(at time.Time, warmup time.Duration) int {
	since := at.Sub(t.first) - warmup
	if since < 0 {
		return record.WarmUp
	}
	number := 1 + int(since/t.plan.Measure)
	if number > t.plan.Windows {
		return record.WarmUp
	}
	return number
}

// add takes an interval, and says whether the load is to go on: one that does not know
// beforehand how long its warm-up is has to be told when the last window is over.
func (t *tally) add(i workload.Interval) (more bool, err error) {
	if err := t.all.Add(i); err != nil {
		return false, err
	}
	if t.first.IsZero() && setsUp(i) { // the load has not begun
		return true, t.windows[record.WarmUp].Add(i)
	}
	if t.first.IsZero() {
		t.first, t.began = i.Start, time.Now().Add(-i.Length)
	}
	warmup, over, err := t.warming.hear(t.warmed, i.Start.Sub(t.first), i)
	if err != nil {
		return false, err
	}
	number, middle := record.WarmUp, i.Start.Add(i.Length/2)
	switch {
	case !over:
	case i.Length > t.plan.Measure:
		number = t.plan.Windows // a load that tells all at once, at its end
	default:
		number = t.window(middle, warmup)
	}
	end := warmup + time.Duration(t.plan.Windows)*t.plan.Measure
	if over && !t.plan.Warmup.Fixed() && middle.Sub(t.first) >= end {
		return false, nil // what it does as it is stopped only the books want
	}
	if err := t.windows[number].Add(i); err != nil {
		return false, err
	}
	t.lengths[number] += i.Length
	t.second(i, number)
	return !over || t.plan.Warmup.Fixed() || i.Start.Add(i.Length).Sub(t.first) < end, nil
}

// setsUp says whether an interval is of what a load does before it is one.
func setsUp(i workload.Interval) bool {
	_, does := i.Ops[workload.OpSetup]
	return does && len(i.Ops) == 1
}

// second keeps an interval's place on the time line.
func (t *tally) second(i workload.Interval, number int) {
	s := second{at: t.began.Add(i.Start.Sub(t.first)), window: number, length: i.Length, ops: map[string]int64{}}
	done := int64(0)
	for op, c := range i.Ops {
		s.ops[op] = c.Done
		done += c.Done
	}
	one := workload.Total{}
	_ = one.Add(i) // as it was to all
	counted := one.All()
	if s.done = counted.Done; counted.Latency != nil && counted.Done > 0 {
		s.worst = time.Duration(counted.Latency.Max()) * time.Microsecond
	}
	t.seconds = append(t.seconds, s)
	t.outage(number, done, i.Length)
}

// outage keeps the longest run of intervals in which nothing was done.
func (t *tally) outage(window int, done int64, length time.Duration) {
	if done > 0 || window == record.WarmUp {
		t.idle = 0
		return
	}
	t.idle += length
	t.gap = max(t.gap, t.idle)
}
