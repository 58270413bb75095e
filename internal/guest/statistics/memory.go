package statistics

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// GuestMemory asks QEMU what a running guest has said about its memory, and nothing else. The guest says it every
// period, from the first call on: before that its driver is told to.
func GuestMemory(ctx context.Context, g *machine.Guest, period time.Duration) (*machine.Balloon, error) {
	v, r := g.View(), g.Live.Load()
	if r == nil || v.Active == nil {
		return nil, ErrNotRunning()
	}
	b := v.Active.Devices.Balloon
	path, err := provision.BalloonPath(b)
	if err != nil {
		return nil, err
	}
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	st := &machine.Stats{Def: v.Active}
	if err := sampleBalloon(ctx, s, st); err != nil {
		return nil, err
	}
	if st.Balloon.Updated.IsZero() && b.StatsPeriod == 0 {
		seconds := max(int(period/time.Second), 1)
		args := map[string]any{"path": path, "property": "guest-stats-polling-interval", "value": seconds}
		if err := s.Execute(ctx, "qom-set", args, nil); err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Monitor, "cannot ask domain %q for its memory statistics", v.Name)
		}
	}
	return &st.Balloon, nil
}
