package domain

import (
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// maxVCPUsWithoutIOMMU is the number of processors that interrupts reach without an
// IOMMU, which Lodge does not support.
const maxVCPUsWithoutIOMMU = 255

func checkProcessors(d *Definition) error {
	v := &d.VCPUs
	switch {
	case v.Placement == "auto" || d.NUMA.Placement == "auto":
		return unsupported(`vcpu/@placement and numatune/memory/@placement "auto" are not built; use "static", with the host's processors in vcpu/@cpuset and its nodes in numatune/memory/@nodeset`)
	case v.Max > maxVCPUsWithoutIOMMU:
		return unsupported("%d vcpus: more than %d need an iommu, which is not built", v.Max, maxVCPUsWithoutIOMMU)
	}
	if err := checkCPU(&d.CPU); err != nil {
		return err
	}
	return checkTune(d)
}

// CheckModel refuses options of a CPU model on a processor without a model. Call it
// before a model is filled in.
func (c *CPU) CheckModel() error {
	switch {
	case c.Model != "" || c.Mode != "" && c.Mode != "custom":
	case c.Vendor != "":
		return invalid("cpu/vendor is said without a model; add <model> or leave it out")
	case len(c.Features) > 0:
		return invalid("cpu/feature is said without a model; add <model> or a mode")
	}
	return nil
}

func checkCPU(c *CPU) error {
	own := c.Mode == "host-passthrough" || c.Mode == "maximum"
	switch {
	case c.Migratable != device.Unset && !own:
		return unsupported("cpu/@migratable is for mode host-passthrough or maximum, not %s; leave it out", c.Mode)
	case c.VendorID != "" && len(c.VendorID) != maxVendorID:
		return invalid("cpu/model/@vendor_id %q is not of %d characters", c.VendorID, maxVendorID)
	case c.MaxPhysMode == "emulate" && c.MaxPhysBits == 0:
		return unsupported("cpu/maxphysaddr of mode emulate needs bits")
	case c.MaxPhysMode == "passthrough" && c.MaxPhysBits != 0:
		return unsupported("cpu/maxphysaddr of mode passthrough has the host's bits; leave bits out")
	case c.MaxPhysMode == "" && c.MaxPhysBits != 0:
		return invalid("cpu/maxphysaddr needs a mode: emulate")
	}
	seen := map[string]bool{}
	for _, f := range c.Features {
		if seen[f.Name] {
			return invalid("cpu/feature %s is said twice; leave one out", f.Name)
		}
		seen[f.Name] = true
	}
	return checkCache(c, own)
}

func checkCache(c *CPU, own bool) error {
	if c.Cache == nil {
		return nil
	}
	level := c.Cache.Level
	switch c.Cache.Mode {
	case "emulate":
		if level != 3 {
			return unsupported("cpu/cache of mode emulate needs level 3")
		}
	case "passthrough":
		if !own {
			return unsupported("cpu/cache of mode passthrough is for cpu mode host-passthrough or maximum, not %s", c.Mode)
		}
		fallthrough
	case "disable":
		if level != -1 {
			return unsupported("cpu/cache of mode %s has no level; leave it out", c.Cache.Mode)
		}
	}
	return nil
}

// The kernel's bounds of shares of processor time, and of periods and quotas in
// microseconds.
const (
	leastShares, mostShares = 2, 262144
	leastPeriod, mostPeriod = 1000, 1000000
	leastQuota, mostQuota   = 1000, 1<<44 - 1
)

func checkTune(d *Definition) error {
	t := &d.Tune
	if t.Shares != 0 && (t.Shares < leastShares || t.Shares > mostShares) {
		return unsupported("cputune/shares is from %d to %d, not %d", leastShares, mostShares, t.Shares)
	}
	for _, p := range []struct {
		name   string
		period uint64
		quota  int64
	}{
		{"", t.Period, t.Quota},
		{"global_", t.GlobalPeriod, t.GlobalQuota},
		{"emulator_", t.EmulatorPeriod, t.EmulatorQuota},
		{"iothread_", t.IOThreadPeriod, t.IOThreadQuota},
	} {
		switch {
		case p.period != 0 && (p.period < leastPeriod || p.period > mostPeriod):
			return unsupported("cputune/%speriod is from %d to %d microseconds, not %d", p.name, leastPeriod, mostPeriod, p.period)
		case p.quota > 0 && (p.quota < leastQuota || p.quota > mostQuota):
			return unsupported("cputune/%squota is from %d to %d microseconds, not %d", p.name, leastQuota, mostQuota, p.quota)
		}
	}
	return checkPins(d)
}

func checkPins(d *Definition) error {
	for _, id := range slices.Sorted(maps.Keys(d.Tune.VCPUPins)) {
		if d.Tune.VCPUPins[id].IsEmpty() {
			return invalid("cputune/vcpupin of vcpu %d needs a cpuset", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.Tune.IOThreadPins)) {
		switch {
		case id == 0 || id > d.IOThreads:
			return unsupported("cputune/iothreadpin: iothread %d is not among the domain's %d; raise <iothreads>", id, d.IOThreads)
		case d.Tune.IOThreadPins[id].IsEmpty():
			return invalid("cputune/iothreadpin of iothread %d needs a cpuset", id)
		}
	}
	return nil
}

// CheckDistances refuses distances between the guest's cells that ACPI's table (SLIT) cannot
// hold. Call it before the table is filled in, because that overwrites them.
func (d *Definition) CheckDistances() error {
	cells := map[uint]bool{}
	for _, c := range d.CPU.Cells {
		cells[c.ID] = true
	}
	for _, c := range d.CPU.Cells {
		for _, to := range c.Distances {
			switch {
			case !cells[to.Cell]:
				return invalid("cpu/numa/cell %d: a distance to cell %d, which is not there", c.ID, to.Cell)
			case to.Value < localDistance || to.Value > unreachable:
				return invalid("cpu/numa/cell %d: the distance to cell %d is from %d to %d, not %d", c.ID, to.Cell, localDistance, unreachable, to.Value)
			case (to.Cell == c.ID) != (to.Value == localDistance):
				return invalid("cpu/numa/cell %d: the distance %d is that of a cell to itself, and only that", c.ID, localDistance)
			}
		}
	}
	return nil
}

// Distances by ACPI's SLIT: to the cell itself, and to an unreachable cell.
const (
	localDistance = 10
	unreachable   = 255
)

func checkCells(d *Definition) error {
	seen := map[uint]bool{}
	var all topology.CPUSet
	for _, c := range d.CPU.Cells {
		switch {
		case seen[c.ID]:
			return invalid("cpu/numa: two cells have the id %d; give each its own", c.ID)
		case c.ID >= uint(len(d.CPU.Cells)):
			return invalid("cpu/numa: a cell has the id %d; the ids of %d cells are 0 to %d", c.ID, len(d.CPU.Cells), len(d.CPU.Cells)-1)
		case c.CPUs.Max() >= 0 && uint(c.CPUs.Max()) >= d.VCPUs.Max:
			return invalid("cpu/numa/cell %d: vcpu %d is not among the domain's %d", c.ID, c.CPUs.Max(), d.VCPUs.Max)
		case !all.Intersect(c.CPUs).IsEmpty():
			return unsupported("cpu/numa/cell %d: vcpus %s are in another cell, too", c.ID, all.Intersect(c.CPUs))
		}
		seen[c.ID] = true
		all = all.Union(c.CPUs)
	}
	return nil
}

func checkNUMATune(d *Definition) error {
	t := &d.NUMA
	if t.Mode != "" && t.Nodes.IsEmpty() {
		return unsupported("numatune/memory needs a nodeset")
	}
	seen := map[uint]bool{}
	for _, c := range t.Cells {
		switch {
		case len(d.CPU.Cells) == 0:
			return invalid("numatune/memnode binds a NUMA cell, and the guest has none; add <cpu><numa>, or use numatune/memory")
		case c.Cell >= uint(len(d.CPU.Cells)):
			return invalid("numatune/memnode: there is no cell %d; the guest has %d", c.Cell, len(d.CPU.Cells))
		case seen[c.Cell]:
			return invalid("numatune/memnode: cell %d is bound twice; leave one out", c.Cell)
		case c.Nodes.IsEmpty():
			return invalid("numatune/memnode of cell %d needs a nodeset", c.Cell)
		case t.Mode == "restrictive" && c.Mode != "restrictive":
			return invalid("numatune/memnode of cell %d: its mode is restrictive as that of numatune/memory is", c.Cell)
		}
		seen[c.Cell] = true
	}
	return nil
}

func checkMemory(d *Definition) error {
	b := &d.Backing
	if !b.HasHugePages && len(b.HugePages) == 0 {
		return nil
	}
	switch {
	case b.Allocation == "ondemand":
		return unsupported("memoryBacking/hugepages are taken at once; leave allocation mode ondemand out")
	case b.Source == "anonymous":
		return unsupported("memoryBacking/hugepages are not anonymous memory; leave source out, or use memfd")
	}
	cells := max(len(d.CPU.Cells), 1) // a guest without any has one for this
	var all topology.CPUSet
	master := false
	for _, p := range b.HugePages {
		if len(d.CPU.Cells) == 0 && p.Nodes.Max() == 0 {
			p.Nodes = topology.CPUSet{}
		}
		switch {
		case p.Size == 0:
			return contradiction("memoryBacking/hugepages: a page has a size")
		case p.Nodes.IsEmpty() && master:
			return contradiction("memoryBacking/hugepages: two sizes are for all cells; give one a nodeset")
		case p.Nodes.Max() >= cells:
			return contradiction("memoryBacking/hugepages: there is no cell %d", p.Nodes.Max())
		case !all.Intersect(p.Nodes).IsEmpty():
			return contradiction("memoryBacking/hugepages: cells %s have two sizes", all.Intersect(p.Nodes))
		}
		master = master || p.Nodes.IsEmpty()
		all = all.Union(p.Nodes)
	}
	return nil
}
