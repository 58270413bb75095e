package guest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const (
	// hopeless is how long after an unanswered query a guest's figures count as stale. From then on no
	// further caller waits for that answer.
	hopeless = time.Second
	// lastResort bounds how long an unanswered query is kept. It is long because the query stays with QEMU:
	// repeated queries to a stuck QEMU would fill its monitor.
	lastResort = time.Hour
)

// gauge keeps one guest's newest sample and takes the next one. Only one sample is taken at a time, and all
// callers wait for that one. So a stuck guest costs one goroutine and one query, however many clients ask.
type gauge struct {
	take taker

	// mu guards the fields below. It is held for a few assignments only.
	mu   sync.Mutex
	last *Stats
	// early holds the kernel's figures for a guest until QEMU has reported its own.
	early   *Stats
	trouble *trouble // how the newest sampling failed; nil: it did not
	next    *sampling
	begun   time.Time // when the newest sampling began; zero: there was none
	since   time.Time // when the guest started: older samplings belong to an earlier run
	// outdated says that a figure which is sampled rarely has changed.
	outdated bool
}

// taker takes a sample. last is the previous sample, if there is one. thorough asks for all figures, also
// those that change slowly. early receives the figures that are known before QEMU is asked.
type taker func(ctx context.Context, last *Stats, thorough bool, early func(*Stats)) (*Stats, error)

// sampling is a sample in progress. done is closed when it has ended.
type sampling struct {
	began time.Time
	done  chan struct{}
	stats *Stats
	err   error
}

// trouble is the reason why there is no new sample.
type trouble struct {
	since time.Time
	why   error
}

// restart forgets the samples of an earlier run.
func (g *gauge) restart(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last, g.early, g.trouble, g.next = nil, nil, nil, nil
	g.begun, g.since, g.outdated = time.Time{}, now, false
}

// outdate makes the next sample read all figures.
func (g *gauge) outdate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outdated = true
}

// newest returns the newest sample, marked as stale if it is. Nil: there is none.
func (g *gauge) newest() *Stats {
	g.mu.Lock()
	last, trouble := g.known()
	g.mu.Unlock()
	if last == nil || trouble == nil {
		return last
	}
	return last.stale(trouble)
}

// known is newest with the trouble returned beside it. mu must be held.
func (g *gauge) known() (*Stats, *trouble) {
	late := g.trouble
	if late == nil && g.next != nil {
		if waited := time.Since(g.next.began); waited > hopeless {
			late = &trouble{g.next.began, fault.New(fault.Timeout, fault.Monitor, "QEMU has not answered for %v", waited.Round(time.Millisecond))}
		}
	}
	if g.last == nil && late != nil {
		return g.early, late
	}
	return g.last, late
}

func (s *Stats) stale(t *trouble) *Stats {
	old := *s
	old.Stale, old.StaleSince = t.why, t.since
	return &old
}

// fresh returns a sample not older than maxAge, and takes one if needed. life bounds a sampling that
// outlives its caller.
func (g *gauge) fresh(ctx, life context.Context, maxAge time.Duration) (*Stats, error) {
	g.mu.Lock()
	last, late := g.known()
	if last != nil && late == nil && time.Since(last.At) <= maxAge {
		g.mu.Unlock()
		return last, nil
	}
	s := g.begin(life, true)
	if waits := time.Since(s.began); waits <= hopeless {
		late = nil // the answer may still come
	}
	g.mu.Unlock()
	if late == nil {
		select {
		case <-s.done:
			if s.err == nil {
				return s.stats, nil
			}
			late = &trouble{s.began, s.err}
		case <-ctx.Done():
			late = &trouble{s.began, fmt.Errorf("cannot sample the domain in time: %w", context.Cause(ctx))}
		}
	}
	g.mu.Lock()
	last, _ = g.known()
	g.mu.Unlock()
	if last == nil {
		return nil, late.why
	}
	return last.stale(late), nil
}

// begin begins a sample, or joins the one in progress. mu must be held.
func (g *gauge) begin(life context.Context, thorough bool) *sampling {
	if g.next != nil {
		return g.next
	}
	s := &sampling{began: time.Now(), done: make(chan struct{})}
	last, thorough := g.last, thorough || g.outdated
	g.next, g.begun, g.outdated = s, s.began, false
	go func() {
		ctx, stop := context.WithTimeout(life, lastResort)
		defer stop()
		s.stats, s.err = g.contain(ctx, last, thorough, func(st *Stats) { g.foresee(s, st) })
		g.settle(s)
		close(s.done)
	}()
	return s
}

// contain takes a sample and turns a panic into an error. QEMU's answer may trigger one, and it must affect
// this guest only.
func (g *gauge) contain(ctx context.Context, last *Stats, thorough bool, early func(*Stats)) (st *Stats, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			st, err = nil, fault.New(fault.Internal, fault.Domain, "taking the sample failed: %v", bug)
		}
	}()
	return g.take(ctx, last, thorough, early)
}

// foresee keeps the figures that are known before QEMU answers.
func (g *gauge) foresee(s *sampling, st *Stats) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == s && g.last == nil {
		g.early = st
	}
}

// settle stores the result of a sampling, unless the guest has been restarted since it began.
func (g *gauge) settle(s *sampling) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next != s {
		return
	}
	g.next = nil
	switch {
	case s.err == nil:
		g.last, g.early, g.trouble = s.stats, nil, nil
	case g.trouble == nil:
		g.trouble = &trouble{s.began, s.err}
	default:
		g.trouble = &trouble{g.trouble.since, s.err}
	}
}

// due reports whether the sampler may take a sample, and whether it is the first. age is how old the newest
// attempt must be. settled is how long the guest must have run before the first.
func (g *gauge) due(now time.Time, age, settled time.Duration) (begun time.Time, first, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.next != nil: // one is in progress
		return g.begun, false, false
	case g.begun.IsZero():
		return g.since, true, now.Sub(g.since) >= settled
	}
	return g.begun, false, now.Sub(g.begun) >= age
}

// sample is begin for the sampler.
func (g *gauge) sample(life context.Context) *sampling {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begin(life, false)
}
