package statistics

import (
	"context"
	"fmt"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

const (
	// staleAfter is how long after an unanswered query a guest's figures count as stale. From then on no
	// further caller waits for that answer.
	staleAfter = time.Second
	// maxQueryWait bounds how long an unanswered query is kept. It is long because the query stays with QEMU:
	// repeated queries to a stuck QEMU would fill its monitor.
	maxQueryWait = time.Hour
)

// OutdateStats makes the next sample read all figures.
func OutdateStats(g *machine.StatsCache) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Outdated = true
}

// newest returns the newest sample, marked as stale if it is. Nil: there is none.
func newest(g *machine.StatsCache) *machine.Stats {
	g.Mu.Lock()
	last, trouble := newestLocked(g)
	g.Mu.Unlock()
	if last == nil || trouble == nil {
		return last
	}
	return markStale(last, trouble)
}

// newestLocked is newest with the trouble returned beside it. mu must be held.
func newestLocked(g *machine.StatsCache) (*machine.Stats, *machine.SampleFailure) {
	late := g.Failure
	if late == nil && g.Current != nil {
		if waited := time.Since(g.Current.Began); waited > staleAfter {
			late = &machine.SampleFailure{Since: g.Current.Began, Why: fault.New(fault.Timeout, fault.Monitor, "QEMU has not answered for %v", waited.Round(time.Millisecond))}
		}
	}
	if g.Last == nil && late != nil {
		return g.Early, late
	}
	return g.Last, late
}

func markStale(s *machine.Stats, t *machine.SampleFailure) *machine.Stats {
	old := *s
	old.Stale, old.StaleSince = t.Why, t.Since
	return &old
}

// fresh returns a sample not older than maxAge, and takes one if needed. life bounds a sampling that
// outlives its caller.
func fresh(ctx, life context.Context, g *machine.StatsCache, maxAge time.Duration) (*machine.Stats, error) {
	g.Mu.Lock()
	last, late := newestLocked(g)
	if last != nil && late == nil && time.Since(last.At) <= maxAge {
		g.Mu.Unlock()
		return last, nil
	}
	s := beginSample(life, g, true)
	if waits := time.Since(s.Began); waits <= staleAfter {
		late = nil // the answer may still come
	}
	g.Mu.Unlock()
	if late == nil {
		select {
		case <-s.Done:
			if s.Err == nil {
				return s.Stats, nil
			}
			late = &machine.SampleFailure{Since: s.Began, Why: s.Err}
		case <-ctx.Done():
			late = &machine.SampleFailure{Since: s.Began, Why: fmt.Errorf("cannot sample the domain in time: %w", context.Cause(ctx))}
		}
	}
	g.Mu.Lock()
	last, _ = newestLocked(g)
	g.Mu.Unlock()
	if last == nil {
		return nil, late.Why
	}
	return markStale(last, late), nil
}

// beginSample begins a sample, or joins the one in progress. mu must be held.
func beginSample(life context.Context, g *machine.StatsCache, thorough bool) *machine.Sampling {
	if g.Current != nil {
		return g.Current
	}
	s := &machine.Sampling{Began: time.Now(), Done: make(chan struct{})}
	last, thorough := g.Last, thorough || g.Outdated
	g.Current, g.Begun, g.Outdated = s, s.Began, false
	go func() {
		ctx, stop := context.WithTimeout(life, maxQueryWait)
		defer stop()
		s.Stats, s.Err = takeSample(ctx, g, last, thorough, func(st *machine.Stats) { storeEarly(g, s, st) })
		storeSample(g, s)
		close(s.Done)
	}()
	return s
}

// takeSample takes a sample and turns a panic into an error. QEMU's answer may trigger one, and it must affect
// this guest only.
func takeSample(ctx context.Context, g *machine.StatsCache, last *machine.Stats, thorough bool, early func(*machine.Stats)) (st *machine.Stats, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			st, err = nil, fault.New(fault.Internal, fault.Domain, "taking the sample failed: %v", bug)
		}
	}()
	return g.Sample(ctx, last, thorough, early)
}

// storeEarly keeps the figures that are known before QEMU answers.
func storeEarly(g *machine.StatsCache, s *machine.Sampling, st *machine.Stats) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Current == s && g.Last == nil {
		g.Early = st
	}
}

// storeSample stores the result of a sampling, unless the guest has been restarted since it began.
func storeSample(g *machine.StatsCache, s *machine.Sampling) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Current != s {
		return
	}
	g.Current = nil
	switch {
	case s.Err == nil:
		g.Last, g.Early, g.Failure = s.Stats, nil, nil
	case g.Failure == nil:
		g.Failure = &machine.SampleFailure{Since: s.Began, Why: s.Err}
	default:
		g.Failure = &machine.SampleFailure{Since: g.Failure.Since, Why: s.Err}
	}
}

// isDueAt reports whether the sampler may take a sample, and whether it is the first. age is how old the newest
// attempt must be. settled is how long the guest must have run before the first.
func isDueAt(g *machine.StatsCache, now time.Time, age, settled time.Duration) (begun time.Time, first, due bool) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	switch {
	case g.Current != nil: // one is in progress
		return g.Begun, false, false
	case g.Begun.IsZero():
		return g.Since, true, now.Sub(g.Since) >= settled
	}
	return g.Begun, false, now.Sub(g.Begun) >= age
}

// sampleForSchedule is beginSample for the sampler.
func sampleForSchedule(life context.Context, g *machine.StatsCache) *machine.Sampling {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return beginSample(life, g, false)
}
