package domain

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Check refuses a definition that is not consistent, with the kinds of
// error that libvirt uses for the same: values that contradict each other,
// options that a device does not have, and devices that a guest has at most once.
//
// Call it when a user defines, starts or changes a guest, after the defaults
// are filled in. Definitions from the store are not checked, so that a rule
// that is added later loses no guest. Its cost is linear in the size of d.
func (d *Definition) Check() error {
	for _, step := range []func(*Definition) error{
		checkMemory, checkProcessors, checkCells, checkNUMATune, checkOS, checkSystem, checkClock, checkLabels,
	} {
		if err := step(d); err != nil {
			return err
		}
	}
	c := newDeviceCheck(d)
	taken := claims{}
	for _, dev := range d.Devices.All() {
		if err := c.device(dev); err != nil {
			return err
		}
		if err := taken.add(dev); err != nil {
			return err
		}
	}
	return c.together()
}

// CheckDevice is Check for one device that is added to the others. The others are
// not checked: they may be older than a rule.
func (d *Definition) CheckDevice(dev device.Device) error {
	if err := newDeviceCheck(d).device(dev); err != nil {
		return err
	}
	taken := claims{}
	for _, other := range d.Devices.All() {
		if other != dev {
			_ = taken.add(other) // two others may clash: they may be older than the rule
		}
	}
	if err := taken.add(dev); err != nil {
		return err
	}
	if v, is := dev.(*device.Video); is {
		return checkVideos(append(slices.Clone(d.Devices.Videos), v))
	}
	return nil
}

// deviceCheck holds the parts of a definition that the rules for single devices need.
type deviceCheck struct {
	d         *Definition
	spice     bool                    // there is a display of type spice
	noUSB     bool                    // a controller of model none disables USB
	audios    map[uint]bool           // the ids of the <audio> elements
	throttles map[string]*device.Disk // by the name of the group: its first disk
}

func newDeviceCheck(d *Definition) *deviceCheck {
	c := &deviceCheck{d: d, audios: map[uint]bool{}, throttles: map[string]*device.Disk{}}
	for _, g := range d.Devices.Graphics {
		c.spice = c.spice || g.Type == "spice"
	}
	for _, ctl := range d.Devices.Controllers {
		c.noUSB = c.noUSB || ctl.Type == "usb" && ctl.Model == "none"
	}
	for _, a := range d.Devices.Audios {
		c.audios[a.ID] = true
	}
	return c
}

func (c *deviceCheck) device(dev device.Device) error {
	if err := c.placed(dev); err != nil {
		return err
	}
	switch dev := dev.(type) {
	case *device.Disk:
		return c.disk(dev)
	case *device.Controller:
		return c.controller(dev)
	case *device.NIC:
		return checkNIC(dev)
	case *device.Char:
		return c.char(dev)
	case *device.Redir:
		return c.backend("redirdev", &dev.Backend, "")
	case *device.RNG:
		if dev.Char != nil {
			return c.backend("rng", dev.Char, "")
		}
		return nil
	case *device.Video:
		return checkVideo(dev)
	case *device.Graphics:
		return c.graphics(dev)
	case *device.Sound:
		return c.audio("sound", dev.AudioID)
	case *device.Audio:
		if dev.Type == "spice" && !c.spice {
			return unsupported("audio %d of type spice needs a display: add <graphics type='spice'/>, or use type none", dev.ID)
		}
		return nil
	case *device.Input:
		return checkInput(dev)
	case *device.HostDevice:
		return checkHostDevice(dev)
	case *device.TPM:
		if dev.Model == "tpm-crb" && dev.Version == "1.2" {
			return unsupported("a TPM of version 1.2 has no model tpm-crb; use model tpm-tis or version 2.0")
		}
		return nil
	case *device.VSock:
		if dev.Auto != device.On && dev.CID < firstCID {
			return unsupported("vsock: a guest's cid is %d or more, the lower ones are the host's; or use <cid auto='yes'/>", firstCID)
		}
		return nil
	default:
		return nil
	}
}

// firstCID is the lowest address of a guest on vsock.
const firstCID = 3

// together are the rules that compare all devices of a kind.
func (c *deviceCheck) together() error {
	if err := checkMasters(c.d.Devices.Controllers); err != nil {
		return err
	}
	return checkVideos(c.d.Devices.Videos)
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.XML, format, args...)
}

func unsupported(format string, args ...any) error {
	return fault.New(fault.Unsupported, fault.Config, format, args...)
}

// contradiction is the error for values that are valid alone and not together.
func contradiction(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.XMLDetail, format, args...)
}
