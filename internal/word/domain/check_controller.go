package domain

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func (c *deviceCheck) controller(d *device.Controller) error {
	if err := checkControllerOptions(d); err != nil {
		return err
	}
	if err := c.ioThread(d.IOThread); err != nil {
		return unsupported("%s controller %d: %v", d.Type, d.Index, err)
	}
	switch d.Type {
	case "pci":
		return c.pciController(d)
	case "usb":
		return checkUSBController(d)
	case "scsi":
		if d.Model == "auto" || d.Model == "buslogic" {
			return unsupported("SCSI controller %d: QEMU has no model %s; use virtio-scsi or lsilogic", d.Index, d.Model)
		}
	}
	return nil
}

// checkControllerOptions refuses options of virtio devices on other controllers.
func checkControllerOptions(d *device.Controller) error {
	scsi := d.Type == "scsi" && strings.HasPrefix(d.Model, "virtio-")
	if d.IOThread != 0 && !scsi {
		return invalid("%s controller %d: an iothread is for SCSI controllers of model virtio-scsi; leave it out", d.Type, d.Index)
	}
	name := ""
	switch {
	case scsi:
	case d.Queues != 0:
		name = "queues"
	case d.CmdPerLUN != 0:
		name = "cmd_per_lun"
	case d.MaxSectors != 0:
		name = "max_sectors"
	case d.IOEventFD != device.Unset:
		name = "ioeventfd"
	case d.Type != "virtio-serial" && d.EventIdx != device.Unset:
		name = "event_idx"
	case d.Type != "virtio-serial":
		name = virtioOption(d.IOMMU, d.ATS, d.Packed)
	}
	if name != "" {
		return unsupported("%s controller %d: %s is for virtio controllers; leave it out", d.Type, d.Index, name)
	}
	return nil
}

// maxXHCIPorts is the number of ports of each speed that QEMU's xHCI controllers have.
const maxXHCIPorts = 15

func checkUSBController(d *device.Controller) error {
	switch {
	case d.Ports > maxXHCIPorts && strings.HasSuffix(d.Model, "-xhci"):
		return unsupported("USB controller %d: model %s has at most %d ports, not %d; add a second controller", d.Index, d.Model, maxXHCIPorts, d.Ports)
	case d.Model == "qusb1" || d.Model == "qusb2":
		return unsupported("USB controller %d: model %s is Xen's; use qemu-xhci", d.Index, d.Model)
	}
	return nil
}

// pciModel is the set of options that a PCI controller of one model has.
type pciModel struct {
	devices                                []string // QEMU's devices for it
	chassisNr, chassis, bus, cell, hotplug bool
}

// pciModels are the PCI controllers of PCs.
var pciModels = map[string]pciModel{
	"pci-root":                    {hotplug: true},
	"pcie-root":                   {},
	"pci-bridge":                  {devices: []string{"pci-bridge"}, chassisNr: true},
	"dmi-to-pci-bridge":           {devices: []string{"i82801b11-bridge"}},
	"pcie-to-pci-bridge":          {devices: []string{"pcie-pci-bridge"}},
	"pcie-root-port":              {devices: []string{"ioh3420", "pcie-root-port"}, chassis: true, hotplug: true},
	"pcie-switch-upstream-port":   {devices: []string{"x3130-upstream"}},
	"pcie-switch-downstream-port": {devices: []string{"xio3130-downstream"}, chassis: true, hotplug: true},
	"pci-expander-bus":            {devices: []string{"pxb"}, bus: true, cell: true},
	"pcie-expander-bus":           {devices: []string{"pxb-pcie"}, bus: true, cell: true},
}

// onRoot are the controllers that only the machine's own bus takes.
var onRoot = map[string]bool{"dmi-to-pci-bridge": true, "pci-expander-bus": true, "pcie-expander-bus": true}

func isBelow(a device.Address) bool {
	at, is := a.(device.PCI)
	return is && at.Bus != 0
}

// maxPCIIndex is the highest index of a PCI controller: it is a bus's number.
const maxPCIIndex = 255

