package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// TakeDevice claims a device. It refuses one that is claimed already, also by the same instance.
func TakeDevice(c *machine.DeviceClaims, at kernel.PCIAddress, by *machine.Instance) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	switch other := c.Held[at]; {
	case other != nil && other.Name == "":
		return fault.New(fault.Busy, fault.NodeDevice, "the driver of PCI device %s is just being changed; try again when that is over", at)
	case other != nil:
		return fault.New(fault.Busy, fault.NodeDevice, "PCI device %s is in use by domain '%s': detach it there, or shut that domain off first", at, other.Name)
	case c.Held == nil:
		c.Held = map[kernel.PCIAddress]*machine.Instance{}
	}
	c.Held[at] = by
	return nil
}

// DropDevice ends a claim. It does nothing if the instance has none.
func DropDevice(c *machine.DeviceClaims, at kernel.PCIAddress, by *machine.Instance) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Held[at] == by {
		delete(c.Held, at)
	}
}

// CheckHostDevice checks whether the guest with that UUID can have a host device. beside are the guest's
// other host devices. taken says that the device must be taken from the host's driver.
func CheckHostDevice(r *machine.Registry, uuid string, d *device.HostDevice, beside []*device.HostDevice) (taken bool, err error) {
	if d.Type != "usb" {
		return CheckPassthrough(r.Kernel, d, beside)
	}
	if err := FindUSB(r.Kernel, d); err != nil {
		return false, err
	}
	for _, g := range r.All() {
		v := g.View()
		if v.UUID == uuid || v.Active == nil {
			continue
		}
		for _, other := range v.Active.Devices.HostDevices {
			if other.Type == "usb" && other.USBBus == d.USBBus && other.USBDevice == d.USBDevice {
				return false, fault.New(fault.WrongState, fault.Domain, "USB device %s is in use by domain %q; detach it there first", usbName(d), v.Name)
			}
		}
	}
	return false, nil
}

// FindUSB finds a USB device by its ids or address, and stores its address in d.
func FindUSB(root kernel.Root, d *device.HostDevice) error {
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
		return asAbsence(fault.New(fault.NotFound, fault.NodeDevice, "this host has no USB device %s", usbName(d)))
	case 1:
	default:
		return fault.New(fault.Failed, fault.NodeDevice, "this host has %d USB devices %s; select one by <address bus='%d' device='%d'/> in its source",
			len(found), usbName(d), found[0].Bus, found[0].Device)
	}
	bus, number := uint(found[0].Bus), uint(found[0].Device)
	if bus != d.USBBus || number != d.USBDevice {
		d.USBBus, d.USBDevice, d.USBFound = bus, number, device.On
	}
	return nil
}

// usbName returns the name of a USB device in messages: by its ids if they are known, else by its address.
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

// HostAddress gives a host device's PCI address.
func HostAddress(d *device.HostDevice) kernel.PCIAddress {
	return kernel.PCIAddress{Domain: d.PCI.Domain, Bus: d.PCI.Bus, Slot: d.PCI.Slot, Function: d.PCI.Function}
}

// CheckPassthrough returns an error that says why a host device cannot be given to a guest beside the guest's
// others. taken says that it must be taken from the host's driver. Only a managed device is taken: of
// others Lodge cannot know how the host uses them.
func CheckPassthrough(root kernel.Root, d *device.HostDevice, beside []*device.HostDevice) (taken bool, err error) {
	at := HostAddress(d)
	found, err := passableFunction(root, at)
	if err != nil {
		return false, err
	}
	if found.Driver != kernel.VFIODriver && d.Managed != device.On {
		return false, fault.New(fault.Unsupported, fault.Config,
			"host device %s belongs to the driver %q, and the hostdev has no managed='yes' to detach it: add that, or run virsh nodedev-detach %s first",
			at, found.Driver, nodeName(at))
	}
	for _, peer := range found.IOMMUPeers {
		other, there := root.PCIDevice(peer)
		if peer == at || !there || other.Bridge || other.Driver == "" || other.Driver == kernel.VFIODriver || isTakenWith(beside, peer) {
			continue
		}
		return false, fault.New(fault.Unsupported, fault.Config,
			"host device %s cannot be passed through: the host uses %s (driver %q) of the same IOMMU group %d; pass that through, too, or run virsh nodedev-detach %s first",
			at, peer, other.Driver, found.IOMMUGroup, nodeName(peer))
	}
	return found.Driver != kernel.VFIODriver, nil
}

