package volume

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// What a pool needs may come later than the daemon when the host boots: a mount, a server, a
// device. A start with the host that fails is tried again, later after each try, for as long as
// that of a guest is.
const (
	firstPause   = time.Second
	lastPause    = 5 * time.Minute
	autostarting = time.Hour
)

// startWithHost starts a pool that is marked for that, beside, and is settled with the first try.
func (ps *Pools) startWithHost(p *Pool) {
	p.mu.Lock()
	p.due = true
	p.mu.Unlock()
	p.adopting.Store(true)
	ps.adopted.Go(func() {
		try := func() (struct{}, error) {
			defer p.adopting.Store(false)
			return struct{}{}, p.startDue(ps.life)
		}
		told := func(err error, pause time.Duration) {
			ps.log.Warn("cannot start a pool with the host; that is tried again", "pool", p.name, "error", err, "pause", pause)
		}
		pauses := &backoff.ExponentialBackOff{InitialInterval: firstPause, Multiplier: 2, MaxInterval: lastPause}
		_, err := backoff.Retry(ps.life, try, backoff.WithBackOff(pauses), backoff.WithNotify(told), backoff.WithMaxElapsedTime(autostarting))
		if err != nil && ps.life.Err() == nil && !fault.Is(err, fault.Aborted) {
			ps.log.Error("cannot start a pool with the host; that is given up", "pool", p.name, "error", err)
		}
	})
}

// startDue starts a pool unless that is not to be done any more: somebody has started or
// forgotten it, or took its mark away.
func (p *Pool) startDue(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*longTime, fault.New(fault.Timeout, fault.Pool, "pool %q did not start in time", p.name))
	defer cancel()
	settled := backoff.Permanent(fault.New(fault.Aborted, fault.Pool, "pool %q is not to be started with the host any more", p.name))
	if err := p.take(ctx); fault.Is(err, fault.NotFound) {
		return settled
	} else if err != nil {
		return err
	}
	defer p.release()
	p.mu.Lock()
	due, d, doc := p.due && p.autostart, p.saved, p.savedDoc
	p.mu.Unlock()
	if !due {
		return settled
	}
	return p.start(ctx, d, doc, NoBuild)
}
