package guest

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Usage returns the CPU time that a running guest has used since its start. Its control group counts it, or
// the process if there is no such group.
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

// CPUTime returns the CPU time that a running guest's process has used.
func (g *Guest) CPUTime() (time.Duration, error) {
	r := g.live.Load()
	if r == nil {
		return 0, errNotRunning()
	}
	p, err := g.reg.Kernel.Process(r.PID)
	return p.User + p.System, err
}

// Limits returns the limits of a running guest's control group.
func (g *Guest) Limits() (kernel.Limits, error) {
	r := g.live.Load()
	if r == nil {
		return kernel.Limits{}, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	return g.reg.Cgroups.Guest(r.UUID).Limits()
}
