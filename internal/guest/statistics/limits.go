package statistics

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Need returns what a guest takes of the host's limits.
func Need(r *machine.Registry, def *domain.Definition) resources.Need {
	n := provision.Need(def)
	for _, nic := range def.Devices.NICs {
		switch nic.Type {
		case "bridge":
			n.Bridges = append(n.Bridges, nic.Bridge)
		case "network":
			// A missing network, or one without a bridge, is reported when the NIC is attached.
			if found, err := r.Networks.ByName(nic.Network); err == nil {
				if bridge, err := found.BridgeName(); err == nil {
					n.Bridges = append(n.Bridges, bridge)
				}
			}
		}
	}
	return n
}

// Usage returns the CPU time that a running guest has used since its start. Its control group counts it, or
// the process if there is no such group.
func Usage(g *machine.Guest) (kernel.GroupStats, error) {
	r := g.Live.Load()
	if r == nil {
		return kernel.GroupStats{}, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if st, err := g.Reg.Cgroups.Guest(r.UUID).Stats(); err == nil && st.CPU > 0 {
		return st, nil
	}
	p, err := g.Reg.Kernel.Process(r.PID)
	return kernel.GroupStats{CPU: p.User + p.System, User: p.User, System: p.System}, err
}

// CPUTime returns the CPU time that a running guest's process has used.
func CPUTime(g *machine.Guest) (time.Duration, error) {
	r := g.Live.Load()
	if r == nil {
		return 0, ErrNotRunning()
	}
	p, err := g.Reg.Kernel.Process(r.PID)
	return p.User + p.System, err
}

// Limits returns the limits of a running guest's control group.
func Limits(g *machine.Guest) (kernel.Limits, error) {
	r := g.Live.Load()
	if r == nil {
		return kernel.Limits{}, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	return g.Reg.Cgroups.Guest(r.UUID).Limits()
}
