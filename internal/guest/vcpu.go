package guest

import (
	"cmp"
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// VCPUOptions say what SetVCPUs changes.
type VCPUOptions struct {
	Affect
	// Maximum changes the largest possible number of vCPUs. Only the stored definition can be changed so.
	Maximum bool
}

// maxVCPUs is more than QEMU's largest machine takes.
const maxVCPUs = 4096

// SetVCPUs changes the number of vCPUs. A running guest gets more at once, but decides itself whether it
// releases any.
func (g *Guest) SetVCPUs(ctx context.Context, sc scope.Scope, n uint, o VCPUOptions) error {
	if n == 0 || n > maxVCPUs {
		return fault.New(fault.Invalid, fault.Call, "a domain has from 1 to %d vCPUs, not %d", maxVCPUs, n)
	}
	return g.edit(ctx, sc, o.Affect, func() (*domain.Definition, error) {
		return withVCPUs(g.inactive, n, o.Maximum)
	}, func(config *domain.Definition) (work, error) {
		if o.Maximum {
			return nil, fault.New(fault.WrongState, fault.Domain, "the maximum of vCPUs of a running domain cannot be changed; change its config")
		}
		return g.planVCPUs(n, config)
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

func (g *Guest) planVCPUs(n uint, config *domain.Definition) (work, error) {
	def := g.run.def
	if n > def.VCPUs.Max {
		return nil, fault.New(fault.Invalid, fault.Call, "%d vCPUs are more than the domain's maximum of %d", n, def.VCPUs.Max)
	}
	if n < def.VCPUs.Current && def.Virt != "kvm" {
		return nil, fault.New(fault.Unsupported, fault.Domain,
			"cannot unplug vCPUs of a running domain that is emulated: QEMU's TCG would corrupt its own memory and crash; change the config")
	}
	after := def.Clone()
	after.VCPUs.Current = n
	return g.update(&update{VCPUs: def.VCPUs.Current}, after, config)
}

// queryVCPUs lists the vCPUs of a running guest, by index. Only threads of the QEMU process are accepted,
// whatever QEMU reports.
func (r *Registry) queryVCPUs(ctx context.Context, s *qmp.Session, pid int) ([]vcpuThread, error) {
	var answer []struct {
		Index  uint `json:"cpu-index"`
		Thread int  `json:"thread-id"`
	}
	if err := s.Execute(ctx, "query-cpus-fast", nil, &answer); err != nil {
		return nil, err
	}
	known := map[uint]bool{}
	var threads []vcpuThread
	for _, c := range answer {
		if c.Index < maxVCPUs && !known[c.Index] && r.Kernel.HasThread(pid, c.Thread) {
			known[c.Index] = true
			threads = append(threads, vcpuThread(c))
		}
	}
	slices.SortFunc(threads, func(a, b vcpuThread) int { return cmp.Compare(a.Index, b.Index) })
	return threads, nil
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
func (g *Guest) knownVCPUs(ctx context.Context, r *run) ([]vcpuThread, error) {
	if st := g.Sample(); st != nil && st.def == g.View().Active && len(st.threads) > 0 {
		return st.threads, nil
	}
	s, err := r.monitor()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, queryLimit)
	defer stop()
	return g.reg.queryVCPUs(ctx, s, r.PID)
}

// VCPUs returns the vCPUs of a running guest.
func (g *Guest) VCPUs(ctx context.Context) ([]VCPUInfo, error) {
	r := g.live.Load()
	if r == nil {
		return nil, errNotRunning()
	}
	threads, err := g.knownVCPUs(ctx, r)
	if err != nil {
		return nil, err
	}
	infos := make([]VCPUInfo, 0, len(threads))
	for _, t := range threads {
		info := VCPUInfo{Index: t.Index, Running: true, Host: -1}
		if p, err := g.reg.Kernel.Thread(r.PID, t.Thread); err == nil {
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
func (g *Guest) PinVCPU(ctx context.Context, sc scope.Scope, index uint, to topology.CPUSet, a Affect) error {
	def, err := g.definition(a)
	if err != nil {
		return err
	}
	if index >= def.VCPUs.Max {
		return fault.New(fault.Invalid, fault.Call, "vcpu %d is out of range of the domain's %d", index, def.VCPUs.Max)
	}
	return g.Tune(ctx, sc, a, func(d *domain.Definition) error {
		setPin(&d.Tune.VCPUPins, index, to)
		return nil
	})
}

// PinEmulator binds QEMU's own threads. An empty set removes the binding.
func (g *Guest) PinEmulator(ctx context.Context, sc scope.Scope, to topology.CPUSet, a Affect) error {
	return g.Tune(ctx, sc, a, func(d *domain.Definition) error {
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

// orAnywhere returns a set that the kernel accepts: an empty set becomes all CPUs.
func orAnywhere(s topology.CPUSet) topology.CPUSet {
	if s.IsEmpty() {
		return topology.Range(0, 1023)
	}
	return s
}
