package domain

import (
	"fmt"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// claims are the names, addresses and roles that devices of a guest have, and that only one device can have. A map,
// so that the cost for each device does not grow with their number.
type claims map[claim]bool

// claim is one thing that only one device of a guest can have or be.
type claim struct{ what, value string }

// add records the claims of a device, and refuses one that another device has already.
func (c claims) add(dev device.Device) error {
	switch d := dev.(type) {
	case *device.Controller:
		return c.addController(d)
	case *device.HostDevice:
		return c.addHostDevice(d)
	case *device.TPM:
		if c.taken("tpm", "") {
			return unsupported("a guest has one TPM; leave the second out")
		}
	case *device.Panic:
		if c.taken("panic", d.Model) {
			return invalid("two panic devices have model %s; leave one out", d.Model)
		}
	case *device.Watchdog:
		if c.taken("watchdog", "") {
			return unsupported("a guest has one watchdog; leave the second out")
		}
	case *device.Memory:
		if at, _ := d.Address.(device.DIMM); at.Base != 0 && c.taken("memory base", fmt.Sprint(at.Base)) {
			return unsupported("two memory devices have the base 0x%x; leave one out", at.Base)
		}
	case *device.Audio:
		if c.taken("audio", fmt.Sprint(d.ID)) {
			return invalid("two audio devices have the id %d; give each its own", d.ID)
		}
	}
	return nil
}

// taken says whether a device claimed this before, and records the claim.
func (c claims) taken(what, value string) bool {
	k := claim{what, value}
	before := c[k]
	c[k] = true
	return before
}

// addController refuses two controllers of one index. USB 1 companions share the
// index of their USB 2 controller, each kind once.
func (c claims) addController(d *device.Controller) error {
	if d.Type == "usb" {
		return c.addUSB(d)
	}
	if d.Index != device.NoIndex && c.taken(d.Type, fmt.Sprint(d.Index)) {
		return invalid("two %s controllers have the index %d; give each its own", d.Type, d.Index)
	}
	return nil
}

func (c claims) addUSB(d *device.Controller) error {
	none, some := c[claim{"usb", "none"}], c[claim{"usb", "some"}]
	if d.Model == "none" {
		none = none || some
		c[claim{"usb", "none"}] = true
	}
	c[claim{"usb", "some"}] = true
	if none {
		return contradiction("a USB controller of model none takes USB out of the guest; leave it out, or the other USB controllers")
	}
	part := ""
	if d.HasMaster {
		part = fmt.Sprint("/", d.Model, d.MasterStart)
	}
	if d.Index != device.NoIndex && c.taken("usb", fmt.Sprint(d.Index)+part) {
		return invalid("two USB controllers have the index %d; give each its own", d.Index)
	}
	return nil
}

// addHostDevice refuses to give one device of the host twice. A USB device that is
// named by its ids alone is any device with those ids.
func (c claims) addHostDevice(d *device.HostDevice) error {
	clash := false
	ids := fmt.Sprintf("%04x:%04x", d.USBVendor, d.USBProduct)
	switch {
	case d.Type == "pci":
		at := d.PCI
		at.Multifunction = device.Unset
		clash = c.taken("host pci", at.String())
	case d.USBBus != 0 || d.USBDevice != 0:
		clash = c.taken("host usb", fmt.Sprintf("%d/%d", d.USBBus, d.USBDevice)) || c[claim{"host usb any", ids}]
		if d.USBVendor != 0 {
			c[claim{"host usb one", ids}] = true
		}
	case d.USBVendor != 0:
		clash = c.taken("host usb any", ids) || c[claim{"host usb one", ids}]
	}
	if clash {
		return invalid("two host devices of type %s are the same device of the host; leave one out", d.Type)
	}
	return nil
}

// checkMasters refuses USB 1 companions whose USB 2 controller is missing.
func checkMasters(list []*device.Controller) error {
	masters := map[uint]bool{}
	for _, d := range list {
		if d.Type == "usb" && !d.HasMaster {
			masters[d.Index] = true
		}
	}
	for _, d := range list {
		if d.Type == "usb" && d.HasMaster && !masters[d.Index] {
			return contradiction("USB controller %d: model %s is a companion, and there is no USB 2 controller of index %d; add one of model ich9-ehci1", d.Index, d.Model, d.Index)
		}
	}
	return nil
}

// checkVideos refuses graphics adapters that cannot be combined.
func checkVideos(list []*device.Video) error {
	for i, v := range list {
		switch {
		case v.Model == "none" && len(list) > 1:
			return unsupported("a video device of model none says that there is no other; leave it out, or the others")
		case i > 0 && v.Primary == device.On:
			return unsupported("two video devices are primary; make one")
		case v.Model == "none", v.Model == "qxl", v.Model == "virtio":
		case i > 0:
			return unsupported("video model %s can be the primary device only; a second one is qxl or virtio", v.Model)
		}
	}
	return nil
}
