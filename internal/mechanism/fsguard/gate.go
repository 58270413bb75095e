package fsguard

import (
	"context"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bounds of the calls on one mount. On one that answers they take microseconds
// to milliseconds, so that places are free; a hard disk waking up needs seconds.
const (
	places   = 16              // calls at a time, and so threads that a dead mount holds
	patience = 2 * time.Second // after which a call counts as one that hangs
	maxHung  = 4               // of which make all further calls fail at once
)

// gate lets a bounded number of calls onto one mount.
type gate struct {
	mount  Mount
	places chan struct{}

	mu    sync.Mutex
	calls map[*visit]time.Time // those that have a place, with their beginnings
	ended time.Time            // when the last one did
	users int                  // those that have a place or wait for one; guarded by the gates' lock
}

// hung counts the calls that hang, and gives since when the first of them does.
// None does while others end: what answers them is slow, and not dead.
func (g *gate) hung() (count int, since time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.ended) < patience {
		return 0, since
	}
	for _, began := range g.calls {
		if time.Since(began) < patience {
			continue
		}
		if count == 0 || began.Before(since) {
			since = began
		}
		count++
	}
	return count, since
}

// enter waits for a place. It fails at once where waiting is in vain.
func (g *gate) enter(ctx context.Context, v *visit) error {
	if n, since := g.hung(); n >= maxHung {
		return fault.New(fault.Timeout, fault.Host, "the file system at %v has not answered for %v, and %d calls wait for it already",
			g.mount, age(since), n)
	}
	select {
	case g.places <- struct{}{}:
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), kindOf(ctx), fault.Host, "all %d calls that may wait for the file system at %v do", places, g.mount)
	}
	g.mu.Lock()
	g.calls[v] = time.Now()
	g.mu.Unlock()
	return nil
}

func (g *gate) leave(v *visit) {
	g.mu.Lock()
	delete(g.calls, v)
	g.ended = time.Now()
	g.mu.Unlock()
	<-g.places
}

func age(since time.Time) time.Duration { return time.Since(since).Round(time.Millisecond) }

// kindOf says of what kind the end of waiting was.
func kindOf(ctx context.Context) fault.Kind {
	if k := fault.Of(context.Cause(ctx)); k != fault.Internal {
		return k
	}
	return fault.Timeout
}

// gates are those of the mounts that calls are on now.
type gates struct {
	table table

	mu   sync.Mutex // guards the map and is held over nothing else
	byID map[int]*gate
}

// process are the gates of this process: its threads are what they protect.
var process = gates{byID: map[int]*gate{}}

// use gives the gate of a mount; done lets it go.
func (gs *gates) use(m Mount) *gate {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.byID[m.ID]
	if g == nil {
		g = &gate{mount: m, places: make(chan struct{}, places), calls: map[*visit]time.Time{}}
		gs.byID[m.ID] = g
	}
	g.users++
	return g
}

func (gs *gates) done(g *gate) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(gs.byID, g.mount.ID)
	}
}
