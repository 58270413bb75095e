package guest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const (
	// hopeless is after how long without an answer a guest's figures count as
	// stale, and nobody else begins to wait for the same answer.
	hopeless = time.Second
	// lastResort bounds the wait for an answer that nobody waits for any more. It
	// is long because the question stays with QEMU: asked again and again, one
	// that is stuck would gather questions until its monitor is full.
	lastResort = time.Hour
)

// gauge keeps one guest's newest sample and takes the next. One sample is taken
// at a time, and all who want it wait for that one; so a guest that is stuck
// holds one goroutine and one question, however many ask.
type gauge struct {
	take taker

	// mu guards what follows; it is held for the length of some assignments only.
	mu   sync.Mutex
	last *Stats
	// early is what the kernel told of a guest of which QEMU has not told anything yet.
	early   *Stats
	trouble *trouble // what the newest sampling ended in; nil: all was well
	next    *sampling
	begun   time.Time // when the newest sampling began; zero: there was none
	since   time.Time // when the guest came to run: what was begun before is of an earlier life
	// outdated says that something has changed which is looked at rarely.
	outdated bool
}

// taker takes a sample. Last is the one before it, if there is one; thorough
// asks for everything, also what changes slowly. What is known already before
// QEMU is asked goes to early.
type taker func(ctx context.Context, last *Stats, thorough bool, early func(*Stats)) (*Stats, error)

// sampling is a sample being taken; done closes when it is there.
type sampling struct {
	began time.Time
	done  chan struct{}
	stats *Stats
	err   error
}

// trouble is why there is no new sample.
type trouble struct {
	since time.Time
	why   error
}

// restart forgets the samples of an earlier life.
func (g *gauge) restart(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last, g.early, g.trouble, g.next = nil, nil, nil, nil
	g.begun, g.since, g.outdated = time.Time{}, now, false
}

// outdate has the next sample look at everything again.
func (g *gauge) outdate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outdated = true
}

// newest gives the newest sample, marked as stale if it is; nil: there is none.
func (g *gauge) newest() *Stats {
	g.mu.Lock()
	last, trouble := g.known()
	g.mu.Unlock()
	if last == nil || trouble == nil {
		return last
	}
	return last.stale(trouble)
}

// known is newest with the trouble beside it; mu is held.
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

// fresh gives a sample not older than maxAge, taking one if need be. Life is how
// long a sampling may go on after its caller has gone.
func (g *gauge) fresh(ctx context.Context, life context.Context, maxAge time.Duration) (*Stats, error) {
	g.mu.Lock()
	last, late := g.known()
	if last != nil && late == nil && time.Since(last.At) <= maxAge {
		g.mu.Unlock()
		return last, nil
	}
	s := g.begin(life, true)
	if waits := time.Since(s.began); waits <= hopeless {
		late = nil // the answer may come
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

// begin takes a sample, or joins the one being taken; mu is held.
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

// contain takes a sample. What QEMU answered may break that; then it is this
// guest's trouble, and nobody else's.
func (g *gauge) contain(ctx context.Context, last *Stats, thorough bool, early func(*Stats)) (st *Stats, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			st, err = nil, fault.New(fault.Internal, fault.Domain, "the sample broke: %v", bug)
		}
	}()
	return g.take(ctx, last, thorough, early)
}

// foresee keeps what is known before QEMU has answered.
func (g *gauge) foresee(s *sampling, st *Stats) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == s && g.last == nil {
		g.early = st
	}
}

// settle keeps what a sampling came to, unless the guest has begun another life
// meanwhile.
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

// due says whether the sampler may take a sample, and whether it is the first.
// Age is how old the newest attempt must be, settled how long the guest must
// have run before the first.
func (g *gauge) due(now time.Time, age, settled time.Duration) (begun time.Time, first, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.next != nil: // it has its place already, and keeps it until it is answered
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
