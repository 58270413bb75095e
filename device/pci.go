package device

import (
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// Board is what of a machine decides where PCI devices sit.
type Board int

// The boards: one conventional bus, PCI Express, or no PCI at all.
const (
	NoPCI Board = iota
	I440FX
	Q35
)

// Spare root ports are kept free on a Q35 board, so that as many devices can be
// plugged in later. An Express device needs a port of its own, and a port cannot
// be added to a running guest.
const Spare = 4

// The places that QEMU's boards and libvirt's habit fix.
const (
	videoSlot35   = 0x01
	firstPortSlot = 0x01 // of root ports, when no video is there
	soundSlot35   = 0x1b
	usbSlot35     = 0x1d
	bridgeSlot35  = 0x1f
	videoSlotFX   = 0x02
	lastSlot      = 31
)

// slotKind is what a PCI device needs of its slot.
type slotKind int

const (
	nowhere      slotKind = iota // not a PCI device
	fixed                        // has its place on the board
	express                      // a root port of its own
	conventional                 // a conventional bus
	onRoot                       // the root bus itself: root ports
	onSwitch                     // the upper port of a switch: its lower ports
)

// AssignPCI gives every PCI device without an address one, in libvirt's order,
// adding the bridges and ports that are missing. Addresses that are there are
// kept. Two devices in one place are refused.
func (s *Set) AssignPCI(b Board) error {
	if b == NoPCI {
		return s.refusePCI()
	}
	s.growPCI(b)
	m, err := newPCIMap(s, b)
	if err != nil {
		return err
	}
	for _, d := range placementOrder(s) {
		if err := m.place(d, true); err != nil {
			return err
		}
	}
	if b == Q35 {
		return m.keepSpare()
	}
	return nil
}

// refusePCI finds devices that need a bus which the machine does not have. Those
// of the virtio kind have a bus of their own there.
func (s *Set) refusePCI() error {
	for _, d := range s.All() {
		_, said := d.Common().Address.(PCI)
		if said || needOf(d, Q35) != nowhere && !isVirtio(d) {
			return fault.New(fault.Unsupported, fault.Config, "this machine has no PCI bus for a %s", d.Kind())
		}
	}
	return nil
}

func isVirtio(d Device) bool {
	switch d := d.(type) {
	case *Disk:
		return d.Bus == "virtio"
	case *Controller:
		return d.Type == "virtio-serial" || strings.HasPrefix(d.Model, "virtio")
	case *NIC:
		return strings.HasPrefix(d.Model, "virtio")
	case *Input:
		return d.Bus == "virtio"
	case *Video:
		return d.Model == "virtio"
	case *Balloon, *RNG, *VSock:
		return true
	}
	return false
}

// growPCI adds the bridges that are missing below the highest bus that a device
// says it is on.
func (s *Set) growPCI(b Board) {
	highest, conventional := uint(0), map[uint]bool{}
	for _, d := range s.All() {
		if at, ok := d.Common().Address.(PCI); ok && at.Bus <= maxBus {
			highest = max(highest, at.Bus)
			conventional[at.Bus] = conventional[at.Bus] || at.Slot > 0
		}
	}
	for index := uint(1); index <= highest; index++ {
		if s.Controller("pci", index) != nil {
			continue
		}
		c := &Controller{Type: "pci", Index: index, Model: "pcie-root-port"}
		switch {
		case b == I440FX:
			c.Model = "pci-bridge"
		case conventional[index]:
			c.Model = "pcie-to-pci-bridge"
		}
		s.insertPCI(c)
	}
}

// PlugPCI gives one device that is about to be plugged into a running guest an
// address among those that can take it, and adds nothing.
func (s *Set) PlugPCI(d Device, b Board) error {
	if b == NoPCI {
		if needOf(d, Q35) != nowhere {
			return fault.New(fault.Unsupported, fault.Config, "this machine has no PCI bus to plug a %s into", d.Kind())
		}
		return nil
	}
	m, err := newPCIMap(s, b)
	if err != nil {
		return err
	}
	return m.place(d, false)
}

// placementOrder is the order in which libvirt gives addresses: the first video
// device, which has its place on the board, what others sit on, then
// interfaces, sound, other controllers, disks and the rest.
func placementOrder(s *Set) []Device {
	var all []Device
	bridges, others := splitControllers(s)
	all = gather(all, s.Videos[:min(1, len(s.Videos))])
	all = gather(all, bridges)
	all = gather(all, s.NICs)
	all = gather(all, s.Sounds)
	all = gather(all, others)
	all = gather(all, s.Disks)
	all = gather(all, s.HostDevices)
	if s.Balloon != nil {
		all = append(all, s.Balloon)
	}
	all = gather(all, s.RNGs)
	all = gather(all, s.Watchdogs)
	all = gather(all, s.Videos[min(1, len(s.Videos)):])
	all = gather(all, s.Inputs)
	all = gather(all, s.Serials)
	all = gather(all, s.Panics)
	if s.VSock != nil {
		all = append(all, s.VSock)
	}
	return all
}

func splitControllers(s *Set) (bridges, others []*Controller) {
	for _, c := range s.Controllers {
		if c.Type == "pci" {
			bridges = append(bridges, c)
		} else {
			others = append(others, c)
		}
	}
	return bridges, others
}

// needOf says what slot a device needs on a board.
func needOf(d Device, b Board) slotKind {
	kind := modern
	switch d := d.(type) {
	case *Disk:
		return virtioSlot(d.Bus == "virtio", d.Model, b)
	case *Controller:
		return controllerNeed(d, b)
	case *NIC:
		if strings.HasPrefix(d.Model, "virtio") {
			return virtioSlot(true, d.Model, b)
		}
		return kind(d.Model == "e1000e" || d.Model == "igb", b)
	case *Sound:
		switch d.Model {
		case "ich9":
			return kind(false, b)
		case "usb", "pcspk", "sb16":
			return nowhere
		}
		return kind(false, b)
	case *Video:
		if d.Model == "none" || d.Model == "ramfb" {
			return nowhere
		}
		return kind(d.Primary != On && d.Model == "virtio", b)
	case *HostDevice:
		if d.Type == "pci" {
			return kind(true, b)
		}
	case *Balloon:
		return virtioSlot(d.Model != "none", d.Model, b)
	case *RNG:
		return virtioSlot(true, d.Model, b)
	case *Watchdog:
		if d.Model == "i6300esb" {
			return kind(false, b)
		}
	case *Input:
		return virtioSlot(d.Bus == "virtio", d.Model, b)
	case *Char:
		if d.TargetType == "pci-serial" {
			return kind(false, b)
		}
	case *Panic:
		if d.Model == "pvpanic" {
			return kind(false, b)
		}
	case *VSock:
		return virtioSlot(true, d.Model, b)
	}
	return nowhere
}

// modern gives the slot of a device that is Express by nature, or is not.
func modern(isExpress bool, b Board) slotKind {
	if isExpress && b == Q35 {
		return express
	}
	return conventional
}

// virtioSlot gives the slot of a virtio device: a transitional one, which old
// drivers must find, is conventional.
func virtioSlot(is bool, model string, b Board) slotKind {
	if !is {
		return nowhere
	}
	return modern(!strings.HasSuffix(model, "-transitional") || strings.HasSuffix(model, "-non-transitional"), b)
}

func controllerNeed(c *Controller, b Board) slotKind {
	switch c.Type {
	case "pci":
		switch c.Model {
		case "pci-root", "pcie-root":
			return nowhere
		case "pcie-root-port", "dmi-to-pci-bridge", "pcie-expander-bus", "pci-expander-bus":
			return onRoot
		case "pcie-to-pci-bridge", "pcie-switch-upstream-port":
			return express
		case "pcie-switch-downstream-port":
			return onSwitch
		}
		return conventional
	case "usb":
		if c.Model == "none" {
			return nowhere
		}
		return modern(c.Model == "qemu-xhci" || c.Model == "nec-xhci", b)
	case "scsi":
		return virtioSlotOr(strings.HasPrefix(c.Model, "virtio-"), c.Model, b)
	case "virtio-serial":
		return virtioSlot(true, c.Model, b)
	case "sata":
		if b == Q35 && c.Index == 0 {
			return fixed
		}
		return conventional
	case "ide":
		if c.Index == 0 {
			return fixed
		}
	}
	return nowhere
}

func virtioSlotOr(virtio bool, model string, b Board) slotKind {
	if virtio {
		return virtioSlot(true, model, b)
	}
	return conventional
}
