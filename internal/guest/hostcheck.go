package guest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// checkHost refuses, before anything is made, a guest that needs CPUs, cells or lockable memory that this
// host does not have.
func (l *launching) checkHost(context.Context) error {
	if err := l.g.reg.checkPins(&domain.Definition{}, l.run.def); err != nil {
		return err
	}
	return l.checkLocked()
}

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

// checkPins refuses bindings to CPUs or cells that this host does not have. A CPU set needs one existing
// CPU at least, because the kernel ignores the missing ones.
func (r *Registry) checkPins(before, def *domain.Definition) error {
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

// maxLocked returns how many bytes of memory a guest's QEMU may lock. If all memory is locked and the guest
// has no hard limit, there is no bound, because QEMU's own need is unknown.
func maxLocked(def *domain.Definition) uint64 {
	switch {
	case def.MemTune.HardLimit != 0:
		return max(def.MemTune.HardLimit, freelyLocked)
	case def.Backing.Locked:
		return math.MaxUint64
	}
	return max(need(def).Locked, freelyLocked)
}

// checkLocked refuses a guest if its memory cannot be locked because the daemon's own limit is too low.
func (l *launching) checkLocked() error {
	def := l.run.def
	if !def.Backing.Locked || l.g.reg.Quarters == nil {
		return nil
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot tell how much memory may be locked")
	}
	if own.Max < def.Memory || def.MemTune.HardLimit != 0 && def.MemTune.HardLimit < def.Memory {
		return l.tooLittleLocked()
	}
	return nil
}

// tooLittleLocked returns an error that says why the guest's memory cannot be locked, and what to do.
func (l *launching) tooLittleLocked() error {
	def := l.run.def
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own); err == nil && own.Max < min(maxLocked(def), 2*def.Memory+lockedBeside) {
		return fault.New(fault.NoCapacity, fault.Host,
			"the domain's memory of %d MiB must be locked (<memoryBacking><locked/>), and the daemon may let guests lock only %d MiB: "+
				"raise its limit (LimitMEMLOCK=infinity in its unit), or remove <locked/>", def.Memory>>20, own.Max>>20)
	}
	if limit := def.MemTune.HardLimit; limit != 0 {
		return fault.New(fault.NoCapacity, fault.Config,
			"the domain's memory of %d MiB must be locked (<memoryBacking><locked/>), and its hard_limit of %d MiB is too small for that memory and QEMU's own: "+
				"raise <memtune><hard_limit>, or remove <locked/>", def.Memory>>20, limit>>20)
	}
	return fault.New(fault.NoCapacity, fault.Host,
		"the domain's memory of %d MiB must be locked (<memoryBacking><locked/>), and the host lacks free memory: free some, or remove <locked/>", def.Memory>>20)
}
