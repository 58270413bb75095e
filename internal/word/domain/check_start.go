package domain

import (
	"cmp"
	"math"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// CheckStart refuses definitions that libvirt accepts and QEMU cannot start. Call it at
// each start. Unlike QEMU's own error, it says what to change in the definition.
func (d *Definition) CheckStart() error {
	if d.OS.Initrd != "" && d.OS.Kernel == "" {
		return unsupported("os/initrd needs an os/kernel; add one, or leave it out")
	}
	if err := cmp.Or(checkAbsolute("os/loader", d.OS.Loader.Path), checkVariablePaths(&d.OS)); err != nil { // a stored one may be older than the rule
		return err
	}
	if m := d.MemTune; m.SwapHardLimit != 0 && m.SwapHardLimit < m.HardLimit {
		return unsupported("memtune/swap_hard_limit bounds memory and swap together: it is at least hard_limit, %d KiB, not %d KiB", m.HardLimit>>10, m.SwapHardLimit>>10)
	}
	for _, c := range d.CPU.Cells {
		if c.Memory == 0 {
			return unsupported("cpu/numa/cell %d has no memory; give it some", c.ID)
		}
	}
	for _, disk := range d.Devices.Disks {
		if disk.RotationRate > math.MaxUint16 {
			return unsupported("disk %s: rotation_rate is at most %d, not %d", disk.Target, math.MaxUint16, disk.RotationRate)
		}
		if err := checkBursts(disk); err != nil {
			return err
		}
	}
	return checkPorts(&d.Devices)
}

// burst is a bound of a disk's traffic, the higher bound for bursts, and their length.
type burst struct {
	name               string
	bound, most, until uint64
}

func checkBursts(d *device.Disk) error {
	t := d.Tune
	if t == nil {
		return nil
	}
	for _, b := range []burst{
		{"total_bytes_sec", t.TotalBytes, t.TotalBytesMax, t.TotalBytesMaxLen},
		{"read_bytes_sec", t.ReadBytes, t.ReadBytesMax, t.ReadBytesMaxLen},
		{"write_bytes_sec", t.WriteBytes, t.WriteBytesMax, t.WriteBytesMaxLen},
		{"total_iops_sec", t.TotalIOPS, t.TotalIOPSMax, t.TotalIOPSMaxLen},
		{"read_iops_sec", t.ReadIOPS, t.ReadIOPSMax, t.ReadIOPSMaxLen},
		{"write_iops_sec", t.WriteIOPS, t.WriteIOPSMax, t.WriteIOPSMaxLen},
	} {
		switch {
		case b.most != 0 && b.bound == 0:
			return unsupported("disk %s: iotune %s_max needs %s; add that", d.Target, b.name, b.name)
		case b.most != 0 && b.most < b.bound:
			return unsupported("disk %s: iotune %s_max %d is below %s %d", d.Target, b.name, b.most, b.name, b.bound)
		case b.until != 0 && b.most == 0:
			return unsupported("disk %s: iotune %s_max_length needs %s_max; add that", d.Target, b.name, b.name)
		}
	}
	return nil
}

// maxParallels is how many parallel ports a PC has.
const maxParallels = 3

// firstVNCPort is the port of VNC's display 0.
const firstVNCPort = 5900

func checkPorts(s *device.Set) error {
	if len(s.Parallels) > maxParallels {
		return unsupported("%d parallel ports: a machine has %d; leave the others out", len(s.Parallels), maxParallels)
	}
	names := map[string]bool{}
	for _, c := range s.Channels {
		if c.Name != "" && names[c.Name] {
			return unsupported("two channels have the name %s; give each its own", c.Name)
		}
		names[c.Name] = true
	}
	for _, g := range s.Graphics {
		if g.Type == "vnc" && g.Port > 0 && (g.Port < firstVNCPort || g.Port > math.MaxUint16) {
			return unsupported("a VNC display has a port from %d to %d, not %d", firstVNCPort, math.MaxUint16, g.Port)
		}
	}
	return nil
}
