package domainxml

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// buses tell the bus of a disk from the beginning of its target's name.
var buses = map[string]string{"fd": "fdc", "hd": "ide", "sd": "scsi", "vd": "virtio"}

func completeDisk(d *device.Disk) error {
	setDefault(&d.Device, "disk")
	if _, ok := device.TargetIndex(d.Target); !ok {
		return invalid("disk target %q is not a name such as vda, sdb or fda", d.Target)
	}
	if d.Bus == "" {
		d.Bus = buses[d.Target[:2]]
		if d.Device == "floppy" {
			d.Bus = "fdc"
		}
		if d.Bus == "" {
			return fault.New(fault.Unsupported, fault.Config, "disk target %q without a bus means one of Xen's or of UML's; say bus='virtio', or call it vda", d.Target)
		}
	}
	if d.Source == nil && d.Device != "cdrom" && d.Device != "floppy" {
		return invalid("disk %s has no source; only a cdrom or floppy drive may be empty", d.Target)
	}
	if d.Device == "cdrom" {
		d.ReadOnly = true
	}
	if d.Source == nil || d.Source.Volume == nil {
		setDefault(&d.Format, "raw")
	}
	if d.Address == nil {
		if a, ok := device.DriveAt(d.Bus, d.Target); ok {
			d.Address = a
		}
	}
	return nil
}

// maxControllers bounds the controllers that addresses can call for.
const maxControllers = 256

// drives adds the controllers that drives sit on, and finds those that clash.
func (c *completion) drives() error {
	type place struct {
		bus     string
		address device.Drive
	}
	disks := len(c.d.Devices.Disks)
	taken, targets := make(map[place]string, disks), make(map[string]bool, disks)
	for _, d := range c.d.Devices.Disks {
		if targets[d.Target] {
			return invalid("target %s is given to two disks", d.Target)
		}
		targets[d.Target] = true
	}
	for _, d := range c.d.Devices.Disks {
		if err := checkDiskAddress(d); err != nil {
			return err
		}
		a, ok := d.Address.(device.Drive)
		if !ok {
			continue
		}
		if other, clash := taken[place{d.Bus, a}]; clash {
			return fault.New(fault.Unsupported, fault.Config, "disks %s and %s have the same address: %s", other, d.Target, a)
		}
		taken[place{d.Bus, a}] = d.Target
		if a.Controller >= maxControllers {
			return invalid("disk %s is on controller %d; there can be %d", d.Target, a.Controller, maxControllers)
		}
	}
	// In the order that libvirt adds them, and without holes.
	for _, bus := range []string{"scsi", "fdc", "ide", "sata"} {
		last := -1
		for p := range taken {
			if p.bus == bus {
				last = max(last, int(p.address.Controller))
			}
		}
		for i := range last + 1 {
			c.need(bus, uint(i), "")
		}
	}
	return nil
}

// checkDiskAddress refuses an address of a kind that the bus of a disk does not have.
func checkDiskAddress(d *device.Disk) error {
	ok := true
	switch d.Address.(type) {
	case nil:
	case device.Drive:
		_, ok = device.DriveAt(d.Bus, d.Target)
	case device.USB:
		ok = d.Bus == "usb"
	case device.PCI:
		ok = d.Bus == "virtio"
	default:
		ok = false
	}
	if !ok {
		return fault.New(fault.Unsupported, fault.Config, "disk %s is on bus %s and cannot be at %s", d.Target, d.Bus, d.Address)
	}
	return nil
}
