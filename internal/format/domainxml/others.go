package domainxml

import (
	"fmt"
	"math"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// NoIndex is the index of a controller that did not say one, until Complete or
// the guest that it is plugged into gives it one.
const NoIndex = math.MaxUint32

func describeController(n *node, d *device.Controller) {
	n.need("type", &d.Type, "pci", "usb", "scsi", "sata", "ide", "fdc", "virtio-serial", "ccid")
	index := &d.Index
	if n.writing && d.Index == NoIndex {
		index = nil
	}
	if optional(n, "index", &index); n.reading() {
		if d.Index = NoIndex; n.e.Attr("index") != "" {
			d.Index = *index
		}
	}
	n.str("model", &d.Model)
	if d.Type == "usb" || d.Type == "virtio-serial" {
		num(n, "ports", &d.Ports)
	}
	if d.Type == "virtio-serial" {
		num(n, "vectors", &d.Vectors)
	}
	if d.Type == "pci" {
		describePCIController(n, d)
	}
	n.in("driver", func(n *node) {
		num(n, "queues", &d.Queues)
		num(n, "cmd_per_lun", &d.CmdPerLUN)
		num(n, "max_sectors", &d.MaxSectors)
		n.on("ioeventfd", &d.IOEventFD)
		n.on("event_idx", &d.EventIdx)
		num(n, "iothread", &d.IOThread)
		n.virtio(&d.IOMMU, &d.ATS, &d.Packed)
	})
	n.infoWith(&d.Info, func() {
		n.inIf("master", &d.HasMaster, func(n *node) { always(n, "startport", &d.MasterStart) })
	})
}

func describePCIController(n *node, d *device.Controller) {
	c := d.PCI
	if c == nil {
		c = new(device.PCIController)
	}
	n.in("model", func(n *node) { n.str("name", &c.ModelName) })
	n.in("target", func(n *node) {
		optional(n, "chassisNr", &c.ChassisNr)
		optional(n, "chassis", &c.Chassis)
		n.optionalHex("port", &c.Port)
		optional(n, "busNr", &c.BusNr)
		optional(n, "index", &c.Index)
		n.on("hotplug", &c.HotPlug)
		n.in("node", func(n *node) { textOptional(n, &c.NUMANode) })
	})
	if n.reading() && *c != (device.PCIController{}) {
		d.PCI = c
	}
	n.inIf("pcihole64", &d.HasPCIHole64, func(n *node) {
		size := d.PCIHole64KiB << 10
		if n.bytes("", &size); n.reading() {
			d.PCIHole64KiB = size >> 10
		}
	})
}

func (n *node) optionalHex(attr string, p **uint) {
	if n.writing {
		if *p != nil {
			n.set(attr, fmt.Sprintf("0x%x", **p))
		}
		return
	}
	optional(n, attr, p)
}

// textOptional describes a number as character data; 0 is an ordinary value.
func textOptional(n *node, p **uint) {
	if n.writing {
		if *p != nil {
			text := fmt.Sprint(**p)
			n.text(&text)
		}
		return
	}
	*p = new(uint)
	textNum(n, *p)
}

func describeInput(n *node, d *device.Input) {
	n.need("type", &d.Type, "mouse", "tablet", "keyboard", "passthrough", "evdev")
	n.str("bus", &d.Bus, "ps2", "usb", "virtio")
	n.str("model", &d.Model, "virtio", "virtio-transitional", "virtio-non-transitional")
	n.in("source", func(n *node) {
		if d.Type == "evdev" {
			n.str("dev", &d.Source)
			return
		}
		n.str("evdev", &d.Source)
	})
	n.info(&d.Info)
}

func describeTPM(n *node, d *device.TPM) {
	n.str("model", &d.Model, "tpm-tis", "tpm-crb")
	if n.strict && n.child("backend") == nil {
		n.invalid("", "a TPM needs a <backend>")
	}
	n.in("backend", func(n *node) {
		n.need("type", &d.Type, "emulator", "passthrough")
		if d.Type == "passthrough" {
			n.in("device", func(n *node) { n.str("path", &d.Path) })
			return
		}
		n.str("version", &d.Version, "1.2", "2.0")
		n.yes("persistent_state", &d.Persistent)
	})
	n.info(&d.Info)
}

func describeHostDevice(n *node, d *device.HostDevice) {
	mode := "subsystem"
	n.str("mode", &mode, "subsystem")
	n.need("type", &d.Type, "pci", "usb")
	n.yes("managed", &d.Managed)
	if n.strict && n.child("source") == nil {
		n.invalid("", "a host device needs a <source>")
	}
	if d.Type == "pci" {
		if policy := n.e.Child("source").Attr("startupPolicy"); n.strict && policy != "" {
			n.refuse("", "startupPolicy is for type usb; leave it out")
		}
		n.in("driver", func(n *node) { n.str("name", &d.Driver, "vfio") })
		n.in("source", func(n *node) {
			n.in("address", func(n *node) {
				n.ignore("type")
				describePCIPlace(n, &d.PCI)
			})
		})
	} else {
		n.in("source", func(n *node) { describeUSBSource(n, d) })
	}
	n.info(&d.Info)
}

func describeUSBSource(n *node, d *device.HostDevice) {
	n.str("startupPolicy", &d.StartupPolicy, "mandatory", "requisite", "optional")
	n.str("guestReset", &d.GuestReset, "off", "uninitialized", "on")
	if n.reading() || n.style.Active && n.style.Secure { // the form that is stored for the next start has it
		n.yes("autoAddress", &d.USBFound)
	}
	if n.strict && (n.child("vendor") == nil) != (n.child("product") == nil) {
		n.invalid("", "a USB device is named by its vendor and its product; one is missing")
	}
	if v := n.child("vendor"); n.strict && v != nil {
		var id uint
		positive(v, "id", &id)
	}
	id := func(name string, p *uint) {
		if n.reading() || d.USBVendor > 0 || *p > 0 { // a product may be 0
			n.in(name, func(n *node) { n.hex("id", p, 4) })
		}
	}
	id("vendor", &d.USBVendor)
	id("product", &d.USBProduct)
	n.in("address", func(n *node) {
		num(n, "bus", &d.USBBus)
		num(n, "device", &d.USBDevice)
	})
}

func describeRedir(n *node, d *device.Redir) {
	n.str("bus", &d.Bus, "usb")
	describeBackend(n, &d.Backend, false)
	n.info(&d.Info)
}

func describeHub(n *node, d *device.Hub) {
	n.need("type", &d.Type, "usb")
	n.info(&d.Info)
}

func describeWatchdog(n *node, d *device.Watchdog) {
	n.need("model", &d.Model, "itco", "i6300esb", "ib700", "diag288")
	n.str("action", &d.Action, "reset", "shutdown", "poweroff", "pause", "none", "dump", "inject-nmi")
	n.info(&d.Info)
}

func describeBalloon(n *node, d *device.Balloon) {
	n.present("model")
	n.str("model", &d.Model, "virtio", "virtio-transitional", "virtio-non-transitional", "none")
	n.on("autodeflate", &d.AutoDeflate)
	n.on("freePageReporting", &d.FreePageReporting)
	n.in("stats", func(n *node) { num(n, "period", &d.StatsPeriod) })
	n.in("driver", func(n *node) { n.virtio(&d.IOMMU, &d.ATS, &d.Packed) })
	n.info(&d.Info)
}

func describeRNG(n *node, d *device.RNG) {
	n.str("model", &d.Model, "virtio", "virtio-transitional", "virtio-non-transitional")
	n.in("rate", func(n *node) {
		num(n, "bytes", &d.RateBytes)
		num(n, "period", &d.RatePeriod)
	})
	n.in("backend", func(n *node) {
		n.need("model", &d.Backend, "random", "builtin", "egd")
		switch d.Backend {
		case "random":
			n.text(&d.Path)
		case "egd":
			if n.reading() {
				d.Char = new(device.Backend)
			}
			describeBackend(n, d.Char, false)
		}
	})
	n.in("driver", func(n *node) { n.virtio(&d.IOMMU, &d.ATS, &d.Packed) })
	n.info(&d.Info)
}

func describePanic(n *node, d *device.Panic) {
	n.str("model", &d.Model, "isa", "pvpanic", "hyperv")
	n.info(&d.Info)
}

func describeVSock(n *node, d *device.VSock) {
	n.str("model", &d.Model, "virtio", "virtio-transitional", "virtio-non-transitional")
	n.in("cid", func(n *node) {
		n.yes("auto", &d.Auto)
		if num(n, "address", &d.CID); n.strict && d.CID > math.MaxUint32 {
			n.invalid("address", "%d is more than %d", d.CID, uint32(math.MaxUint32))
		}
	})
	n.in("driver", func(n *node) { n.virtio(&d.IOMMU, &d.ATS, &d.Packed) })
	n.info(&d.Info)
}
