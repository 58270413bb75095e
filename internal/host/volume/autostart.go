package volume

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// When the host boots, a mount, a server or a device that a pool needs may appear later than the daemon. A
// failed start is retried after growing pauses, for as long as the autostart of a guest is.
const (
	firstPause   = time.Second
	lastPause    = 5 * time.Minute
	autostarting = time.Hour
)

// autostart starts a pool with autostart in the background. It counts as settled after the first try.
func (ps *Pools) autostart(p *Pool) {
	p.mu.Lock()
	p.autostartDue = true
	p.mu.Unlock()
	p.adopting.Store(true)
	ps.adopted.Go(func() {
		try := func() (struct{}, error) {
			defer p.adopting.Store(false)
			return struct{}{}, p.tryAutostart(ps.life)
		}
		told := func(err error, pause time.Duration) {
			ps.log.Warn("pool autostart failed; it is tried again", "pool", p.name, "error", err, "pause", pause)
		}
		pauses := &backoff.ExponentialBackOff{InitialInterval: firstPause, Multiplier: 2, MaxInterval: lastPause}
		_, err := backoff.Retry(ps.life, try, backoff.WithBackOff(pauses), backoff.WithNotify(told), backoff.WithMaxElapsedTime(autostarting))
		if err != nil && ps.life.Err() == nil && !fault.Is(err, fault.Aborted) {
			ps.log.Error("pool autostart failed; given up", "pool", p.name, "error", err)
		}
	})
}

// tryAutostart starts a pool unless it was started or undefined, or lost its autostart mark meanwhile.
func (p *Pool) tryAutostart(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*longTime, fault.New(fault.Timeout, fault.Pool, "pool %q did not start in time", p.name))
	defer cancel()
	settled := backoff.Permanent(fault.New(fault.Aborted, fault.Pool, "pool %q no longer has autostart", p.name))
	if err := p.takeTurn(ctx); fault.Is(err, fault.NotFound) {
		return settled
	} else if err != nil {
		return err
	}
	defer p.releaseTurn()
	p.mu.Lock()
	due, d, doc := p.autostartDue && p.autostart, p.saved, p.savedDoc
	p.mu.Unlock()
	if !due {
		return settled
	}
	return p.start(ctx, d, doc, NoBuild)
}
