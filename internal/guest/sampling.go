package guest

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// When samples are taken. Periods are stretched so that the sampler uses at most its share of one CPU,
// whatever a sample of these guests costs.
const (
	// attention is how long samples are kept recent after a client has asked for those of all guests.
	attention = time.Minute

	lively, livelyShare = 2 * time.Second, 0.02
	idle, idleShare     = 30 * time.Second, 0.002

	// settling is how long a guest must run before its first sample, so that sampling does not slow down a
	// storm of starts.
	settling = time.Second

	// A period is divided into ten rounds, within these bounds.
	shortestRound, longestRound = 100 * time.Millisecond, time.Second

	// atOnce bounds the samples that a round waits for at a time, and courtesy how long it waits for one. A
	// slower guest keeps a place of its own until its QEMU answers.
	atOnce   = 8
	courtesy = 100 * time.Millisecond
)

// sampler takes the samples of all running guests. It is one goroutine that sleeps between rounds, and
// while no guest runs.
//
//	running guests ──▶ those due, oldest first ──▶ as many as the pace allows ──▶ gauges
type sampler struct {
	running func() []*gauge
	cpu     func() time.Duration // CPU time that the daemon has used
	made    time.Time
	asked   atomic.Int64  // when a client last asked for all samples, in nanoseconds after made: a clock that no one can set
	wake    chan struct{} // buffered: holds one signal

	// The fields below belong to the sampler's goroutine.

	cost   cost
	credit float64 // how many samples the pace allows by now
	firsts float64 // the same for first samples
}

func newSampler(running func() []*gauge) *sampler {
	s := &sampler{running: running, cpu: processTime, made: time.Now(), wake: make(chan struct{}, 1), cost: guess}
	s.asked.Store(-int64(attention) - 1) // long ago
	return s
}

// processTime returns the CPU time that this process has used. 0: the kernel does not report it.
func processTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Refresh says that a client reads the samples of all guests. They are kept recent for the next minute. The
// call does not block.
func (r *Registry) Refresh() { r.sampler.attend() }

func (s *sampler) attend() {
	now := time.Since(s.made)
	if was := time.Duration(s.asked.Swap(int64(now))); now-was > attention {
		s.nudge()
	}
}

// nudge makes the sampler check now whether there is something to do.
func (s *sampler) nudge() {
	select {
	case s.wake <- struct{}{}:
	default: // it will check in any case
	}
}

// run takes samples until ctx ends.
func (s *sampler) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		now := time.Now()
		pause := s.round(ctx, now, now.Sub(last))
		last = now
		timer.Stop()
		if pause > 0 {
			timer.Reset(pause)
		}
	}
}

// round takes the samples that are due now. elapsed is the time since the last round. It returns the pause
// until the next round. 0: until the sampler is woken.
func (s *sampler) round(ctx context.Context, now time.Time, elapsed time.Duration) (pause time.Duration) {
	all := s.running()
	if len(all) == 0 {
		return 0
	}
	attended := now.Sub(s.made)-time.Duration(s.asked.Load()) <= attention
	period := s.cost.period(len(all), attended)
	pause = min(max(period/10, shortestRound), longestRound)

	s.credit = earn(s.credit, elapsed, float64(len(all))/period.Seconds(), pause)
	s.firsts = earn(s.firsts, elapsed, livelyShare/time.Duration(s.cost).Seconds(), shortestRound)
	due, first := choose(all, now, period)
	chosen := append(spend(&s.firsts, first), spend(&s.credit, due)...)
	if len(first) > 0 {
		pause = shortestRound // they are spread over short rounds
	}
	if len(chosen) > 0 {
		before := s.cpu()
		s.take(ctx, chosen)
		s.cost.learn(s.cpu()-before, len(chosen))
	}
	return pause
}

// earn adds to a credit what elapsed earns at a rate per second, up to what one and a half rounds earn. If
// rounds are delayed, the host has no time for samples, so they are not caught up.
func earn(credit float64, elapsed time.Duration, rate float64, round time.Duration) float64 {
	return min(credit+rate*elapsed.Seconds(), max(2, 1.5*rate*round.Seconds()))
}

// spend takes as many guests as the credit allows.
func spend(credit *float64, from []*gauge) []*gauge {
	n := min(int(*credit), len(from))
	*credit -= float64(n)
	return from[:n:n]
}

// choose returns the guests that may be sampled, those first that have waited longest. Guests without a
// sample are returned separately. A round samples as many guests as the period allows, so their turns
// spread over the period. The minimum age of half a period only keeps a guest from being sampled twice
// while others wait.
func choose(all []*gauge, now time.Time, period time.Duration) (due, first []*gauge) {
	type candidate struct {
		gauge *gauge
		begun time.Time
	}
	var again, fresh []candidate
	for _, g := range all {
		switch begun, isFirst, isDue := g.due(now, period/2, settling); {
		case isDue && isFirst:
			fresh = append(fresh, candidate{g, begun})
		case isDue:
			again = append(again, candidate{g, begun})
		}
	}
	order := func(of []candidate) []*gauge {
		slices.SortFunc(of, func(a, b candidate) int { return a.begun.Compare(b.begun) })
		gauges := make([]*gauge, len(of))
		for i, c := range of {
			gauges[i] = c.gauge
		}
		return gauges
	}
	return order(again), order(fresh)
}

// take takes samples, at most atOnce at a time. A slow sample is left behind, and delays the others once,
// by at most courtesy.
func (s *sampler) take(ctx context.Context, chosen []*gauge) {
	var under []*sampling
	for _, g := range chosen {
		if len(under) == atOnce {
			under[0].await(ctx)
			under = under[1:]
		}
		under = append(under, g.sample(ctx))
	}
	for _, u := range under {
		u.await(ctx)
	}
}

// await waits for a sample until courtesy has passed since it began.
func (s *sampling) await(ctx context.Context) {
	select {
	case <-s.done:
		return
	default:
	}
	late := time.NewTimer(time.Until(s.began.Add(courtesy)))
	defer late.Stop()
	select {
	case <-s.done:
	case <-late.C:
	case <-ctx.Done():
	}
}

// cost is the CPU time that one sample costs, as far as it is known.
type cost time.Duration

const (
	guess             = cost(200 * time.Microsecond)
	cheapest, dearest = cost(10 * time.Microsecond), cost(20 * time.Millisecond)
)

// learn adjusts the cost by that of some samples. The measured time includes what else the daemon did. So a
// low figure counts at once, and a high one only gradually.
func (c *cost) learn(spent time.Duration, samples int) {
	each := cost(spent) / cost(samples)
	if each < *c {
		*c -= (*c - each) / 2
	} else {
		*c += (min(each, 4**c) - *c) / 16
	}
	*c = min(max(*c, cheapest), dearest)
}

// period returns the time for sampling each of n guests once.
func (c *cost) period(n int, attended bool) time.Duration {
	wanted, share := idle, idleShare
	if attended {
		wanted, share = lively, livelyShare
	}
	return max(wanted, time.Duration(float64(*c)*float64(n)/share))
}
