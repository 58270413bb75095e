package domainxml

import (
	"slices"

	"github.com/lodge-kvm/lodge/device"
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
	taken := map[place]string{}
	targets := map[string]bool{}
	for _, d := range c.d.Devices.Disks {
		if targets[d.Target] {
			return invalid("target %s is given to two disks", d.Target)
		}
		targets[d.Target] = true
		a, ok := d.Address.(device.Drive)
		if !ok {
			continue
		}
		if other, clash := taken[place{d.Bus, a}]; clash {
			return invalid("disks %s and %s have the same address: %s", other, d.Target, a)
		}
		taken[place{d.Bus, a}] = d.Target
		if a.Controller >= maxControllers {
			return invalid("disk %s is on controller %d; there can be %d", d.Target, a.Controller, maxControllers)
		}
	}
	// In the order that libvirt adds them, and without holes.
	for _, bus := range []string{"scsi", "ide", "fdc", "sata"} {
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

// maxSerialPorts is how many ports a virtio-serial controller has unless it
// says otherwise.
const maxSerialPorts = 31

// serialPorts gives channels and virtio consoles their ports, and adds the
// controllers for them. Port 0 is for a console.
func (c *completion) serialPorts() error {
	taken := map[device.VirtioSerial]bool{}
	var open []*device.Char
	highest := -1
	for _, d := range slices.Concat(c.d.Devices.Channels, c.d.Devices.Consoles) {
		if d.TargetType != "virtio" {
			continue
		}
		a, ok := d.Address.(device.VirtioSerial)
		switch {
		case d.Address == nil:
			open = append(open, d)
			continue
		case !ok || a.Controller >= maxControllers:
			return invalid("%s %q cannot sit at %s", d.Role, d.Name, d.Address)
		case taken[a]:
			return invalid("two devices have the address %s", a)
		}
		taken[a] = true
		highest = max(highest, int(a.Controller))
	}
	for _, d := range open {
		a := device.VirtioSerial{Port: 1}
		if d.Role == device.Console {
			a.Port = 0
		}
		for taken[a] {
			if a.Port++; a.Port >= c.serialLimit(a.Controller) {
				a.Controller, a.Port = a.Controller+1, 1
			}
		}
		taken[a] = true
		d.Address = a
		highest = max(highest, int(a.Controller))
	}
	for i := range highest + 1 {
		c.need("virtio-serial", uint(i), "")
	}
	return nil
}

func (c *completion) serialLimit(controller uint) uint {
	if d := c.controller("virtio-serial", controller); d != nil && d.Ports > 0 {
		return d.Ports
	}
	return maxSerialPorts
}
