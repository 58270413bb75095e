package fsguard

import (
	"context"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bounds of the calls on one mount. On a healthy mount a call takes microseconds
// to milliseconds, so slots are free; a hard disk that spins up needs seconds.
const (
	maxConcurrent = 16              // calls at a time; also the threads that a dead mount holds
	hungAfter     = 2 * time.Second // after this a call counts as hung
	maxHung       = 4               // with this many hung calls all further calls fail at once
)

// limiter lets a bounded number of calls onto one mount.
type limiter struct {
	mount Mount
	slots chan struct{}

	mu    sync.Mutex
	calls map[*call]time.Time // calls that have a slot, with their start
	ended time.Time           // when the last call ended
	users int                 // calls that have a slot or wait for one; guarded by the limiters' lock
}

// hungCalls counts the hung calls, and returns since when the first one hangs.
// While other calls end the count is 0: the server is slow, not dead.
func (g *limiter) hungCalls() (count int, since time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.ended) < hungAfter {
		return 0, since
	}
	for _, began := range g.calls {
		if time.Since(began) < hungAfter {
			continue
		}
		if count == 0 || began.Before(since) {
			since = began
		}
		count++
	}
	return count, since
}

// enter waits for a slot. It fails at once if the mount counts as dead.
func (g *limiter) enter(ctx context.Context, v *call) error {
	if n, since := g.hungCalls(); n >= maxHung {
		return fault.New(fault.Timeout, fault.Host, "the file system at %v has not answered for %v, and %d calls wait for it already",
			g.mount, age(since), n)
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), kindOf(ctx), fault.Host, "all %d places for calls on the file system at %v are taken", maxConcurrent, g.mount)
	}
	g.mu.Lock()
	g.calls[v] = time.Now()
	g.mu.Unlock()
	return nil
}

func (g *limiter) leave(v *call) {
	g.mu.Lock()
	delete(g.calls, v)
	g.ended = time.Now()
	g.mu.Unlock()
	<-g.slots
}

// age returns the time since then, rounded for errors.
func age(since time.Time) time.Duration { return time.Since(since).Round(time.Millisecond) }

// kindOf returns Aborted or Timeout, by the reason why the wait ended.
func kindOf(ctx context.Context) fault.Kind {
	if k := fault.Of(context.Cause(ctx)); k != fault.Internal {
		return k
	}
	return fault.Timeout
}

// limiters holds the limiters of all mounts with calls on them.
type limiters struct {
	table table

	mu   sync.Mutex // guards the map only
	byID map[int]*limiter
}

// processLimiters are those of this process, whose threads they bound.
var processLimiters = limiters{byID: map[int]*limiter{}}

// acquire returns the limiter of a mount, which release gives back.
func (gs *limiters) acquire(m Mount) *limiter {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.byID[m.ID]
	if g == nil {
		g = &limiter{mount: m, slots: make(chan struct{}, maxConcurrent), calls: map[*call]time.Time{}}
		gs.byID[m.ID] = g
	}
	g.users++
	return g
}

func (gs *limiters) release(g *limiter) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(gs.byID, g.mount.ID)
	}
}