func (c *deviceCheck) pciController(d *device.Controller) error {
	m, known := pciModels[d.Model]
	if !known {
		return unsupported("PCI controller %d: model %q is not one of a PC; q35 has pcie-root-port, pc has pci-bridge", d.Index, d.Model)
	}
	root := d.Model == "pci-root" || d.Model == "pcie-root"
	switch {
	case root && d.Index != 0:
		return invalid("PCI controller %d: model %s is the machine's own and has index 0", d.Index, d.Model)
	case onRoot[d.Model] && isBelow(d.Address):
		return invalid("PCI controller %d: model %s is at bus 0, not at %s; leave its address out", d.Index, d.Model, d.Address)
	case root && d.Address != nil:
		return unsupported("PCI controller 0: model %s has no address; leave it out", d.Model)
	case !root && d.Index == 0:
		return unsupported("PCI controller 0: index 0 is the machine's own; number a %s from 1", d.Model)
	case d.Index > maxPCIIndex && d.Index != device.NoIndex:
		return unsupported("PCI controller %d: its index is at most %d", d.Index, maxPCIIndex)
	}
	if err := c.pciRoot(d); err != nil {
		return err
	}
	if d.PCI == nil {
		return nil
	}
	return c.pciTarget(d, m)
}

// pciRoot refuses a PCI root on a machine that has another one.
func (c *deviceCheck) pciRoot(d *device.Controller) error {
	switch q35, i440fx := c.d.OS.hasPCIe(), c.d.OS.isI440FX(); {
	case d.Model == "pci-root" && !i440fx, d.Model == "pcie-root" && !q35:
		return invalid("PCI controller 0: machine %s has not the model %s; leave it out", c.d.OS.Machine, d.Model)
	case d.Model == "pci-expander-bus" && !i440fx:
		return unsupported("PCI controller %d: model pci-expander-bus is for machine pc; use pcie-expander-bus", d.Index)
	case d.Model == "pcie-expander-bus" && !q35:
		return unsupported("PCI controller %d: model pcie-expander-bus is for machine q35; use pci-expander-bus", d.Index)
	case d.HasPCIHole64 && d.Model != "pci-root" && d.Model != "pcie-root":
		return unsupported("PCI controller %d: pcihole64 is for controller 0", d.Index)
	}
	return nil
}

// number is a numeric attribute of <target>, with its bounds.
type number struct {
	name        string
	value       *uint
	allowed     bool
	least, most uint
}

func (c *deviceCheck) pciTarget(d *device.Controller, m pciModel) error {
	t := d.PCI
	if t.ModelName != "" {
		fits := false
		for _, name := range m.devices {
			fits = fits || name == t.ModelName
		}
		if !fits {
			return unsupported("PCI controller %d: model %s is not made by QEMU's device %q; leave <model name> out", d.Index, d.Model, t.ModelName)
		}
	}
	for _, n := range []number{
		{"chassisNr", t.ChassisNr, m.chassisNr, 1, 255},
		{"chassis", t.Chassis, m.chassis, 0, 255},
		{"port", t.Port, m.chassis, 0, 255},
		{"busNr", t.BusNr, m.bus, 1, 254},
		{"index", t.Index, false, 0, 0},
	} {
		switch {
		case n.value == nil:
		case !n.allowed:
			return unsupported("PCI controller %d: a target of model %s has no %s; leave it out", d.Index, d.Model, n.name)
		case *n.value < n.least || *n.value > n.most:
			return unsupported("PCI controller %d: %s %d is not from %d to %d", d.Index, n.name, *n.value, n.least, n.most)
		}
	}
	switch {
	case t.HotPlug != device.Unset && !m.hotplug:
		return unsupported("PCI controller %d: a target of model %s has no hotplug; leave it out", d.Index, d.Model)
	case t.NUMANode == nil:
	case *t.NUMANode >= uint(len(c.d.CPU.Cells)):
		return invalid("PCI controller %d: there is no NUMA cell %d; the guest has %d", d.Index, *t.NUMANode, len(c.d.CPU.Cells))
	case !m.cell:
		return unsupported("PCI controller %d: only expander buses belong to a NUMA cell, not a %s", d.Index, d.Model)
	}
	return nil
}

// hasPCIe says that the machine's root is PCI Express.
func (o *OS) hasPCIe() bool { return o.Machine == "q35" || strings.HasPrefix(o.Machine, "pc-q35") }

// isI440FX says that the machine's root is conventional PCI.
func (o *OS) isI440FX() bool {
	return !o.hasPCIe() && (o.Machine == "" || o.Machine == "pc" || strings.HasPrefix(o.Machine, "pc-"))
}
