package statistics

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// qemuFigures are QEMU's names of the figures.
var qemuFigures = [machine.BalloonFigures]string{
	"stat-swap-in", "stat-swap-out", "stat-major-faults", "stat-minor-faults", "stat-free-memory", "stat-total-memory",
	"stat-available-memory", "stat-disk-caches", "stat-htlb-pgalloc", "stat-htlb-pgfail",
}

// Figure returns a figure. ok is false if the guest did not report it.
func Figure(b *machine.Balloon, f machine.BalloonFigure) (value uint64, ok bool) {
	return b.Figures[f], b.Known&(1<<f) != 0
}

// SetFigure sets a figure.
func SetFigure(b *machine.Balloon, f machine.BalloonFigure, value uint64) {
	b.Figures[f] = value
	b.Known |= 1 << f
}

// Sample returns the newest sample without waiting. Nil: there is none yet, or the guest does not run. The
// sampler decides when samples are taken: see Registry.Refresh.
func Sample(g *machine.Guest) *machine.Stats {
	r := g.Live.Load()
	if r == nil {
		return nil
	}
	return newest(g.StatsCache)
}

// Stats returns a sample not older than maxAge, and takes one if needed. If QEMU does not answer within ctx
// or machine.QueryLimit, it returns the newest sample with the reason in Stale. It fails only if there is no
// sample.
func Stats(ctx context.Context, g *machine.Guest, maxAge time.Duration) (*machine.Stats, error) {
	if g.Live.Load() == nil {
		return nil, ErrNotRunning()
	}
	ctx, stop := context.WithTimeoutCause(ctx, machine.QueryLimit, fault.New(fault.Timeout, fault.Monitor, "QEMU did not answer within %v", machine.QueryLimit))
	defer stop()
	return fresh(ctx, g.Reg.Life, g.StatsCache, maxAge)
}

// ErrNotRunning refuses a request that needs a running guest.
func ErrNotRunning() error {
	return fault.New(fault.WrongState, fault.Domain, "domain is not running")
}
