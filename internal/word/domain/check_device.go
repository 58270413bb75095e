package domain

import (
	"math"
	"math/bits"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// placed refuses an address of a kind that the device cannot have, and USB
// devices of a guest without USB.
func (c *deviceCheck) placed(dev device.Device) error {
	info := dev.Common()
	bus := busOf(dev)
	at := kindOf(info.Address)
	if at, is := info.Address.(device.USB); is && strings.Count(at.Port, ".") >= maxHubs {
		return invalid("%s: port %s is behind %d hubs; USB has at most %d ports in a row", dev.Kind(), at.Port, strings.Count(at.Port, "."), maxHubs)
	}
	switch {
	case bus == "usb" && c.noUSB:
		return unsupported("%s on bus usb: the guest has no USB; leave <controller type='usb' model='none'/> out", dev.Kind())
	case at != "" && bus != "" && at != bus && (bus != "pci" || c.d.OS.hasPCI()):
		if bus == "no" {
			return unsupported("%s: one of this model has no address; leave it out", dev.Kind())
		}
		return unsupported("%s: its address is of type %s, not %s; leave it out", dev.Kind(), bus, at)
	case info.ACPIIndex != 0 && bus != "" && bus != "pci":
		return unsupported("%s: an acpi index is for PCI devices; leave it out", dev.Kind())
	case info.ROM == nil:
		return nil
	case bus != "" && bus != "pci":
		return unsupported("%s: a rom is for PCI devices; leave it out", dev.Kind())
	case info.ROM.Enabled == device.Off && (info.ROM.Bar != device.Unset || info.ROM.File != ""):
		return unsupported("%s: a rom that is not enabled has neither bar nor file; leave those out", dev.Kind())
	}
	return nil
}

// maxHubs is the most numbers in the port of a USB device, one for each hub on the way.
const maxHubs = 4

// kindOf names the kind of an address as documents do, "" for none.
func kindOf(a device.Address) string {
	switch a.(type) {
	case device.PCI:
		return "pci"
	case device.Drive:
		return "drive"
	case device.USB:
		return "usb"
	case device.VirtioSerial:
		return "virtio-serial"
	case device.ISA:
		return "isa"
	case device.DIMM:
		return "dimm"
	}
	return ""
}

// diskBuses are the kinds of address that disks have on each bus.
var diskBuses = map[string]string{
	"virtio": "pci", "usb": "usb", "ide": "drive", "sata": "drive", "scsi": "drive", "fdc": "drive",
}

// busOf returns the kind of address that a device has: "no" if it has none, and ""
// if another check covers it.
func busOf(dev device.Device) string {
	switch d := dev.(type) {
	case *device.Disk:
		return diskBuses[d.Bus]
	case *device.Input:
		return map[string]string{"ps2": "no", "usb": "usb", "virtio": "pci"}[d.Bus]
	case *device.Char:
		if d.Role == device.Serial {
			return map[string]string{"isa-serial": "isa", "pci-serial": "pci", "usb-serial": "usb"}[d.TargetType]
		}
	case *device.HostDevice:
		return d.Type
	case *device.Redir, *device.Hub:
		return "usb"
	case *device.Sound:
		return map[string]string{"usb": "usb", "ich6": "pci", "ich9": "pci", "ac97": "pci", "es1370": "pci"}[d.Model]
	case *device.Watchdog:
		return map[string]string{"i6300esb": "pci", "ib700": "no"}[d.Model]
	case *device.Panic:
		return map[string]string{"isa": "isa", "hyperv": "no"}[d.Model]
	case *device.Video:
		if d.Model == "ramfb" {
			return "no"
		}
		return "pci"
	case *device.NIC, *device.RNG, *device.VSock:
		return "pci"
	}
	return ""
}

// hasPCI says whether devices sit on PCI: those of microvm sit on a bus of their own.
func (o *OS) hasPCI() bool { return o.hasPCIe() || o.isI440FX() }

func checkNIC(d *device.NIC) error {
	if err := checkNICOptions(d); err != nil {
		return err
	}
	switch {
	case d.MTU != 0 && d.Type == "user":
		return unsupported("interface %s: type user has no mtu of its own; leave it out", d.MAC)
	case d.Isolated == device.On && d.Type != "network" && d.Type != "bridge":
		return unsupported("interface %s: isolated is for ports of a bridge, not type %s; leave it out", d.MAC, d.Type)
	case d.Managed == device.Off && d.Type != "ethernet":
		return unsupported("interface %s: managed='no' is for type ethernet, not %s; leave it out", d.MAC, d.Type)
	}
	for _, r := range []*device.Rate{d.Inbound, d.Outbound} {
		if r != nil && r.Average == 0 && r.Floor == 0 {
			return contradiction("interface %s: bandwidth needs an average", d.MAC)
		}
	}
	switch {
	case d.Outbound != nil && d.Outbound.Floor != 0:
		return unsupported("interface %s: floor is for inbound bandwidth; leave it out of outbound", d.MAC)
	case d.Inbound != nil && d.Inbound.Floor != 0 && d.Type != "network":
		return unsupported("interface %s: floor is for interfaces of type network; leave it out", d.MAC)
	}
	return nil
}

// checkNICOptions refuses options of virtio NICs on other models.
func checkNICOptions(d *device.NIC) error {
	if strings.HasPrefix(d.Model, "virtio") {
		for _, q := range []struct {
			name string
			size uint
		}{{"rx_queue_size", d.RxQueue}, {"tx_queue_size", d.TxQueue}} {
			if q.size != 0 && (bits.OnesCount(q.size) != 1 || q.size < 256 || q.size > 1024) {
				return unsupported("interface %s: %s is 256, 512 or 1024, not %d", d.MAC, q.name, q.size)
			}
		}
		return nil
	}
	if name := virtioOption(d.IOMMU, d.ATS, d.Packed); name != "" {
		return unsupported("interface %s: %s is for model virtio, not %s; leave it out", d.MAC, name, d.Model)
	}
	return nil
}

func checkVideo(d *device.Video) error {
	if err := checkVideoMemory(d); err != nil {
		return err
	}
	resolution := d.ResolutionX != 0 || d.ResolutionY != 0
	switch d.Model {
	case "none":
		return nil
	case "qxl", "virtio":
	default:
		if d.Heads > 1 {
			return unsupported("video model %s has one head, not %d; use model qxl or virtio", d.Model, d.Heads)
		}
		if d.Accel3D == device.On {
			return unsupported("video model %s has no accel3d; use model virtio", d.Model)
		}
	}
	if resolution && (d.Model == "cirrus" || d.Model == "ramfb" || d.Model == "vmvga") {
		return invalid("video model %s has no resolution to choose; leave it out, or use vga, bochs, qxl or virtio", d.Model)
	}
	return nil
}

// Bounds of a graphics adapter's memory in KiB.
const (
	leastVideoMemory = 1024
	mostVideoMemory  = math.MaxUint32 / 1024
)

func checkVideoMemory(d *device.Video) error {
	name := ""
	switch {
	case d.Model == "qxl":
	case d.RAM != 0:
		name = "ram"
	case d.VRAM64 != 0:
		name = "vram64"
	case d.VGAMem != 0:
		name = "vgamem"
	}
	switch {
	case name != "":
		return unsupported("video model %s has no %s: it is for model qxl; leave it out", d.Model, name)
	case (d.Model == "vga" || d.Model == "vmvga") && d.VRAM != 0 && d.VRAM < leastVideoMemory:
		return unsupported("video model %s: vram is at least %d KiB, not %d", d.Model, leastVideoMemory, d.VRAM)
	case d.Model != "qxl":
		return nil
	case d.VGAMem != 0 && (d.VGAMem < leastVideoMemory || bits.OnesCount(d.VGAMem) != 1):
		return unsupported("video model qxl: vgamem is a power of two from %d KiB, not %d", leastVideoMemory, d.VGAMem)
	case d.RAM > mostVideoMemory || d.VRAM > mostVideoMemory:
		return unsupported("video model qxl: ram and vram are at most %d KiB", mostVideoMemory)
	}
	return nil
}

func (c *deviceCheck) graphics(d *device.Graphics) error {
	for _, l := range d.Listens {
		if l.Type == "network" && l.Network == "" {
			return invalid("a display that listens in a network names it: add the attribute network")
		}
	}
	if d.Type == "vnc" && d.Connected != "" && d.Connected != "keep" {
		return unsupported("a VNC display keeps its clients when the password changes: connected is keep, not %s", d.Connected)
	}
	if d.Type != "vnc" {
		return nil
	}
	return c.audio("display", d.AudioID)
}

// audio refuses a reference to an <audio> element that does not exist.
func (c *deviceCheck) audio(what string, id uint) error {
	if id != 0 && !c.audios[id] {
		return invalid("a %s names audio %d, and there is no <audio id='%d'>", what, id, id)
	}
	return nil
}

func checkInput(d *device.Input) error {
	source := d.Type == "passthrough" || d.Type == "evdev"
	switch {
	case d.Type == "evdev" && d.Bus != "":
		return unsupported("an input device of type evdev has no bus; leave it out")
	case d.Bus == "ps2" && d.Type != "mouse" && d.Type != "keyboard":
		return unsupported("an input device of type %s cannot be on bus ps2; use bus usb or virtio", d.Type)
	case source && d.Source == "":
		return invalid("an input device of type %s names a device of the host: add <source>", d.Type)
	case !source && d.Source != "":
		return unsupported("an input device of type %s has no source: that is for type passthrough", d.Type)
	case d.Type == "passthrough" && d.Bus != "virtio":
		return unsupported("an input device of type passthrough is on bus virtio, not %s", d.Bus)
	case d.Model != "" && d.Bus != "virtio":
		return unsupported("an input device on bus %s has no model %s; leave it out, or use bus virtio", d.Bus, d.Model)
	case strings.Contains(d.Model, "transitional"):
		return unsupported("input devices have no model %s; use virtio", d.Model)
	}
	return nil
}

func checkHostDevice(d *device.HostDevice) error {
	if d.Type != "usb" {
		return nil
	}
	if d.USBVendor == 0 && d.USBProduct != 0 {
		return invalid("a host device of type usb is named by its vendor and its product; the vendor is missing or 0")
	}
	return nil
}
