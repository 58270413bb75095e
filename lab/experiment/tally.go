package experiment

import (
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// tally sorts the intervals of one load into windows. Their times are the load's
// own, which may run in a guest whose clock is another: they are taken from its
// first interval on.
type tally struct {
	plan    *scenario.Plan
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

func newTally(plan *scenario.Plan) *tally {
	return &tally{plan: plan, windows: make([]workload.Total, plan.Windows+1), lengths: make([]time.Duration, plan.Windows+1)}
}

// window is that of a moment: the warm-up and what is behind the last are number
// 0, which never counts.
func (t *tally) window(at time.Time) int {
	since := at.Sub(t.first) - t.plan.Warmup
	if since < 0 {
		return record.WarmUp
	}
	number := 1 + int(since/t.plan.Measure)
	if number > t.plan.Windows {
		return record.WarmUp
	}
	return number
}

func (t *tally) add(i workload.Interval) error {
	if t.first.IsZero() {
		t.first, t.began = i.Start, time.Now().Add(-i.Length)
	}
	number := t.window(i.Start.Add(i.Length / 2))
	if i.Length > t.plan.Measure {
		number = t.plan.Windows // a load that tells all at once, at its end
	}
	if err := t.all.Add(i); err != nil {
		return err
	}
	if err := t.windows[number].Add(i); err != nil {
		return err
	}
	t.lengths[number] += i.Length
	s := second{at: t.began.Add(i.Start.Sub(t.first)), window: number, length: i.Length, ops: map[string]int64{}}
	done := int64(0)
	for op, c := range i.Ops {
		s.ops[op] = c.Done
		done += c.Done
	}
	one := workload.Total{}
	if err := one.Add(i); err != nil {
		return err
	}
	counted := one.All()
	if s.done = counted.Done; counted.Latency != nil && counted.Done > 0 {
		s.worst = time.Duration(counted.Latency.Max()) * time.Microsecond
	}
	t.seconds = append(t.seconds, s)
	t.outage(number, done, i.Length)
	return nil
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
