package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
)

// checkHostDevices refuses, before anything is made, devices of the host that
// QEMU could not take.
func (l *launching) checkHostDevices(context.Context) error {
	for _, d := range l.run.def.Devices.HostDevices {
		if err := passable(l.g.reg.Kernel, d); err != nil {
			return err
		}
	}
	return nil
}

// passable says why a device of the host cannot be given to a guest. Lodge takes
// no device from the driver that the host runs it with: that is left to whoever
// knows what else the host does with it.
func passable(root kernel.Root, d *device.HostDevice) error {
	if d.Type != "pci" {
		return nil
	}
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
