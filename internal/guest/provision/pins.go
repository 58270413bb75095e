package provision

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// binding is a part of a guest that is bound to CPUs or cells of the host.
type binding struct {
	what string
	to   topology.CPUSet
}

// bindings returns all bindings of a definition, in a fixed order.
func bindings(def *domain.Definition) (processors, cells []binding) {
	for _, n := range slices.Sorted(maps.Keys(def.Tune.VCPUPins)) {
		processors = append(processors, binding{fmt.Sprintf("vCPU %d", n), def.Tune.VCPUPins[n]})
	}
	for _, n := range slices.Sorted(maps.Keys(def.Tune.IOThreadPins)) {
		processors = append(processors, binding{fmt.Sprintf("iothread %d", n), def.Tune.IOThreadPins[n]})
	}
	processors = append(processors, binding{"the emulator", def.Tune.EmulatorPin}, binding{"the domain (<vcpu cpuset>)", def.VCPUs.CPUs})
	cells = append(cells, binding{"the domain's memory", def.NUMA.Nodes})
	for _, c := range def.NUMA.Cells {
		cells = append(cells, binding{fmt.Sprintf("the memory of cell %d", c.Cell), c.Nodes})
	}
	return processors, cells
}

// newBindings returns the bindings of def that before does not have.
func newBindings(before, def *domain.Definition) (processors, cells []binding) {
	fresh := func(was, is []binding) []binding {
		return slices.DeleteFunc(is, func(b binding) bool {
			return b.to.IsEmpty() || slices.ContainsFunc(was, func(w binding) bool { return w.what == b.what && w.to.Equal(b.to) })
		})
	}
	p, c := bindings(def)
	wasP, wasC := bindings(before)
	return fresh(wasP, p), fresh(wasC, c)
}

// CheckPins refuses bindings to CPUs or cells that this host does not have. A CPU set needs one existing
// CPU at least, because the kernel ignores the missing ones.
func CheckPins(r *machine.Registry, before, def *domain.Definition) error {
	processors, cells := newBindings(before, def)
	if len(processors)+len(cells) == 0 {
		return nil
	}
	host, err := r.Kernel.Topology()
	if err != nil {
		return err
	}
	for _, b := range processors {
		if b.to.Intersect(host.Online).IsEmpty() {
			return fault.New(fault.Invalid, fault.Config, "%s is bound to CPUs %s; this host has only CPUs %s", b.what, b.to, host.Online)
		}
	}
	var there topology.CPUSet
	for _, c := range host.Cells {
		there = there.Union(topology.Range(c.ID, c.ID))
	}
	for _, b := range cells {
		if lacking := b.to.Minus(there); !lacking.IsEmpty() {
			return fault.New(fault.Invalid, fault.Config, "%s is bound to NUMA nodes %s; this host has only NUMA nodes %s", b.what, b.to, there)
		}
	}
	return nil
}

// MaxLocked returns how many bytes of memory a guest's QEMU may lock. If all memory is locked and the guest
// has no hard limit, there is no bound, because QEMU's own need is unknown.
func MaxLocked(def *domain.Definition) uint64 {
	switch {
	case def.MemTune.HardLimit != 0:
		return max(def.MemTune.HardLimit, freelyLocked)
	case def.Backing.Locked:
		return math.MaxUint64
	}
	return max(Need(def).Locked, freelyLocked)
}

// QueryVCPUs lists the vCPUs of a running guest, by index. Only threads of the QEMU process are accepted,
// whatever QEMU reports.
func QueryVCPUs(ctx context.Context, r *machine.Registry, s *qmp.Session, pid int) ([]machine.VCPUThread, error) {
	var answer []struct {
		Index  uint `json:"cpu-index"`
		Thread int  `json:"thread-id"`
	}
	if err := s.Execute(ctx, "query-cpus-fast", nil, &answer); err != nil {
		return nil, err
	}
	known := map[uint]bool{}
	var threads []machine.VCPUThread
	for _, c := range answer {
		if c.Index < machine.MaxVCPUs && !known[c.Index] && r.Kernel.HasThread(pid, c.Thread) {
			known[c.Index] = true
			threads = append(threads, machine.VCPUThread(c))
		}
	}
	slices.SortFunc(threads, func(a, b machine.VCPUThread) int { return cmp.Compare(a.Index, b.Index) })
	return threads, nil
}

// OrAllCPUs returns a set that the kernel accepts: an empty set becomes all CPUs.
func OrAllCPUs(s topology.CPUSet) topology.CPUSet {
	if s.IsEmpty() {
		return topology.Range(0, 1023)
	}
	return s
}
