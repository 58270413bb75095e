package qemu

import (
	"fmt"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// hostDevices adds devices of the host that only the guest uses.
func (b *builder) hostDevices() error {
	for _, h := range b.Definition.Devices.HostDevices {
		if err := b.hostDevice(h); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) hostDevice(h *device.HostDevice) error {
	props := properties{}
	driver := ""
	switch h.Type {
	case "pci":
		if h.Driver != "" && h.Driver != "vfio" {
			return unsupported("host devices with driver %q are not built; use vfio", h.Driver)
		}
		driver = "vfio-pci"
		at := h.PCI
		props.add("host", fmt.Sprintf("%04x:%02x:%02x.%x", at.Domain, at.Bus, at.Slot, at.Function))
	case "usb":
		driver = "usb-host"
		switch {
		case h.USBBus != 0 && h.USBDevice != 0:
			props.add("hostbus", h.USBBus)
			props.add("hostaddr", h.USBDevice)
		case h.USBVendor != 0 || h.USBProduct != 0:
			props.add("vendorid", h.USBVendor)
			props.add("productid", h.USBProduct)
		default:
			return invalid("a host device of type usb needs a vendor and product, or a bus and device")
		}
		switch h.GuestReset {
		case "":
		case "off":
			props.add("guest-reset", false)
		case "uninitialized":
			props.add("guest-reset", true)
		case "on":
			props.add("guest-reset", true)
			props.add("guest-resets-all", true)
		default:
			return invalid("a host device has the unknown guestReset %q", h.GuestReset)
		}
	default:
		return unsupported("host devices of type %q are not built", h.Type)
	}
	props.add("id", h.Alias)
	props.number("bootindex", b.boot.of(h))
	if err := b.place(&props, &h.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

// watchdogActions are QEMU's words for the action of an expired watchdog.
var watchdogActions = map[string]string{
	"reset": "reset", "shutdown": "shutdown", "poweroff": "poweroff", "pause": "pause", "none": "none", "inject-nmi": "inject-nmi",
}

func (b *builder) watchdogs() error {
	all := b.Definition.Devices.Watchdogs
	for _, w := range all {
		if w.Action != all[0].Action {
			return unsupported("all watchdogs of a domain must have the same action")
		}
		if err := b.watchdog(w); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return nil
	}
	action, ok := watchdogActions[all[0].Action]
	if !ok {
		return unsupported("watchdog action %q is not built; use reset, shutdown, poweroff, pause, none or inject-nmi", all[0].Action)
	}
	b.addWords("-action", "watchdog="+action)
	return nil
}

func (b *builder) watchdog(w *device.Watchdog) error {
	switch w.Model {
	case "itco": // it is on the board; its action must be permitted
		if b.board != q35 {
			return unsupported("only machine type q35 has a watchdog of model itco")
		}
		b.addWords("-global", "ICH9-LPC.noreboot=off")
		return nil
	case "i6300esb", "ib700":
	default:
		return unsupported("watchdogs of model %q are not built", w.Model)
	}
	props := properties{{"id", w.Alias}}
	if err := b.place(&props, &w.Info); err != nil {
		return err
	}
	return b.addDevice(w.Model, props)
}

func (b *builder) balloon() error {
	if d := b.Definition.Devices.Balloon; d != nil && d.Model != "none" {
		return b.balloonOf(d)
	}
	return nil
}

func (b *builder) balloonOf(d *device.Balloon) error {
	props := properties{{"id", d.Alias}}
	props.toggle("deflate-on-oom", d.AutoDeflate)
	props.toggle("free-page-reporting", d.FreePageReporting)
	driver, err := b.virtio("virtio-balloon", d.Model, 0, d.IOMMU, d.ATS, d.Packed, &props)
	if err != nil {
		return err
	}
	if err := b.place(&props, &d.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

func (b *builder) rngs() error {
	for _, r := range b.Definition.Devices.RNGs {
		if err := b.rng(r); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) rng(r *device.RNG) error {
	id := "obj" + r.Alias
	var err error
	switch r.Backend {
	case "random":
		err = b.addObject("rng-random", id, property{"filename", r.Path})
	case "builtin":
		err = b.addObject("rng-builtin", id)
	case "egd":
		if r.Char == nil {
			return invalid("an rng of backend egd needs a source")
		}
		back := ""
		if back, err = b.backend(r.Alias, r.Char, ""); err == nil {
			err = b.addObject("rng-egd", id, property{"chardev", back})
		}
	default:
		err = unsupported("rng backends of model %q are not built", r.Backend)
	}
	if err != nil {
		return err
	}
	props := properties{{"rng", id}, {"id", r.Alias}}
	if r.RateBytes > 0 {
		props.add("max-bytes", r.RateBytes)
		period := r.RatePeriod
		if period == 0 {
			period = 1000
		}
		props.add("period", period)
	}
	driver, err := b.virtio("virtio-rng", r.Model, 0, r.IOMMU, r.ATS, r.Packed, &props)
	if err != nil {
		return err
	}
	if err := b.place(&props, &r.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

// panicPort is the port where guests expect the ISA device that they report a panic to.
const panicPort = 0x505

func (b *builder) panics() error {
	for _, p := range b.Definition.Devices.Panics {
		props := properties{{"id", p.Alias}}
		driver := ""
		switch p.Model {
		case "hyperv": // a property of the processor
			continue
		case "isa":
			driver = "pvpanic"
			port := uint(panicPort)
			if at, ok := p.Address.(device.ISA); ok && at.IOBase != 0 {
				port = at.IOBase
			}
			props.add("ioport", port)
		case "pvpanic":
			driver = "pvpanic-pci"
			if err := b.place(&props, &p.Info); err != nil {
				return err
			}
		default:
			return unsupported("panic devices of model %q are not built", p.Model)
		}
		if err := b.addDevice(driver, props); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) vsock() error {
	if v := b.Definition.Devices.VSock; v != nil {
		return b.vsockOf(v)
	}
	return nil
}

func (b *builder) vsockOf(v *device.VSock) error {
	if v.CID < firstCID && !b.dryRun {
		return invalid("a vsock needs a context id of %d or more, not %d", firstCID, v.CID)
	}
	props := properties{{"id", v.Alias}, {"guest-cid", max(v.CID, firstCID)}}
	if b.VSock != nil {
		props.add("vhostfd", b.passFile(b.VSock, "vhostfd-"+v.Alias))
	}
	driver, err := b.virtio("vhost-vsock", v.Model, 0, v.IOMMU, v.ATS, v.Packed, &props)
	if err != nil {
		return err
	}
	if err := b.place(&props, &v.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}
