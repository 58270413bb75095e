package qemu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// controllers adds the controllers that other devices sit on, each after the one that it
// sits on itself.
func (b *builder) controllers() error {
	all := b.Definition.Devices.Controllers
	made := map[*device.Controller]bool{}
	for _, c := range all {
		if c.Type == "pci" {
			if err := b.bridge(c, made); err != nil {
				return err
			}
		}
	}
	// Companions find their USB bus, and card readers their port, only when these are there.
	isMain := func(c *device.Controller) bool { return c.Type != "pci" && c.Type != "ccid" && !c.HasMaster }
	isCompanion := func(c *device.Controller) bool { return c.Type == "usb" && c.HasMaster }
	isReader := func(c *device.Controller) bool { return c.Type == "ccid" }
	for _, is := range []func(*device.Controller) bool{isMain, isCompanion, isReader} {
		for _, c := range all {
			if !is(c) {
				continue
			}
			if err := b.controller(c); err != nil {
				return err
			}
		}
	}
	for _, hub := range b.Definition.Devices.Hubs {
		if err := b.hub(hub); err != nil {
			return err
		}
	}
	return nil
}

// bridge adds a PCI controller, after the controllers above it.
func (b *builder) bridge(c *device.Controller, made map[*device.Controller]bool) error {
	if made[c] {
		return nil
	}
	made[c] = true // set before the ones above are added, so that a loop ends here
	if at, ok := c.Address.(device.PCI); ok {
		if above := b.controllersByKey[controllerKey{"pci", at.Bus}]; above != nil {
			if err := b.bridge(above, made); err != nil {
				return err
			}
		}
	}
	return b.controller(c)
}

