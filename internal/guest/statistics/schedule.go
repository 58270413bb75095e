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
	// readerTimeout is how long samples are kept recent after a client has asked for those of all guests.
	readerTimeout = time.Minute

	activePeriod, activeShare = 2 * time.Second, 0.02
	idlePeriod, idleShare     = 30 * time.Second, 0.002

	// firstSampleDelay is how long a guest must run before its first sample, so that sampling does not slow down a
	// storm of starts.
	firstSampleDelay = time.Second

	// A period is divided into ten rounds, within these bounds.
	shortestRound, longestRound = 100 * time.Millisecond, time.Second

	// maxConcurrent bounds the samples that a round waits for at a time, and sampleWait how long it waits for
	// one. A slower guest keeps a place of its own until its QEMU answers.
	maxConcurrent = 8
	sampleWait    = 100 * time.Millisecond
)

// NewSampler makes the sampler of all guests.
func NewSampler(running func() []*machine.StatsCache) *machine.Sampler {
	s := &machine.Sampler{Running: running, CPU: processTime, Made: time.Now(), Wake: make(chan struct{}, 1), Cost: initialCost}
	s.Asked.Store(-int64(readerTimeout) - 1) // long ago
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
func Refresh(r *machine.Registry) { noteReader(r.Sampler) }

func noteReader(s *machine.Sampler) {
	now := time.Since(s.Made)
	if was := time.Duration(s.Asked.Swap(int64(now))); now-was > readerTimeout {
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
	attended := now.Sub(s.Made)-time.Duration(s.Asked.Load()) <= readerTimeout
	period := period(&s.Cost, len(all), attended)
	pause = min(max(period/10, shortestRound), longestRound)

	s.Credit = addCredit(s.Credit, elapsed, float64(len(all))/period.Seconds(), pause)
	s.Firsts = addCredit(s.Firsts, elapsed, activeShare/time.Duration(s.Cost).Seconds(), shortestRound)
	due, first := chooseGuests(all, now, period)
	chosen := append(spendCredit(&s.Firsts, first), spendCredit(&s.Credit, due)...)
	if len(first) > 0 {
		pause = shortestRound // they are spread over short rounds
	}
	if len(chosen) > 0 {
		before := s.CPU()
		takeSamples(ctx, chosen)
		updateCost(&s.Cost, s.CPU()-before, len(chosen))
	}
	return pause
}

// addCredit adds to a credit what elapsed earns at a rate per second, up to what one and a half rounds earn. If
// rounds are delayed, the host has no time for samples, so they are not caught up.
func addCredit(credit float64, elapsed time.Duration, rate float64, round time.Duration) float64 {
	return min(credit+rate*elapsed.Seconds(), max(2, 1.5*rate*round.Seconds()))
}

// spendCredit takes as many guests as the credit allows.
func spendCredit(credit *float64, from []*machine.StatsCache) []*machine.StatsCache {
	n := min(int(*credit), len(from))
	*credit -= float64(n)
	return from[:n:n]
}

// chooseGuests returns the guests that may be sampled, those first that have waited longest. Guests without a
// sample are returned separately. A round samples as many guests as the period allows, so their turns
// spread over the period. The minimum age of half a period only keeps a guest from being sampled twice
// while others wait.
func chooseGuests(all []*machine.StatsCache, now time.Time, period time.Duration) (due, first []*machine.StatsCache) {
	type candidate struct {
		gauge *machine.StatsCache
		begun time.Time
	}
	var again, fresh []candidate
	for _, g := range all {
		switch begun, isFirst, isDue := isDueAt(g, now, period/2, firstSampleDelay); {
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

// takeSamples takes samples, at most maxConcurrent at a time. A slow sample is left behind, and delays the
// others once, by at most sampleWait.
func takeSamples(ctx context.Context, chosen []*machine.StatsCache) {
	var under []*machine.Sampling
	for _, g := range chosen {
		if len(under) == maxConcurrent {
			awaitSample(ctx, under[0])
			under = under[1:]
		}
		under = append(under, sampleForSchedule(ctx, g))
	}
	for _, u := range under {
		awaitSample(ctx, u)
	}
}

// awaitSample waits for a sample until sampleWait has passed since it began.
func awaitSample(ctx context.Context, s *machine.Sampling) {
	select {
	case <-s.Done:
		return
	default:
	}
	late := time.NewTimer(time.Until(s.Began.Add(sampleWait)))
	defer late.Stop()
	select {
	case <-s.Done:
	case <-late.C:
	case <-ctx.Done():
	}
}

const (
	initialCost      = machine.Cost(200 * time.Microsecond)
	minCost, maxCost = machine.Cost(10 * time.Microsecond), machine.Cost(20 * time.Millisecond)
)

// updateCost adjusts the cost by that of some samples. The measured time includes what else the daemon did. So a
// low figure counts at once, and a high one only gradually.
func updateCost(c *machine.Cost, spent time.Duration, samples int) {
	each := machine.Cost(spent) / machine.Cost(samples)
	if each < *c {
		*c -= (*c - each) / 2
	} else {
		*c += (min(each, 4**c) - *c) / 16
	}
	*c = min(max(*c, minCost), maxCost)
}

// period returns the time for sampling each of n guests once.
func period(c *machine.Cost, n int, attended bool) time.Duration {
	wanted, share := idlePeriod, idleShare
	if attended {
		wanted, share = activePeriod, activeShare
	}
	return max(wanted, time.Duration(float64(*c)*float64(n)/share))
}
