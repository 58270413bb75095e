package device

import "strings"

// slots is a set of kinds of PCI slots: those that a bus offers, or those that a device fits into.
type slots uint16

const (
	conventional       slots = 1 << iota // a device of conventional PCI
	express                              // a PCI Express device
	forBridge                            // a pci-bridge
	forDMIBridge                         // a dmi-to-pci-bridge
	forExpressBridge                     // a pcie-to-pci-bridge
	forRootPort                          // a pcie-root-port
	forUpstream                          // the upper port of a switch
	forDownstream                        // a lower port of a switch
	forExpander                          // a pci-expander-bus
	forExpressExpander                   // a pcie-expander-bus

	// endpoints are devices that no bus hangs from.
	endpoints = conventional | express
)

// busModel describes the slots of one PCI controller model.
type busModel struct {
	// fits is the slot that the controller itself needs; none: it is soldered to the machine.
	fits   slots
	offers slots
	// automatic: endpoints without an address may be placed on the bus. On other buses they sit only with
	// a given address.
	automatic bool
	// hotplug: devices can be plugged in while the guest runs.
	hotplug bool
	// first and last are the slots of the bus.
	first, last uint
}

const lastSlot = 31

// busModels has the rules of each model. Slot 0 of a bridge is its own hot-plug controller.
var busModels = map[string]busModel{
	"pci-root":                    {0, conventional | forBridge | forExpander, true, true, 1, lastSlot},
	"pci-bridge":                  {forBridge, conventional | forBridge, true, true, 1, lastSlot},
	"pci-expander-bus":            {forExpander, conventional | forBridge, true, true, 0, lastSlot},
	"pcie-root":                   {0, express | forRootPort | forDMIBridge | forExpressExpander, false, false, 1, lastSlot},
	"dmi-to-pci-bridge":           {forDMIBridge, conventional | forBridge, false, false, 0, lastSlot},
	"pcie-to-pci-bridge":          {forExpressBridge, conventional | forBridge, true, true, 1, lastSlot},
	"pcie-root-port":              {forRootPort, express | forUpstream | forExpressBridge, true, true, 0, 0},
	"pcie-switch-upstream-port":   {forUpstream, forDownstream, false, false, 0, lastSlot},
	"pcie-switch-downstream-port": {forDownstream, express | forUpstream | forExpressBridge, true, true, 0, 0},
	"pcie-expander-bus":           {forExpressExpander, forRootPort | forDMIBridge, false, false, 0, lastSlot},
}

// slotsFor returns the kind of slot that a device needs on a board; none: it is no PCI device.
func slotsFor(d Device, b Board) slots {
	switch d := d.(type) {
	case *Disk:
		if d.Bus == "virtio" {
			return virtioSlot(d.Model, b)
		}
	case *Controller:
		return controllerSlot(d, b)
	case *NIC:
		if strings.HasPrefix(d.Model, "virtio") {
			return virtioSlot(d.Model, b)
		}
		return slotOf(d.Model == "e1000e" || d.Model == "igb", b)
	case *Sound:
		if d.Model != "usb" && d.Model != "pcspk" && d.Model != "sb16" {
			return conventional
		}
	case *Video:
		if d.Model != "none" && d.Model != "ramfb" {
			return slotOf(d.Model == "virtio" || d.Model == "bochs", b)
		}
	case *HostDevice:
		if d.Type == "pci" {
			return slotOf(true, b)
		}
	case *Balloon:
		if d.Model != "none" {
			return virtioSlot(d.Model, b)
		}
	case *RNG:
		return virtioSlot(d.Model, b)
	case *Watchdog:
		if d.Model == "i6300esb" {
			return conventional
		}
	case *Input:
		if d.Bus == "virtio" {
			return virtioSlot(d.Model, b)
		}
	case *Char:
		if d.TargetType == "pci-serial" {
			return conventional
		}
	case *Panic:
		if d.Model == "pvpanic" {
			return conventional
		}
	case *VSock:
		return virtioSlot(d.Model, b)
	}
	return 0
}

// slotOf returns the slot of a device that is of PCI Express by nature, or is not.
func slotOf(isExpress bool, b Board) slots {
	if isExpress && b == Q35 {
		return express
	}
	return conventional
}

// virtioSlot returns the slot of a virtio device. A transitional one, which old drivers must find, is
// conventional.
func virtioSlot(model string, b Board) slots {
	return slotOf(!strings.HasSuffix(model, "-transitional") || strings.HasSuffix(model, "-non-transitional"), b)
}

func controllerSlot(c *Controller, b Board) slots {
	switch c.Type {
	case "pci":
		return busModels[c.Model].fits
	case "usb":
		if c.Model != "none" {
			return slotOf(c.Model == "qemu-xhci" || c.Model == "nec-xhci", b)
		}
	case "scsi":
		if strings.HasPrefix(c.Model, "virtio-") {
			return virtioSlot(c.Model, b)
		}
		return conventional
	case "virtio-serial":
		return virtioSlot(c.Model, b)
	case "sata", "ide":
		return conventional
	}
	return 0
}
