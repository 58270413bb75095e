package statistics

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
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

// NewSampler makes the sampler of all guests.
func NewSampler(running func() []*machine.StatsCache) *machine.Sampler {
	s := &machine.Sampler{Running: running, CPU: processTime, Made: time.Now(), Wake: make(chan struct{}, 1), Cost: guess}
	s.Asked.Store(-int64(attention) - 1) // long ago
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
func Refresh(r *machine.Registry) { attend(r.Sampler) }

func attend(s *machine.Sampler) {
	now := time.Since(s.Made)
	if was := time.Duration(s.Asked.Swap(int64(now))); now-was > attention {
		s.Nudge()
	}
}

// RunSampler takes samples until ctx ends.
func RunSampler(ctx context.Context, s *machine.Sampler) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-s.Wake:
		case <-timer.C:
		}
		now := time.Now()
		pause := round(ctx, s, now, now.Sub(last))
		last = now
		timer.Stop()
		if pause > 0 {
			timer.Reset(pause)
		}
	}
}

// round takes the samples that are due now. elapsed is the time since the last round. It returns the pause
// until the next round. 0: until the sampler is woken.
func round(ctx context.Context, s *machine.Sampler, now time.Time, elapsed time.Duration) (pause time.Duration) {
	all := s.Running()
	if len(all) == 0 {
		return 0
	}
	attended := now.Sub(s.Made)-time.Duration(s.Asked.Load()) <= attention
	period := period(&s.Cost, len(all), attended)
	pause = min(max(period/10, shortestRound), longestRound)

	s.Credit = earn(s.Credit, elapsed, float64(len(all))/period.Seconds(), pause)
	s.Firsts = earn(s.Firsts, elapsed, livelyShare/time.Duration(s.Cost).Seconds(), shortestRound)
	due, first := choose(all, now, period)
	chosen := append(spend(&s.Firsts, first), spend(&s.Credit, due)...)
	if len(first) > 0 {
		pause = shortestRound // they are spread over short rounds
	}
	if len(chosen) > 0 {
		before := s.CPU()
		take(ctx, chosen)
		learn(&s.Cost, s.CPU()-before, len(chosen))
	}
	return pause
}

// earn adds to a credit what elapsed earns at a rate per second, up to what one and a half rounds earn. If
// rounds are delayed, the host has no time for samples, so they are not caught up.
func earn(credit float64, elapsed time.Duration, rate float64, round time.Duration) float64 {
	return min(credit+rate*elapsed.Seconds(), max(2, 1.5*rate*round.Seconds()))
}

// spend takes as many guests as the credit allows.
func spend(credit *float64, from []*machine.StatsCache) []*machine.StatsCache {
	n := min(int(*credit), len(from))
	*credit -= float64(n)
	return from[:n:n]
}

// choose returns the guests that may be sampled, those first that have waited longest. Guests without a
// sample are returned separately. A round samples as many guests as the period allows, so their turns
// spread over the period. The minimum age of half a period only keeps a guest from being sampled twice
// while others wait.
func choose(all []*machine.StatsCache, now time.Time, period time.Duration) (due, first []*machine.StatsCache) {
	type candidate struct {
		gauge *machine.StatsCache
		begun time.Time
	}
	var again, fresh []candidate
	for _, g := range all {
		switch begun, isFirst, isDue := isDueAt(g, now, period/2, settling); {
		case isDue && isFirst:
			fresh = append(fresh, candidate{g, begun})
		case isDue:
			again = append(again, candidate{g, begun})
		}
	}
	order := func(of []candidate) []*machine.StatsCache {
		slices.SortFunc(of, func(a, b candidate) int { return a.begun.Compare(b.begun) })
		gauges := make([]*machine.StatsCache, len(of))
		for i, c := range of {
			gauges[i] = c.gauge
		}
		return gauges
	}
	return order(again), order(fresh)
}

// take takes samples, at most atOnce at a time. A slow sample is left behind, and delays the others once,
// by at most courtesy.
func take(ctx context.Context, chosen []*machine.StatsCache) {
	var under []*machine.Sampling
	for _, g := range chosen {
		if len(under) == atOnce {
			await(ctx, under[0])
			under = under[1:]
		}
		under = append(under, sample(ctx, g))
	}
	for _, u := range under {
		await(ctx, u)
	}
}

// await waits for a sample until courtesy has passed since it began.
func await(ctx context.Context, s *machine.Sampling) {
	select {
	case <-s.Done:
		return
	default:
	}
	late := time.NewTimer(time.Until(s.Began.Add(courtesy)))
	defer late.Stop()
	select {
	case <-s.Done:
	case <-late.C:
	case <-ctx.Done():
	}
}

const (
	guess             = machine.Cost(200 * time.Microsecond)
	cheapest, dearest = machine.Cost(10 * time.Microsecond), machine.Cost(20 * time.Millisecond)
)

// learn adjusts the cost by that of some samples. The measured time includes what else the daemon did. So a
// low figure counts at once, and a high one only gradually.
func learn(c *machine.Cost, spent time.Duration, samples int) {
	each := machine.Cost(spent) / machine.Cost(samples)
	if each < *c {
		*c -= (*c - each) / 2
	} else {
		*c += (min(each, 4**c) - *c) / 16
	}
	*c = min(max(*c, cheapest), dearest)
}

// period returns the time for sampling each of n guests once.
func period(c *machine.Cost, n int, attended bool) time.Duration {
	wanted, share := idle, idleShare
	if attended {
		wanted, share = lively, livelyShare
	}
	return max(wanted, time.Duration(float64(*c)*float64(n)/share))
}
