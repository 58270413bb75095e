package kernel

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PCIAddress is the address of a PCI function.
type PCIAddress struct {
	Domain, Bus, Slot, Function uint
}

// String prints the kernel's form, 0000:00:1f.2.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Slot, a.Function)
}

// ParsePCIAddress reads the kernel's form.
func ParsePCIAddress(text string) (PCIAddress, bool) {
	var a PCIAddress
	if _, err := fmt.Sscanf(text, "%x:%x:%x.%x", &a.Domain, &a.Bus, &a.Slot, &a.Function); err != nil {
		return PCIAddress{}, false
	}
	return a, a.Bus <= 0xff && a.Slot <= 0x1f && a.Function <= 7 && a.String() == strings.ToLower(text)
}

// PCIDevice is one PCI function.
type PCIDevice struct {
	Address PCIAddress
	// Path is the device's directory below /sys/devices.
	Path string
	// Class is the class code in 24 bits, as 0x020000 for Ethernet.
	Class                            uint32
	Vendor, Device                   uint16
	SubsystemVendor, SubsystemDevice uint16
	Revision                         uint8
	// Driver is the bound driver, or "".
	Driver string
	// Node is the NUMA node, or -1 when the firmware does not say.
	Node int
	// IOMMUGroup is the isolation group, or -1; IOMMUPeers are all its members.
	IOMMUGroup int
	IOMMUPeers []PCIAddress
	// PhysicalFunction is set on a virtual function of SR-IOV.
	PhysicalFunction *PCIAddress
	// VirtualFunctions are the existing ones; MaxVirtualFunctions is how many there may be.
	VirtualFunctions    []PCIAddress
	MaxVirtualFunctions int
	// Bridge says that the device leads to another bus.
	Bridge bool
	// Link is set on PCI Express devices whose configuration can be read.
	Link *PCILink
}

// PCILink is a PCI Express link: the maximum of the device and the current state.
// Speeds are in GT/s; 0 is unknown or down. A device that is built into the root
// complex has no link: all fields are 0.
type PCILink struct {
	Port            uint
	MaxSpeed, Speed float64
	MaxWidth, Width uint
}

const pciDir = "sys/bus/pci/devices"

// PCIDevices reads every PCI function, by ascending address.
func (r Root) PCIDevices() []PCIDevice {
	var devices []PCIDevice
	for _, name := range r.list(pciDir) {
		if address, ok := ParsePCIAddress(name); ok {
			devices = append(devices, r.pciDevice(address))
		}
	}
	return devices
}

// PCIDevice reads one PCI function; false if it does not exist.
func (r Root) PCIDevice(address PCIAddress) (PCIDevice, bool) {
	if r.list(pciDir+"/"+address.String()) == nil {
		return PCIDevice{}, false
	}
	return r.pciDevice(address), true
}

func (r Root) pciDevice(address PCIAddress) PCIDevice {
	dir := pciDir + "/" + address.String()
	d := PCIDevice{
		Address:             address,
		Path:                r.resolve(dir),
		Class:               uint32(r.hex(32, dir, "class")),
		Vendor:              uint16(r.hex(16, dir, "vendor")),
		Device:              uint16(r.hex(16, dir, "device")),
		SubsystemVendor:     uint16(r.hex(16, dir, "subsystem_vendor")),
		SubsystemDevice:     uint16(r.hex(16, dir, "subsystem_device")),
		Revision:            uint8(r.hex(8, dir, "revision")),
		Driver:              r.link(dir, "driver"),
		Node:                r.number(-1, dir, "numa_node"),
		IOMMUGroup:          -1,
		MaxVirtualFunctions: r.number(0, dir, "sriov_totalvfs"),
	}
	if group := sortedNumbers([]string{r.link(dir, "iommu_group")}, ""); len(group) == 1 {
		d.IOMMUGroup = group[0]
		d.IOMMUPeers = addresses(r.list(dir, "iommu_group/devices"))
	}
	if physical, ok := ParsePCIAddress(r.link(dir, "physfn")); ok {
		d.PhysicalFunction = &physical
	}
	for _, n := range sortedNumbers(r.list(dir), "virtfn") {
		d.VirtualFunctions = append(d.VirtualFunctions, addresses([]string{r.link(dir, fmt.Sprintf("virtfn%d", n))})...)
	}
	// Each word is a slow access to the device, and the needed registers are in the first
	// sixteenth of the space. A value that cannot be read stays unknown.
	config, _ := r.readHead(configSize, dir, "config")
	d.readConfig(config)
	return d
}

