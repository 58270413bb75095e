package domain

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// What QEMU would refuse in its own words is refused before, in words that say what to change.
func TestCheckStart_Remedy(t *testing.T) {
	disk := func(change func(*device.Disk)) *Definition {
		d := &device.Disk{Target: "sda", Bus: "sata", Device: "disk", Tune: &device.IOTune{}}
		change(d)
		return &Definition{Devices: device.Set{Disks: []*device.Disk{d}}}
	}
	channel := func() *device.Char { return &device.Char{Role: device.Channel, Name: "a.b"} }
	for says, d := range map[string]*Definition{
		"initrd needs an os/kernel":          {OS: OS{Initrd: "/i"}},
		"os/loader needs an absolute path":   {OS: OS{Loader: Loader{Path: "etc/shadow"}}},
		"os/nvram needs an absolute path":    {OS: OS{NVRAM: NVRAM{Type: "block", Path: "dev/vda1"}}},
		"@template needs an absolute path":   {OS: OS{NVRAM: NVRAM{Template: "etc/shadow"}}},
		"at least hard_limit, 2 KiB":         {MemTune: MemTune{HardLimit: 2048, SwapHardLimit: 1024}},
		"cell 0 has no memory":               {CPU: CPU{Cells: []Cell{{}}}},
		"rotation_rate is at most 65535":     disk(func(d *device.Disk) { d.RotationRate = 70000 }),
		"total_bytes_sec_max needs":          disk(func(d *device.Disk) { d.Tune.TotalBytesMax = 5 }),
		"read_iops_sec_max 5 is below":       disk(func(d *device.Disk) { d.Tune.ReadIOPS, d.Tune.ReadIOPSMax = 50, 5 }),
		"write_iops_sec_max_length needs":    disk(func(d *device.Disk) { d.Tune.WriteIOPS, d.Tune.WriteIOPSMaxLen = 50, 5 }),
		"4 parallel ports":                   {Devices: device.Set{Parallels: make([]*device.Char, 4)}},
		"two channels have the name a.b":     {Devices: device.Set{Channels: []*device.Char{channel(), channel()}}},
		"a VNC display has a port from 5900": {Devices: device.Set{Graphics: []*device.Graphics{{Type: "vnc", Port: 5}}}},
	} {
		if err := d.CheckStart(); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if err := disk(func(d *device.Disk) { d.Tune.TotalBytes, d.Tune.TotalBytesMax, d.Tune.TotalBytesMaxLen = 5, 50, 3 }).CheckStart(); err != nil {
		t.Error(err)
	}
}

func TestHostNodes_MemoryAndModules(t *testing.T) {
	d := &Definition{NUMA: NUMATune{Cells: []CellTune{{Nodes: set(t, "1")}}, Nodes: set(t, "0")}}
	d.Devices.Memories = []*device.Memory{{Nodes: set(t, "7")}}
	if got := d.HostNodes().String(); got != "0-1,7" {
		t.Errorf("nodes %s", got)
	}
}

func set(t *testing.T, list string) topology.CPUSet {
	s, err := topology.ParseCPUSet(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
