package domainxml

import "github.com/lodge-kvm/lodge/internal/word/device"

// info describes what every device ends with.
func (n *node) info(i *device.Info) { n.infoWith(i, func() {}) }

// infoWith puts what only one device has between the alias and the address.
func (n *node) infoWith(i *device.Info, more func()) {
	n.in("boot", func(n *node) { positive(n, "order", &i.BootOrder) })
	n.in("acpi", func(n *node) { num(n, "index", &i.ACPIIndex) })
	n.in("alias", func(n *node) { n.str("name", &i.Alias) })
	more()
	object(n, "rom", &i.ROM, func(n *node, r *device.ROM) {
		n.yes("enabled", &r.Enabled)
		n.on("bar", &r.Bar)
		n.str("file", &r.File)
	})
	n.address(&i.Address)
}

func (n *node) address(p *device.Address) {
	if n.reading() {
		if c := n.child("address"); c != nil {
			*p = readAddress(c)
		}
		return
	}
	if *p == nil {
		return
	}
	c := n.add("address")
	writeAddress(c, *p)
	n.append(c)
}

func readAddress(n *node) device.Address {
	switch kind := n.e.Attr("type"); kind {
	case "pci":
		if n.e.Attr("slot") == "" && n.e.Attr("bus") == "" {
			n.ignore("") // says only that it is a PCI device: the slot is still to be chosen
			return nil
		}
		var a device.PCI
		describePCI(n, &a)
		return a
	case "drive":
		var a device.Drive
		describeDrive(n, &a)
		return a
	case "usb":
		var a device.USB
		describeUSB(n, &a)
		return a
	case "virtio-serial":
		var a device.VirtioSerial
		describeVirtioSerial(n, &a)
		return a
	case "isa":
		var a device.ISA
		describeISA(n, &a)
		return a
	case "dimm":
		var a device.DIMM
		describeDIMM(n, &a)
		return a
	case "none", "":
		n.ignore("")
	default:
		n.oneOf("type", kind, []string{"pci", "drive", "usb", "virtio-serial", "isa", "dimm"})
	}
	return nil
}

func writeAddress(n *node, address device.Address) {
	switch a := address.(type) {
	case device.PCI:
		n.set("type", "pci")
		describePCI(n, &a)
	case device.Drive:
		n.set("type", "drive")
		describeDrive(n, &a)
	case device.USB:
		n.set("type", "usb")
		describeUSB(n, &a)
	case device.VirtioSerial:
		n.set("type", "virtio-serial")
		describeVirtioSerial(n, &a)
	case device.ISA:
		n.set("type", "isa")
		describeISA(n, &a)
	case device.DIMM:
		n.set("type", "dimm")
		describeDIMM(n, &a)
	}
}

func describePCI(n *node, a *device.PCI) {
	describePCIPlace(n, a)
	n.on("multifunction", &a.Multifunction)
}

// describePCIPlace is the address of a device on a host, too.
func describePCIPlace(n *node, a *device.PCI) {
	n.hex("domain", &a.Domain, 4)
	n.hex("bus", &a.Bus, 2)
	n.hex("slot", &a.Slot, 2)
	n.hex("function", &a.Function, 1)
	if a.Domain > 0xffff || a.Bus > 0xff || a.Slot > 0x1f || a.Function > 7 {
		n.invalid("", "%s is not a PCI address", a)
	}
}

func describeDrive(n *node, a *device.Drive) {
	always(n, "controller", &a.Controller)
	always(n, "bus", &a.Bus)
	always(n, "target", &a.Target)
	always(n, "unit", &a.Unit)
}

func describeUSB(n *node, a *device.USB) {
	always(n, "bus", &a.Bus)
	n.str("port", &a.Port)
}

func describeVirtioSerial(n *node, a *device.VirtioSerial) {
	always(n, "controller", &a.Controller)
	always(n, "bus", &a.Bus)
	always(n, "port", &a.Port)
}

func describeISA(n *node, a *device.ISA) {
	if n.reading() || a.IOBase > 0 {
		n.hex("iobase", &a.IOBase, 1)
	}
	if n.reading() || a.IRQ > 0 {
		n.hex("irq", &a.IRQ, 1)
	}
}
