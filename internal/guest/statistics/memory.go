package statistics

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// GuestMemory asks QEMU for the memory figures that a running guest has reported, and for nothing else. A guest that
// reports none is told to report every period from now on.
func GuestMemory(ctx context.Context, g *machine.Guest, period time.Duration) (*machine.Balloon, error) {
	v, r := g.View(), g.Live.Load()
	if r == nil || v.Active == nil {
		return nil, ErrNotRunning()
	}
	b, figures := v.Active.Devices.Balloon, &machine.Balloon{}
	path, err := provision.BalloonPath(b)
	if err != nil {
		return nil, err
	}
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	if err := readFigures(ctx, s, path, figures); err != nil {
		return nil, err
	}
	if figures.Updated.IsZero() && b.StatsPeriod == 0 {
		if err := provision.SetStatsPeriod(ctx, s, b, max(uint(period/time.Second), 1)); err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Monitor, "cannot ask domain %q for its memory statistics", v.Name)
		}
	}
	return figures, nil
}
