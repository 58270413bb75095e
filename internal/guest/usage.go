package guest

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Usage is what a running guest used of the host's processors since it started,
// as its control group counts, or its process where there is no such group.
func (g *Guest) Usage() (kernel.GroupStats, error) {
	r := g.live.Load()
	if r == nil {
		return kernel.GroupStats{}, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if st, err := g.reg.Cgroups.Guest(r.UUID).Stats(); err == nil && st.CPU > 0 {
		return st, nil
	}
	p, err := g.reg.Kernel.Process(r.PID)
	return kernel.GroupStats{CPU: p.User + p.System, User: p.User, System: p.System}, err
}

// CPUTime is the processor time that a running guest's process used so far.
func (g *Guest) CPUTime() (time.Duration, error) {
	r := g.live.Load()
	if r == nil {
		return 0, errNotRunning()
	}
	p, err := g.reg.Kernel.Process(r.PID)
	return p.User + p.System, err
}

// Limits reads what the control group of a running guest holds it to.
func (g *Guest) Limits() (kernel.Limits, error) {
	r := g.live.Load()
	if r == nil {
		return kernel.Limits{}, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	return g.reg.Cgroups.Guest(r.UUID).Limits()
}