func (b *builder) controller(c *device.Controller) error {
	driver, props, err := b.controllerProperties(c)
	if err != nil || driver == "" {
		return err
	}
	if err := b.place(&props, &c.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

// controllerProperties returns the device of a controller. Without a driver the
// controller is on the board.
func (b *builder) controllerProperties(c *device.Controller) (driver string, props properties, err error) {
	switch c.Type {
	case "pci":
		return pciController(c)
	case "usb":
		return b.usbController(c)
	case "scsi":
		return b.scsiController(c)
	case "virtio-serial":
		props.add("id", c.Alias)
		props.number("max_ports", c.Ports)
		props.number("vectors", c.Vectors)
		driver, err = b.virtio("virtio-serial", "", c.EventIdx, c.IOMMU, c.ATS, c.Packed, &props)
		return driver, props, err
	case "sata":
		if b.isBoardDrives(c) {
			return "", nil, nil
		}
		return "ich9-ahci", properties{{"id", c.Alias}}, nil
	case "ide":
		if b.board != i440fx || c.Index != 0 {
			return "", nil, unsupported("only machine type pc has an IDE controller, and only one")
		}
		return "", nil, nil
	case "fdc":
		switch {
		case c.Index != 0 || b.board == microvm:
			return "", nil, unsupported("machine type %s has no floppy controller %d", b.Definition.OS.Machine, c.Index)
		case b.board == q35:
			return "isa-fdc", properties{{"id", c.Alias}}, nil
		}
		return "", nil, nil
	case "ccid":
		return "usb-ccid", properties{{"id", c.Alias}}, nil
	}
	return "", nil, unsupported("controllers of type %q are not built", c.Type)
}

// bridges are the supported PCI bridges.
var bridges = []string{
	"pci-bridge", "i82801b11-bridge", "pcie-pci-bridge", "pcie-root-port", "ioh3420", "x3130-upstream", "xio3130-downstream", "pxb", "pxb-pcie",
}

func pciController(c *device.Controller) (string, properties, error) {
	if c.Model == "pci-root" || c.Model == "pcie-root" {
		return "", nil, nil
	}
	target := device.PCIController{}
	if c.PCI != nil {
		target = *c.PCI
	}
	driver := target.ModelName
	if !slices.Contains(bridges, driver) {
		return "", nil, unsupported("PCI controllers of model %q (%s) are not built", c.Model, driver)
	}
	props := properties{}
	set := func(name string, n *uint) {
		if n != nil {
			props.add(name, *n)
		}
	}
	set("chassis_nr", target.ChassisNr)
	set("port", target.Port)
	set("chassis", target.Chassis)
	set("bus_nr", target.BusNr)
	set("numa_node", target.NUMANode)
	props.add("id", c.Alias)
	props.toggle("hotplug", target.HotPlug)
	return driver, props, nil
}

// usbDrivers are the devices of USB controllers, with the number of ports of
// each.
var usbDrivers = map[string]string{
	"piix3-uhci": "piix3-usb-uhci", "piix4-uhci": "piix4-usb-uhci", "vt82c686b-uhci": "vt82c686b-usb-uhci",
	"ehci": "usb-ehci", "pci-ohci": "pci-ohci", "nec-xhci": "nec-usb-xhci", "qemu-xhci": "qemu-xhci",
	"ich9-ehci1": "ich9-usb-ehci1", "ich9-uhci1": "ich9-usb-uhci1", "ich9-uhci2": "ich9-usb-uhci2", "ich9-uhci3": "ich9-usb-uhci3",
}

func (b *builder) usbController(c *device.Controller) (string, properties, error) {
	if c.Model == "none" {
		return "", nil, nil
	}
	driver, ok := usbDrivers[c.Model]
	if !ok {
		return "", nil, unsupported("USB controllers of model %q are not built", c.Model)
	}
	props := properties{}
	switch {
	case c.HasMaster:
		props.add("masterbus", b.usbBus(c.Index))
		props.add("firstport", c.MasterStart)
		return driver, props, nil
	case c.Ports == 0:
	case strings.HasSuffix(c.Model, "-xhci"):
		props.add("p2", c.Ports)
		props.add("p3", c.Ports)
	default:
		return "", nil, unsupported("the number of ports of USB controller model %s cannot be chosen", c.Model)
	}
	props.add("id", c.Alias)
	return driver, props, nil
}

// scsiDrivers are the devices of SCSI controllers that are not virtio.
var scsiDrivers = map[string]string{
	"lsilogic": "lsi53c895a", "lsisas1068": "mptsas1068", "lsisas1078": "megasas", "vmpvscsi": "pvscsi",
	"am53c974": "am53c974", "dc390": "dc390",
}

func (b *builder) scsiController(c *device.Controller) (string, properties, error) {
	props := properties{{"id", c.Alias}}
	if driver, ok := scsiDrivers[c.Model]; ok {
		if c.IOThread != 0 || c.Queues != 0 {
			return "", nil, unsupported("SCSI controller model %s has no queues and iothreads", c.Model)
		}
		return driver, props, nil
	}
	suffix, ok := strings.CutPrefix(c.Model, "virtio")
	if !ok || suffix != "-scsi" && suffix != "-transitional" && suffix != "-non-transitional" {
		return "", nil, unsupported("SCSI controllers of model %q are not built; use virtio-scsi or lsilogic", c.Model)
	}
	if err := b.iothread(&props, c.IOThread); err != nil {
		return "", nil, err
	}
	props.number("num_queues", c.Queues)
	props.number("cmd_per_lun", c.CmdPerLUN)
	props.number("max_sectors", c.MaxSectors)
	props.toggle("ioeventfd", c.IOEventFD)
	model := c.Model
	if model == "virtio-scsi" {
		model = ""
	}
	driver, err := b.virtio("virtio-scsi", model, c.EventIdx, c.IOMMU, c.ATS, c.Packed, &props)
	return driver, props, err
}

// iothread binds a device to one of the guest's threads for input and output.
func (b *builder) iothread(props *properties, id uint) error {
	if id == 0 {
		return nil
	}
	if id > b.Definition.IOThreads {
		return invalid("iothread %d is not among the domain's %d", id, b.Definition.IOThreads)
	}
	props.add("iothread", "iothread"+number(id))
	return nil
}

// virtio returns the driver of a virtio device on the guest's kind of bus, and
// adds the options that all virtio devices have.
func (b *builder) virtio(name, model string, eventIdx, iommu, ats, packed device.Switch, props *properties) (string, error) {
	props.toggle("event_idx", eventIdx)
	props.toggle("iommu_platform", iommu)
	props.toggle("ats", ats)
	props.toggle("packed", packed)
	if b.board == isapc {
		return "", unsupported("machine type isapc has no PCI bus for a %s; use machine type pc or q35", name)
	}
	if b.board == microvm {
		if model != "" && model != "virtio" {
			return "", unsupported("virtio devices of machine type microvm have no model %q", model)
		}
		return name + "-device", nil
	}
	switch {
	case strings.HasSuffix(model, "-non-transitional"):
		return name + "-pci-non-transitional", nil
	case strings.HasSuffix(model, "-transitional"):
		return name + "-pci-transitional", nil
	}
	return name + "-pci", nil
}

// place adds the address of a device, on buses that have addresses of their own,
// and its option ROM.
func (b *builder) place(props *properties, info *device.Info) error {
	switch at := info.Address.(type) {
	case device.PCI:
		props.add("bus", b.busName(at.Bus))
		props.toggle("multifunction", at.Multifunction)
		slot := fmt.Sprintf("0x%x", at.Slot)
		if at.Function != 0 {
			slot += fmt.Sprintf(".0x%x", at.Function)
		}
		props.add("addr", slot)
		props.number("acpi-index", info.ACPIIndex)
	case device.USB:
		if at.Port != "" {
			props.add("bus", b.usbBus(at.Bus))
			props.add("port", at.Port)
		}
	case device.ISA:
		if at.IOBase != 0 {
			props.add("iobase", at.IOBase)
		}
		props.number("irq", at.IRQ)
	}
	if r := info.ROM; r != nil {
		if r.Enabled == device.Off {
			props.add("romfile", "")
			return nil
		}
		if r.Bar != device.Unset {
			props.add("rombar", map[bool]uint{true: 1, false: 0}[r.Bar == device.On])
		}
		props.text("romfile", r.File)
	}
	return nil
}

// controllerKey is the type and index that devices refer to a controller by.
type controllerKey struct {
	kind  string
	index uint
}

// controllersByKey maps the keys to controllers. For a USB controller it holds the main part.
func controllersByKey(s *device.Set) map[controllerKey]*device.Controller {
	seats := make(map[controllerKey]*device.Controller, len(s.Controllers))
	for _, c := range s.Controllers {
		at := controllerKey{c.Type, c.Index}
		if known := seats[at]; known == nil || known.HasMaster && !c.HasMaster {
			seats[at] = c
		}
	}
	return seats
}

// busName returns the name of the PCI bus with an index. The bus at the machine's root has a fixed name, whatever
// alias the definition gives to its controller.
func (b *builder) busName(index uint) string {
	c := b.controllersByKey[controllerKey{"pci", index}]
	switch {
	case c != nil && c.Model == "pcie-root":
		return "pcie.0"
	case c != nil && c.Model != "pci-root":
		return c.Alias
	}
	return fmt.Sprintf("pci.%d", index)
}

// usbBus is the first bus of a USB controller; companions share it.
func (b *builder) usbBus(index uint) string {
	if c := b.controllersByKey[controllerKey{"usb", index}]; c != nil && !c.HasMaster {
		return c.Alias + ".0"
	}
	return fmt.Sprintf("usb%d.0", index)
}

// isBoardDrives reports whether a controller is the one for drives that the machine has on its board.
func (b *builder) isBoardDrives(c *device.Controller) bool {
	return isBoardDrives(c, b.board == q35)
}

// controllerName returns QEMU's name of a controller that devices refer to. A controller on the board has a fixed
// name.
func (b *builder) controllerName(kind string, index uint) string {
	c := b.controllersByKey[controllerKey{kind, index}]
	switch {
	case c == nil:
		return fmt.Sprintf("%s%d", kind, index)
	case b.isBoardDrives(c):
		return "ide"
	}
	return c.Alias
}

func (b *builder) hub(h *device.Hub) error {
	if h.Type != "usb" {
		return unsupported("hubs of type %q are not built", h.Type)
	}
	props := properties{{"id", h.Alias}}
	if err := b.place(&props, &h.Info); err != nil {
		return err
	}
	return b.addDevice("usb-hub", props)
}