func addresses(names []string) []PCIAddress {
	var list []PCIAddress
	for _, name := range names {
		if a, ok := ParsePCIAddress(name); ok {
			list = append(list, a)
		}
	}
	return list
}

// Registers of the configuration space, and of its PCI Express capability.
const (
	configSize         = 256
	configStatus       = 0x06
	configHeaderType   = 0x0e
	configCapabilities = 0x34
	capabilityExpress  = 0x10
	expressLinkCap     = 0x0c
	expressLinkStatus  = 0x12
)

// linkSpeeds are the speeds in GT/s by the number in the register.
var linkSpeeds = [...]float64{0, 2.5, 5, 8, 16, 32, 64}

// readConfig reads the header type and the link from the configuration space.
// Users other than root see its first 64 bytes only. A device may give false values:
// the chain of capabilities is followed within bounds.
func (d *PCIDevice) readConfig(config []byte) {
	if len(config) < 64 {
		return
	}
	d.Bridge = config[configHeaderType]&0x7f == 1
	if config[configStatus]&0x10 == 0 {
		return
	}
	at := int(config[configCapabilities] &^ 3)
	for range 48 {
		if at < 0x40 || at+expressLinkStatus+2 > min(len(config), configSize) {
			return
		}
		if config[at] == capabilityExpress {
			d.Link = parseLink(config[at:])
			return
		}
		at = int(config[at+1] &^ 3)
	}
}

func parseLink(express []byte) *PCILink {
	capability := binary.LittleEndian.Uint32(express[expressLinkCap:])
	status := binary.LittleEndian.Uint16(express[expressLinkStatus:])
	speed := func(n uint32) float64 {
		if int(n) >= len(linkSpeeds) {
			return 0
		}
		return linkSpeeds[n]
	}
	return &PCILink{
		Port:     uint(capability >> 24),
		MaxSpeed: speed(capability & 0xf),
		MaxWidth: uint(capability >> 4 & 0x3f),
		Speed:    speed(uint32(status) & 0xf),
		Width:    uint(status >> 4 & 0x3f),
	}
}

// IOMMU reports whether the kernel keeps devices out of each other's memory. A device
// can only be passed to a guest if it does.
func (r Root) IOMMU() bool { return len(r.list("sys/kernel/iommu_groups")) > 0 }

// HardwareID is a vendor's number and the number of one of its products.
type HardwareID struct {
	Vendor, Product uint16
}

// HardwareNames holds the names for the numbers that were asked for.
type HardwareNames struct {
	vendors  map[uint16]string
	products map[HardwareID]string
}

// Vendor gives the vendor's name, or "".
func (n HardwareNames) Vendor(id uint16) string { return n.vendors[id] }

// Product gives the product's name, or "".
func (n HardwareNames) Product(id HardwareID) string { return n.products[id] }

// PCINames looks numbers up in the distribution's pci.ids. Where the file is not
// installed there are no names.
func (r Root) PCINames(wanted []HardwareID) HardwareNames { return r.names("pci.ids", wanted) }

// USBNames looks numbers up in the distribution's usb.ids.
func (r Root) USBNames(wanted []HardwareID) HardwareNames { return r.names("usb.ids", wanted) }

func (r Root) names(file string, wanted []HardwareID) HardwareNames {
	found := HardwareNames{map[uint16]string{}, map[HardwareID]string{}}
	for _, dir := range []string{"usr/share/misc", "usr/share/hwdata", "var/lib/usbutils"} {
		text, err := r.read(dir, file)
		if err != nil || len(wanted) == 0 {
			continue
		}
		found.take(text, wanted)
		break
	}
	return found
}

// take reads lines "vvvv  Vendor" and, indented by a tab, "pppp  Product". Lines
// with two tabs are subsystems; classes, "C 00 ...", follow after the vendors.
func (n HardwareNames) take(text string, wanted []HardwareID) {
	vendors := make(map[uint16]bool, len(wanted))
	for _, id := range wanted {
		vendors[id.Vendor] = true
	}
	var vendor uint16
	within := false
	for line := range strings.Lines(text) {
		product := strings.HasPrefix(line, "\t")
		if product && !within || strings.HasPrefix(line, "\t\t") {
			continue
		}
		code, name, ok := strings.Cut(strings.Trim(line, "\t\n"), "  ")
		number, err := strconv.ParseUint(code, 16, 16)
		if !ok || err != nil {
			within = within && product
			continue
		}
		if !product {
			vendor, within = uint16(number), vendors[uint16(number)]
			if within {
				n.vendors[vendor] = name
			}
		} else if id := (HardwareID{vendor, uint16(number)}); slices.Contains(wanted, id) {
			n.products[id] = name
		}
	}
}
