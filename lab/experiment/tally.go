package experiment

import (
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// tally sorts what one load did into windows, by when it was meant to begin. The time
// line has it by when it ended, so that a stall is seen in it. Times are the load's
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
	enough  bool          // the load was told to stop
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
	number := record.WarmUp
	if over {
		number = t.home(i, warmup)
	}
	if err := t.sort(i, number, warmup, over); err != nil {
		return false, err
	}
	if t.enough {
		return false, nil // what it does as it is stopped only the books want
	}
	t.lengths[number] += i.Length
	t.second(i, number)
	end := warmup + time.Duration(t.plan.Windows)*t.plan.Measure
	t.enough = over && !t.plan.Warmup.Fixed() && i.Start.Add(i.Length).Sub(t.first) >= end && !t.pending()
	return !t.enough, nil
}

// home is the window of an interval.
func (t *tally) home(i workload.Interval, warmup time.Duration) int {
	if i.Length > t.plan.Measure {
		return t.plan.Windows // a load that tells all at once, at its end
	}
	return t.window(i.Start.Add(i.Length/2), warmup)
}

// sort counts everything in the window in which it was meant to begin: what a warm-up
// leaves behind is none of the first window's, and what the last window leaves behind
// still is its own.
func (t *tally) sort(i workload.Interval, number int, warmup time.Duration, over bool) error {
	late := i.Late
	i.Late = nil
	if !t.enough {
		if err := t.windows[number].Add(i); err != nil {
			return err
		}
	}
	for _, l := range late {
		home := record.WarmUp
		if over {
			home = t.home(l, warmup)
		}
		if t.enough {
			l.Ops = done(l.Ops) // that it was cut off is no fault of the server's
		}
		if err := t.windows[home].Add(l); err != nil {
			return err
		}
	}
	return nil
}

// done leaves out what failed.
func done(ops map[string]workload.Count) map[string]workload.Count {
	all := map[string]workload.Count{}
	for op, c := range ops {
		if c.Errors, c.Example = 0, ""; c.Done > 0 {
			all[op] = c
		}
	}
	return all
}

// pending tells whether arrivals of the windows have not come to their end. A load that
// was stopped then would leave out the slowest ones.
func (t *tally) pending() bool {
	for _, w := range t.windows[1:] {
		if w.Offered > w.Served+w.Failed {
			return true
		}
	}
	return false
}

// setsUp says whether an interval is of what a load does before it is one.
func setsUp(i workload.Interval) bool {
	_, does := i.Ops[workload.OpSetup]
	return does && len(i.Ops) == 1
}

// second keeps an interval's place on the time line.
func (t *tally) second(i workload.Interval, number int) {
	s := second{at: t.began.Add(i.Start.Sub(t.first)), window: number, length: i.Length, ops: map[string]int64{}}
	one := workload.Total{}
	_ = one.Add(i) // as it was to all
	for op, c := range one.Ops {
		s.ops[op] = c.Done
	}
	counted := one.All()
	if s.done = counted.Done; counted.Latency != nil && counted.Done > 0 {
		s.worst = time.Duration(counted.Latency.Max()) * time.Microsecond
	}
	t.seconds = append(t.seconds, s)
	t.outage(number, s.done, i.Length)
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