// CheckHotplugDevice is CheckHostDevice for a device that is attached to a running guest. It refuses a device
// that must be taken from a driver.
func CheckHotplugDevice(r *machine.Registry, uuid string, d *device.HostDevice) error {
	taken, err := CheckHostDevice(r, uuid, d, nil)
	if taken {
		err = fault.New(fault.Unsupported, fault.Config,
			"host device %s is taken from its driver only when a guest starts: run virsh nodedev-detach %s first", HostAddress(d), nodeName(HostAddress(d)))
	}
	return err
}

// passableFunction finds a PCI function and refuses one that no guest can have.
func passableFunction(root kernel.Root, at kernel.PCIAddress) (kernel.PCIDevice, error) {
	found, ok := root.PCIDevice(at)
	switch {
	case !ok:
		return found, fault.New(fault.NotFound, fault.NodeDevice, "host device %s: this host has no such PCI device", at)
	case found.Bridge:
		return found, fault.New(fault.Unsupported, fault.Config, "host device %s is a bridge, which cannot be passed through", at)
	case found.IOMMUGroup < 0:
		return found, fault.New(fault.Unsupported, fault.Config,
			"host device %s cannot be passed through: the host has no IOMMU for it; enable the IOMMU in the firmware and with intel_iommu=on or amd_iommu=on", at)
	}
	return found, nil
}

// isTakenWith reports whether the function is one of the guest's managed devices.
func isTakenWith(devices []*device.HostDevice, at kernel.PCIAddress) bool {
	return slices.ContainsFunc(devices, func(d *device.HostDevice) bool {
		return d.Type == "pci" && d.Managed == device.On && HostAddress(d) == at
	})
}

// nodeName returns libvirt's name for a PCI function.
func nodeName(at kernel.PCIAddress) string {
	return "pci_" + strings.NewReplacer(":", "_", ".", "_").Replace(at.String())
}

// driverPatience bounds how long a driver may take to release a device.
const driverPatience = 30 * time.Second

// DetachFromHost takes a PCI device from its driver, for use by guests. It stays detached until
// ReattachToHost or a reboot of the host.
func DetachFromHost(ctx context.Context, r *machine.Registry, sc scope.Scope, at kernel.PCIAddress) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return withUnusedDevice(ctx, r, at, func(ctx context.Context) error {
		found, err := passableFunction(r.Kernel, at)
		if err != nil || found.Driver == kernel.VFIODriver {
			return err
		}
		return r.Kernel.TakePCI(ctx, at)
	})
}

// ReattachToHost returns a PCI device to the host's driver.
func ReattachToHost(ctx context.Context, r *machine.Registry, sc scope.Scope, at kernel.PCIAddress) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return withUnusedDevice(ctx, r, at, func(ctx context.Context) error { return r.Kernel.ReturnPCI(ctx, at) })
}

// withUnusedDevice calls do with a device that no guest has. No guest can take it until do returns.
func withUnusedDevice(ctx context.Context, r *machine.Registry, at kernel.PCIAddress, do func(context.Context) error) error {
	nobody := &machine.Instance{}
	if err := TakeDevice(&r.Devices, at, nobody); err != nil {
		return err
	}
	defer DropDevice(&r.Devices, at, nobody)
	ctx, stop := context.WithTimeout(ctx, driverPatience)
	defer stop()
	return do(ctx)
}
