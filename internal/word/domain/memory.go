package domain

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// maxMemorySlots is the most memory slots of QEMU's machines.
const maxMemorySlots = 256

// Add appends a device to its group. A memory module also adds to the guest's
// memory. The balloon takes nothing of that unless it is already inflated.
func (d *Definition) Add(dev device.Device) error {
	if err := d.Devices.Add(dev); err != nil {
		return err
	}
	if m, ok := dev.(*device.Memory); ok {
		if d.CurrentMemory == d.Memory {
			d.CurrentMemory += m.Size
		}
		d.Memory += m.Size
	}
	return nil
}

// Remove removes this device, by identity, and undoes the other effects of Add.
func (d *Definition) Remove(dev device.Device) {
	d.Devices.Remove(dev)
	if m, ok := dev.(*device.Memory); ok {
		d.Memory -= min(m.Size, d.Memory)
		d.CurrentMemory = min(d.CurrentMemory, d.Memory)
	}
}

// ModuleMemory is the memory of all modules.
func (d *Definition) ModuleMemory() (sum uint64) {
	for _, m := range d.Devices.Memories {
		sum += m.Size
	}
	return sum
}

// HostNodes are the nodes of the host that the guest's memory is bound to.
func (d *Definition) HostNodes() topology.CPUSet {
	nodes := d.NUMA.Nodes
	for _, c := range d.NUMA.Cells {
		nodes = nodes.Union(c.Nodes)
	}
	for _, m := range d.Devices.Memories {
		nodes = nodes.Union(m.Nodes)
	}
	return nodes
}

// Every guest's QEMU uses some memory beside the guest's: graphics adapters of common sizes, and
// the cache of TCG. These amounts are not counted.
const (
	usualGraphics = 256 << 20
	usualCache    = 1 << 30
)

// MemoryBeside is the memory in bytes that a guest may use beside its own, beyond the memory that every guest uses:
// for graphics adapters with memory that the guest may write to, and for a larger TCG translation cache.
func (d *Definition) MemoryBeside() uint64 {
	var graphics uint64
	for _, v := range d.Devices.Videos {
		graphics += adapterMemory(v)
	}
	cache := d.Features.TCGTBCache
	return graphics - min(graphics, usualGraphics) + cache - min(cache, usualCache)
}

// adapterMemory is the most memory in bytes that a guest can make QEMU use for a graphics adapter.
func adapterMemory(v *device.Video) uint64 {
	ram, vram := v.RAM, max(v.VRAM, v.VRAM64)
	switch v.Model {
	case "virtio":
		return 256 << 20 // QEMU's max_hostmem
	case "qxl": // has all of this also without these attributes
		ram = max(cmp.Or(ram, 64<<10), 2*min(cmp.Or(v.VGAMem, 16<<10), 256<<10))
		vram = max(cmp.Or(v.VRAM, 64<<10), v.VRAM64)
	}
	return wholeRAM(ram) + wholeRAM(vram)
}

// wholeRAM rounds KiB up to a power of two, as QEMU does.
func wholeRAM(kib uint) uint64 {
	const most = 1 << 30 // larger than any real amount; keeps sums from overflowing
	if kib == 0 {
		return 0
	}
	return 1 << bits.Len64(min(uint64(kib), most)<<10-1)
}

// CheckMemory says whether a guest can have the memory that it is defined to grow
// to, and the modules among its devices.
func (d *Definition) CheckMemory() error {
	switch slots, modules := d.MemorySlots, uint(len(d.Devices.Memories)); {
	case (d.MaxMemory == 0) != (slots == 0):
		return fault.New(fault.Invalid, fault.XML, "both maximum memory size and memory slot count must be specified")
	case slots == 0 && modules > 0:
		return fault.New(fault.Unsupported, fault.Config, "cannot use a memory device when the domain's maxMemory is not defined")
	case slots == 0:
		return nil
	case slots > maxMemorySlots:
		return fault.New(fault.Unsupported, fault.Config, "%d memory slots are more than the %d that a machine can have", slots, maxMemorySlots)
	case d.MaxMemory < d.Memory:
		return fault.New(fault.Invalid, fault.XML, "the domain's memory of %d KiB, with its modules, exceeds its maxMemory of %d KiB", d.Memory>>10, d.MaxMemory>>10)
	case len(d.CPU.Cells) == 0:
		return fault.New(fault.Unsupported, fault.Config, "at least one numa node has to be configured when enabling memory hotplug")
	case modules > slots:
		return fault.New(fault.Unsupported, fault.Config, "memory device count '%d' exceeds slots count '%d'", modules, slots)
	}
	for _, m := range d.Devices.Memories {
		if err := d.checkModule(m); err != nil {
			return err
		}
	}
	return nil
}

func (d *Definition) checkModule(m *device.Memory) error {
	at, _ := m.Address.(device.DIMM)
	switch {
	case m.Size == 0:
		return fault.New(fault.Invalid, fault.XML, "a memory device has no size")
	case at.Slot >= d.MemorySlots:
		return fault.New(fault.Unsupported, fault.Config, "memory device slot '%d' exceeds slots count '%d'", at.Slot, d.MemorySlots)
	case !slices.ContainsFunc(d.CPU.Cells, func(c Cell) bool { return c.ID == m.Cell }):
		return contradiction("cannot add a memory device to guest node '%d': the guest has only %d NUMA nodes", m.Cell, len(d.CPU.Cells))
	case m.PageSize > 0 && m.Size%m.PageSize != 0:
		return fault.New(fault.Invalid, fault.Config, "a memory device of %d KiB cannot be of pages of %d KiB", m.Size>>10, m.PageSize>>10)
	}
	return nil
}
