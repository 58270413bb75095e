package domain

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

const gib = 1 << 30

// withSockets is a guest of one GiB that can get up to four by two modules.
func withSockets() *Definition {
	return &Definition{
		Memory: gib, CurrentMemory: gib, MaxMemory: 4 * gib, MemorySlots: 2,
		CPU: CPU{Cells: []Cell{{ID: 0, Memory: gib}}},
	}
}

func module(size uint64, slot uint) *device.Memory {
	return &device.Memory{Info: device.Info{Address: device.DIMM{Slot: slot}}, Model: "dimm", Size: size}
}

func TestAdd_MemoryModules(t *testing.T) {
	d := withSockets()
	m := module(gib, 0)
	if err := d.Add(m); err != nil {
		t.Fatal(err)
	}
	if d.Memory != 2*gib || d.CurrentMemory != 2*gib {
		t.Errorf("with a module of one GiB the guest has %d, the balloon leaves %d", d.Memory, d.CurrentMemory)
	}
	d.CurrentMemory = gib / 2 // the balloon has taken some
	if err := d.Add(module(gib, 1)); err != nil {
		t.Fatal(err)
	}
	if d.Memory != 3*gib || d.CurrentMemory != gib/2 {
		t.Errorf("a balloon that left %d leaves %d after a module", gib/2, d.CurrentMemory)
	}
	d.CurrentMemory = d.Memory
	if d.Remove(m); d.Memory != 2*gib || d.CurrentMemory != 2*gib {
		t.Errorf("without the module the guest has %d, the balloon leaves %d", d.Memory, d.CurrentMemory)
	}
	if sum := d.ModuleMemory(); sum != gib {
		t.Errorf("its modules have %d", sum)
	}
}

func TestCheck_ImpossibleMemory(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Definition)
		kind   fault.Kind
		text   string
	}{
		"no slots":           {func(d *Definition) { d.MemorySlots = 0 }, fault.Invalid, "slot count"},
		"no maximum":         {func(d *Definition) { d.MaxMemory = 0 }, fault.Invalid, "maximum memory"},
		"neither":            {func(d *Definition) { d.MaxMemory, d.MemorySlots = 0, 0 }, fault.Unsupported, "maxMemory is not defined"},
		"many slots":         {func(d *Definition) { d.MemorySlots = 257 }, fault.Unsupported, "257"},
		"more than allowed":  {func(d *Definition) { d.MaxMemory = gib }, fault.Invalid, "exceeds its maxMemory of 1048576 KiB"},
		"no cells":           {func(d *Definition) { d.CPU.Cells = nil }, fault.Unsupported, "numa node"},
		"more than slots":    {func(d *Definition) { d.MemorySlots = 1; d.Devices.Memories = append(d.Devices.Memories, module(1, 0)) }, fault.Unsupported, "exceeds slots count '1'"},
		"no such slot":       {func(d *Definition) { d.Devices.Memories[0].Address = device.DIMM{Slot: 2} }, fault.Unsupported, "slot '2' exceeds"},
		"no such cell":       {func(d *Definition) { d.Devices.Memories[0].Cell = 1 }, fault.Invalid, "guest node '1'"},
		"of no size":         {func(d *Definition) { d.Devices.Memories[0].Size = 0 }, fault.Invalid, "no size"},
		"of half a page":     {func(d *Definition) { d.Devices.Memories[0].PageSize = 2 * gib }, fault.Invalid, "pages of 2097152 KiB"},
		"nothing but memory": {func(*Definition) {}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := withSockets()
			if err := d.Add(module(gib, 1)); err != nil {
				t.Fatal(err)
			}
			c.change(d)
			err := d.CheckMemory()
			if c.text == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || fault.Of(err) != c.kind || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v: %v", fault.Of(err), err)
			}
		})
	}
}

// One adapter of those that many guests have is free, and of several counts what QEMU gives each.
func TestMemoryBeside_Graphics(t *testing.T) {
	const mib = 1 << 20
	virtio, qxl := &device.Video{Model: "virtio"}, &device.Video{Model: "qxl"}
	for name, c := range map[string]struct {
		videos []*device.Video
		want   uint64
	}{
		"none":                   {nil, 0},
		"one virtio":             {[]*device.Video{virtio}, 0},
		"three virtio":           {[]*device.Video{virtio, virtio, virtio}, 512 * mib},
		"one qxl":                {[]*device.Video{qxl}, 0},
		"three of QEMU's sizes":  {[]*device.Video{qxl, qxl, qxl}, 128 * mib},
		"framebuffers":           {[]*device.Video{{Model: "qxl", RAM: 1 << 10, VRAM: 1 << 10, VGAMem: 256 << 10}}, 257 * mib},
		"more than QEMU gives":   {[]*device.Video{{Model: "qxl", RAM: 1 << 10, VRAM: 1 << 10, VGAMem: 1 << 30}}, 257 * mib},
		"sizes that are rounded": {[]*device.Video{{Model: "qxl", RAM: 129 << 10, VRAM: 64 << 10, VRAM64: 65 << 10}}, 128 * mib},
		"plain ones":             {[]*device.Video{{Model: "vga", VRAM: 16 << 10}, {Model: "none"}, {Model: "bochs", VRAM: 512 << 10}}, 272 * mib},
		"nothing there is":       {[]*device.Video{{Model: "vga", VRAM: 1 << 63}}, 1<<40 - 256*mib},
	} {
		d := &Definition{Devices: device.Set{Videos: c.videos}}
		if got := d.MemoryBeside(); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got/mib, c.want/mib)
		}
	}
}
