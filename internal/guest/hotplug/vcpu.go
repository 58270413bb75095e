package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// VCPUOptions say what SetVCPUs changes.
type VCPUOptions struct {
	machine.Affect
	// Maximum changes the largest possible number of vCPUs. Only the stored definition can be changed so.
	Maximum bool
}

// SetVCPUs changes the number of vCPUs. A running guest gets more at once, but decides itself whether it
// releases any.
func SetVCPUs(ctx context.Context, g *machine.Guest, sc scope.Scope, n uint, o VCPUOptions) error {
	if n == 0 || n > machine.MaxVCPUs {
		return fault.New(fault.Invalid, fault.Call, "a domain has from 1 to %d vCPUs, not %d", machine.MaxVCPUs, n)
	}
	return edit(ctx, g, sc, o.Affect, func() (*domain.Definition, error) {
		return withVCPUs(g.Inactive, n, o.Maximum)
	}, func(config *domain.Definition) (machine.Work, error) {
		if o.Maximum {
			return nil, fault.New(fault.WrongState, fault.Domain, "the maximum of vCPUs of a running domain cannot be changed; change its config")
		}
		return planVCPUs(g, n, config)
	})
}

// withVCPUs returns a copy of a definition with n vCPUs, or with a maximum of n.
func withVCPUs(d *domain.Definition, n uint, maximum bool) (*domain.Definition, error) {
	d = d.Clone()
	if !maximum {
		if n > d.VCPUs.Max {
			return nil, fault.New(fault.Invalid, fault.Call, "%d vCPUs are more than the domain's maximum of %d", n, d.VCPUs.Max)
		}
		d.VCPUs.Current = n
		return d, nil
	}
	if t := d.CPU.Topology; t != nil && t.Sockets*max(t.Dies, 1)*max(t.Clusters, 1)*t.Cores*t.Threads != n {
		return nil, fault.New(fault.WrongState, fault.Domain, "a maximum of %d vCPUs does not agree with the domain's CPU topology; change that too", n)
	}
	d.VCPUs.Max, d.VCPUs.Current = n, min(d.VCPUs.Current, n)
	return d, nil
}

func planVCPUs(g *machine.Guest, n uint, config *domain.Definition) (machine.Work, error) {
	def := g.Instance.Definition
	if n > def.VCPUs.Max {
		return nil, fault.New(fault.Invalid, fault.Call, "%d vCPUs are more than the domain's maximum of %d", n, def.VCPUs.Max)
	}
	if n < def.VCPUs.Current && def.Virt != "kvm" {
		return nil, fault.New(fault.Unsupported, fault.Domain,
			"cannot unplug vCPUs of a running domain that is emulated: QEMU's TCG would corrupt its own memory and crash; change the config")
	}
	after := def.Clone()
	after.VCPUs.Current = n
	return UpdateWith(g, &UpdateOp{VCPUs: def.VCPUs.Current}, after, config)
}

// VCPUInfo is one vCPU of a running guest.
type VCPUInfo struct {
	Index    uint
	Running  bool
	CPUTime  uint64 // nanoseconds
	Host     int    // the CPU it ran on last; -1: unknown
	Affinity topology.CPUSet
}

// knownVCPUs lists the vCPUs of a running guest. It takes them from the newest sample if the definition has
// not changed since, because an attached vCPU changes it. Otherwise it asks QEMU.
func knownVCPUs(ctx context.Context, g *machine.Guest, r *machine.Instance) ([]machine.VCPUThread, error) {
	if st := statistics.Sample(g); st != nil && st.Def == g.View().Active && len(st.Threads) > 0 {
		return st.Threads, nil
	}
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, machine.QueryLimit)
	defer stop()
	return provision.QueryVCPUs(ctx, g.Reg, s, r.PID)
}

// VCPUs returns the vCPUs of a running guest.
func VCPUs(ctx context.Context, g *machine.Guest) ([]VCPUInfo, error) {
	r := g.Live.Load()
	if r == nil {
		return nil, statistics.ErrNotRunning()
	}
	threads, err := knownVCPUs(ctx, g, r)
	if err != nil {
		return nil, err
	}
	infos := make([]VCPUInfo, 0, len(threads))
	for _, t := range threads {
		info := VCPUInfo{Index: t.Index, Running: true, Host: -1}
		if p, err := g.Reg.Kernel.Thread(r.PID, t.Thread); err == nil {
			info.CPUTime, info.Host = uint64(p.User+p.System), p.Processor
		}
		if info.Affinity, err = kernel.Affinity(t.Thread); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read where vCPU %d may run", t.Index)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// PinVCPU binds a vCPU of the guest to CPUs of the host. An empty set removes the binding.
func PinVCPU(ctx context.Context, g *machine.Guest, sc scope.Scope, index uint, to topology.CPUSet, a machine.Affect) error {
	def, err := g.Definition(a)
	if err != nil {
		return err
	}
	if index >= def.VCPUs.Max {
		return fault.New(fault.Invalid, fault.Call, "vcpu %d is out of range of the domain's %d", index, def.VCPUs.Max)
	}
	return Tune(ctx, g, sc, a, func(d *domain.Definition) error {
		setPin(&d.Tune.VCPUPins, index, to)
		return nil
	})
}

// PinEmulator binds QEMU's own threads. An empty set removes the binding.
func PinEmulator(ctx context.Context, g *machine.Guest, sc scope.Scope, to topology.CPUSet, a machine.Affect) error {
	return Tune(ctx, g, sc, a, func(d *domain.Definition) error {
		d.Tune.EmulatorPin = to
		return nil
	})
}

func setPin(pins *map[uint]topology.CPUSet, index uint, to topology.CPUSet) {
	if to.IsEmpty() {
		delete(*pins, index)
		return
	}
	if *pins == nil {
		*pins = map[uint]topology.CPUSet{}
	}
	(*pins)[index] = to
}
