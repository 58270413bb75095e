package qemu

import (
	"strconv"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// memory adds the guest's RAM: one backend, or one for each of its NUMA cells.
func (b *builder) memory() error {
	d := b.Definition
	if err := d.CheckMemory(); err != nil {
		return err
	}
	size := "size=" + strconv.FormatUint(ramSize(d)>>10, 10) + "k"
	if d.MemorySlots > 0 {
		size += ",slots=" + number(d.MemorySlots) + ",maxmem=" + strconv.FormatUint(d.MaxMemory>>10, 10) + "k"
	}
	b.addWords("-m", size)
	b.addWords("-overcommit", "mem-lock="+device.Bool(d.Backing.Locked).String())
	for id := range d.IOThreads {
		if err := b.addObject("iothread", "iothread"+number(id+1)); err != nil {
			return err
		}
	}
	if len(d.CPU.Cells) == 0 {
		m, _ := b.Capabilities.Machine(d.OS.Machine)
		return b.memoryBackend(m.DefaultRAMID, ramSize(d), b.ramOf(nil))
	}
	if b.board == microvm {
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
		if err := b.memoryBackend(id, wholeMiB(cell.Memory), b.ramOf(cell)); err != nil {
			return err
		}
		if err := b.writePending(); err != nil {
			return err
		}
		node := optionList{"node"}
		node.add("nodeid", number(cell.ID))
		node.raw(ranges("cpus", cell.CPUs)...)
		node.add("memdev", id)
		b.addOption("numa", node)
	}
	for _, cell := range d.CPU.Cells {
		for _, to := range cell.Distances {
			dist := optionList{"dist"}
			dist.add("src", number(cell.ID))
			dist.add("dst", number(to.Cell))
			dist.add("val", number(to.Value))
			b.addOption("numa", dist)
		}
	}
	return nil
}

// ram is the source of the guest's memory.
type ram struct {
	huge   bool
	pages  uint64 // bytes of a huge page; 0: the host's own huge size
	shared bool
	mode   string // of numatune
	nodes  topology.CPUSet
}

// ramOf returns the source of the memory of a cell, or of the whole guest.
func (b *builder) ramOf(cell *domain.Cell) ram {
	backing, tune := b.Definition.Backing, b.Definition.NUMA
	from := ram{shared: backing.Access == "shared", mode: tune.Mode, nodes: tune.Nodes}
	from.pages, from.huge = hugePages(backing, cell)
	if cell == nil {
		return from
	}
	if cell.MemAccess != "" {
		from.shared = cell.MemAccess == "shared"
	}
	for _, c := range tune.Cells {
		if c.Cell == cell.ID {
			from.mode, from.nodes = c.Mode, c.Nodes
		}
	}
	return from
}

// memoryBackend makes memory of the guest. Huge pages need no file system: the
// kernel gives them to an anonymous file.
func (b *builder) memoryBackend(id string, size uint64, from ram) error {
	backing := b.Definition.Backing
	kind, props := "memory-backend-ram", properties{}
	switch {
	case from.huge || backing.Source == "memfd":
		kind = "memory-backend-memfd"
		if from.huge {
			props.add("hugetlb", true)
			if from.pages > 0 {
				props.add("hugetlbsize", from.pages)
			}
		}
	case backing.Source == "file":
		return unsupported("memoryBacking/source/@type file is not built; use memfd")
	}
	if from.shared || kind != "memory-backend-ram" {
		props.add("share", from.shared)
	}
	if from.huge || backing.Allocation == "immediate" {
		props.add("prealloc", true)
		props.number("prealloc-threads", backing.AllocThreads)
	}
	props.add("size", size)
	if err := from.bind(&props); err != nil {
		return err
	}
	return b.addObject(kind, id, props...)
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

// bind says from which of the host's nodes the memory comes. A restrictive mode
// binds nothing here: the guest's control group does.
func (from ram) bind(props *properties) error {
	if from.nodes.IsEmpty() || from.mode == "restrictive" {
		return nil
	}
	policy, ok := policies[from.mode]
	if from.mode != "" && !ok {
		return unsupported("numatune mode %q is not built", from.mode)
	}
	if policy == "" {
		policy = "bind"
	}
	numbers := make([]int, 0, from.nodes.Len())
	for n := range from.nodes.All() {
		numbers = append(numbers, n)
	}
	props.add("host-nodes", numbers)
	props.add("policy", policy)
	return nil
}
