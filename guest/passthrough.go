package guest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
)

// checkHostDevices refuses, before anything is made, devices of the host that
// QEMU could not take.
func (l *launching) checkHostDevices(context.Context) error {
	for _, d := range slices.Clone(l.run.def.Devices.HostDevices) {
		err := l.g.reg.findHostDevice(l.run.UUID, d)
		if missing := (*absence)(nil); errors.As(err, &missing) && l.mayLack(d.StartupPolicy, true) {
			l.run.def.Devices.Remove(d)
			l.run.log.Warn("a guest starts without a USB device of the host", "cause", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findHostDevice finds a device of the host for the guest of a UUID, and says why that cannot have it.
func (r *Registry) findHostDevice(uuid string, d *device.HostDevice) error {
	if d.Type != "usb" {
		return passable(r.Kernel, d)
	}
	if err := findUSB(r.Kernel, d); err != nil {
		return err
	}
	for _, g := range r.All() {
		v := g.View()
		if v.UUID == uuid || v.Active == nil {
			continue
		}
		for _, other := range v.Active.Devices.HostDevices {
			if other.Type == "usb" && other.USBBus == d.USBBus && other.USBDevice == d.USBDevice {
				return fault.New(fault.WrongState, fault.Domain, "USB device %s is in use by domain %q; detach it there first", usbName(d), v.Name)
			}
		}
	}
	return nil
}

// findUSB finds a USB device by what is said of it, and notes its address.
func findUSB(root kernel.Root, d *device.HostDevice) error {
	var found, moved []kernel.USBDevice
	for _, u := range root.USBDevices() {
		alike := d.USBVendor == 0 || uint(u.Vendor) == d.USBVendor && uint(u.Product) == d.USBProduct
		there := d.USBBus == 0 && d.USBDevice == 0 || uint(u.Bus) == d.USBBus && uint(u.Device) == d.USBDevice
		switch {
		case alike && there:
			found = append(found, u)
		case alike && d.USBFound == device.On:
			moved = append(moved, u)
		}
	}
	if len(found) == 0 {
		found = moved
	}
	switch len(found) {
	case 0:
		return absent(fault.New(fault.NotFound, fault.NodeDevice, "this host has no USB device %s", usbName(d)))
	case 1:
	default:
		return fault.New(fault.Failed, fault.NodeDevice, "this host has %d USB devices %s; say which one by <address bus='%d' device='%d'/> in its source",
			len(found), usbName(d), found[0].Bus, found[0].Device)
	}
	bus, number := uint(found[0].Bus), uint(found[0].Device)
	if bus != d.USBBus || number != d.USBDevice {
		d.USBBus, d.USBDevice, d.USBFound = bus, number, device.On
	}
	return nil
}

// usbName is what messages call a USB device: by its ids where they are said, by its address else.
func usbName(d *device.HostDevice) string {
	var words []string
	if d.USBVendor != 0 {
		words = append(words, fmt.Sprintf("%04x:%04x", d.USBVendor, d.USBProduct))
	}
	if d.USBBus != 0 || d.USBDevice != 0 {
		words = append(words, fmt.Sprintf("at bus %d, device %d", d.USBBus, d.USBDevice))
	}
	return strings.Join(words, " ")
}

// passable says why a device of the host cannot be given to a guest. Lodge takes
// no device from the driver that the host runs it with: that is left to whoever
// knows what else the host does with it.
func passable(root kernel.Root, d *device.HostDevice) error {
	at := kernel.PCIAddress{Domain: d.PCI.Domain, Bus: d.PCI.Bus, Slot: d.PCI.Slot, Function: d.PCI.Function}
	found, ok := root.PCIDevice(at)
	switch {
	case !ok:
		return fault.New(fault.NotFound, fault.NodeDevice, "host device %s: this host has no such PCI device", at)
	case found.Bridge:
		return fault.New(fault.Unsupported, fault.Config, "host device %s is a bridge, which cannot be passed through", at)
	case found.IOMMUGroup < 0:
		return fault.New(fault.Unsupported, fault.Config,
			"host device %s cannot be passed through: the host has no IOMMU for it; switch it on in the firmware and with intel_iommu=on or amd_iommu=on", at)
	case found.Driver != "vfio-pci":
		return fault.New(fault.Unsupported, fault.Config,
			"host device %s belongs to the driver %q and Lodge does not take it away: bind it to vfio-pci first, as with: driverctl set-override %s vfio-pci",
			at, found.Driver, at)
	}
	return nil
}
