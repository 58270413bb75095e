package qemu

import (
	"strconv"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
)

// memory is the guest's RAM: one backend, or one for each of its NUMA cells.
func (b *builder) memory() error {
	d := b.Definition
	b.word("-m", "size="+strconv.FormatUint(ramSize(d)>>10, 10)+"k")
	b.word("-overcommit", "mem-lock="+device.Bool(d.Backing.Locked).String())
	for id := range d.IOThreads {
		if err := b.object("iothread", "iothread"+number(id+1)); err != nil {
			return err
		}
	}
	if len(d.CPU.Cells) == 0 {
		m, _ := b.Capabilities.Machine(d.OS.Machine)
		return b.memoryBackend(m.DefaultRAMID, ramSize(d), nil)
	}
	if b.machine == microvm {
		return unsupported("machine type microvm has no NUMA cells")
	}
	return b.cells()
}

// ramSize is the guest's memory in steps that QEMU can map.
func ramSize(d *domain.Definition) uint64 {
	if len(d.CPU.Cells) == 0 {
		return wholeMiB(d.Memory)
	}
	sum := uint64(0)
	for _, cell := range d.CPU.Cells {
		sum += wholeMiB(cell.Memory)
	}
	return sum
}

func wholeMiB(size uint64) uint64 { return (size + 1<<20 - 1) >> 20 << 20 }

func (b *builder) cells() error {
	d := b.Definition
	for i := range d.CPU.Cells {
		cell := &d.CPU.Cells[i]
		id := "ram-node" + number(cell.ID)
		if err := b.memoryBackend(id, wholeMiB(cell.Memory), cell); err != nil {
			return err
		}
		if err := b.flush(); err != nil {
			return err
		}
		node := list{"node"}
		node.add("nodeid", number(cell.ID))
		node.raw(ranges("cpus", cell.CPUs)...)
		node.add("memdev", id)
		b.option("numa", node)
	}
	for _, cell := range d.CPU.Cells {
		for _, to := range cell.Distances {
			dist := list{"dist"}
			dist.add("src", number(cell.ID))
			dist.add("dst", number(to.Cell))
			dist.add("val", number(to.Value))
			b.option("numa", dist)
		}
	}
	return nil
}

// memoryBackend makes the memory of a cell, or of the whole guest. Huge pages
// need no file system: the kernel gives them to an anonymous file.
func (b *builder) memoryBackend(id string, size uint64, cell *domain.Cell) error {
	backing := b.Definition.Backing
	pages, huge := hugePages(backing, cell)
	shared := backing.Access == "shared"
	if cell != nil {
		shared = cell.MemAccess == "shared" || cell.MemAccess == "" && shared
	}
	kind, props := "memory-backend-ram", properties{}
	switch {
	case huge || backing.Source == "memfd":
		kind = "memory-backend-memfd"
		if huge {
			props.add("hugetlb", true)
			if pages > 0 {
				props.add("hugetlbsize", pages)
			}
		}
	case backing.Source == "file":
		return unsupported("memory of source file is not built; use memfd")
	}
	if shared || kind != "memory-backend-ram" {
		props.add("share", shared)
	}
	if huge || backing.Allocation == "immediate" {
		props.add("prealloc", true)
		props.number("prealloc-threads", backing.AllocThreads)
	}
	props.add("size", size)
	if err := b.bindMemory(&props, cell); err != nil {
		return err
	}
	return b.object(kind, id, props...)
}

// hugePages finds the size of the pages of a cell; 0 is the host's own huge
// size.
func hugePages(backing domain.MemoryBacking, cell *domain.Cell) (size uint64, huge bool) {
	if !backing.HasHugePages {
		return 0, false
	}
	if len(backing.HugePages) == 0 {
		return 0, true
	}
	for _, p := range backing.HugePages {
		if cell != nil && p.Nodes.Contains(int(cell.ID)) {
			return p.Size, true
		}
	}
	for _, p := range backing.HugePages {
		if p.Nodes.IsEmpty() {
			return p.Size, true
		}
	}
	return 0, false
}

// policies of host memory, by libvirt's names.
var policies = map[string]string{"strict": "bind", "preferred": "preferred", "interleave": "interleave"}

// bindMemory says from which of the host's nodes the memory comes. A
// restrictive mode binds nothing here: the guest's control group does.
func (b *builder) bindMemory(props *properties, cell *domain.Cell) error {
	tune := b.Definition.NUMA
	mode, nodes := tune.Mode, tune.Nodes
	if cell != nil {
		for _, c := range tune.Cells {
			if c.Cell == cell.ID {
				mode, nodes = c.Mode, c.Nodes
			}
		}
	}
	if nodes.IsEmpty() || mode == "restrictive" {
		return nil
	}
	policy, ok := policies[mode]
	if mode != "" && !ok {
		return unsupported("numatune mode %q is not built", mode)
	}
	if policy == "" {
		policy = "bind"
	}
	numbers := make([]int, 0, nodes.Len())
	for n := range nodes.All() {
		numbers = append(numbers, n)
	}
	props.add("host-nodes", numbers)
	props.add("policy", policy)
	return nil
}
