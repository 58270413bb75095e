package resources

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Computer is the name of the device at the root of the tree.
const Computer = "computer"

// Kind says what a device can do. A device has one nature and may have traits in addition: a Fibre Channel
// adapter is a SCSI host too.
type Kind string

// The kinds, in libvirt's words.
const (
	System       Kind = "system"
	PCI          Kind = "pci"
	USB          Kind = "usb_device"
	USBInterface Kind = "usb"
	Net          Kind = "net"
	SCSIHost     Kind = "scsi_host"
	SCSITarget   Kind = "scsi_target"
	SCSI         Kind = "scsi"
	Storage      Kind = "storage"
	FCHost       Kind = "fc_host"
	DRM          Kind = "drm"
)

// Device is one device of the host. Exactly one of the pointers is set, according to its nature. Computer may
// have none.
type Device struct {
	// Name is libvirt's name, such as pci_0000_00_1f_2. It is unique on the host.
	Name string
	// Path is the device's folder in /sys; empty for Computer.
	Path string
	// Parent is the name of the parent device; empty for Computer.
	Parent string
	// Driver is the kernel's driver, or "".
	Driver string
	// Node is its device file and Links are symbolic links to it; empty without a device file.
	Node  string
	Links []string
	// Kinds are its nature, which is first, and its traits.
	Kinds []Kind

	// Firmware is the SMBIOS data of Computer; nil without SMBIOS.
	Firmware     *kernel.DMI
	PCI          *kernel.PCIDevice
	USB          *kernel.USBDevice
	USBInterface *kernel.USBInterface
	Net          *kernel.NetDevice
	SCSIHost     *kernel.SCSIHost
	SCSITarget   *kernel.SCSITarget
	SCSI         *kernel.SCSIUnit
	Storage      *kernel.BlockDevice
	DRM          *kernel.DRMDevice

	// VendorName and ProductName are the names of PCI and USB devices, or "".
	VendorName, ProductName string
}

// Is says whether the device is of a kind, by its nature or a trait.
func (d *Device) Is(k Kind) bool { return slices.Contains(d.Kinds, k) }

// devicesAge is the age at which the list is read again. It is short because a user looks right after plugging
// in, and not zero because scripts ask for many devices in a row.
const devicesAge = 2 * time.Second

// Devices lists the host's devices.
type Devices struct {
	list snapshot[deviceList]
}

type deviceList struct {
	// all has Computer first, then the devices bus by bus, in the order of their names.
	all    []*Device
	byName map[string]*Device
}

// NewDevices starts reading the devices in the background, which takes tens of milliseconds. The first reader
// waits for that.
func NewDevices(root kernel.Root) *Devices {
	d := &Devices{}
	d.list.age = devicesAge
	d.list.read = func() (*deviceList, error) { return readDevices(root), nil }
	go func() { _ = d.list.refresh() }() // it ends on its own, and leaves out what it cannot read
	return d
}

// All returns every device, Computer first. The devices are shared: do not change them.
func (d *Devices) All() []*Device { return d.list.get().all }

// Of returns the devices that are of any of the kinds.
func (d *Devices) Of(kinds ...Kind) []*Device {
	var found []*Device
	for _, dev := range d.All() {
		if slices.ContainsFunc(kinds, dev.Is) {
			found = append(found, dev)
		}
	}
	return found
}

// ByName returns one device.
func (d *Devices) ByName(name string) (*Device, error) {
	if dev, ok := d.list.get().byName[name]; ok {
		return dev, nil
	}
	return nil, fault.New(fault.NotFound, fault.NodeDevice, "no node device with matching name '%s'", name)
}

// ByWWN returns the Fibre Channel adapter with these node and port names.
func (d *Devices) ByWWN(node, port string) (*Device, error) {
	for _, dev := range d.Of(FCHost) {
		if strings.EqualFold(dev.SCSIHost.WWNN, node) && strings.EqualFold(dev.SCSIHost.WWPN, port) {
			return dev, nil
		}
	}
	return nil, fault.New(fault.NotFound, fault.NodeDevice, "no Fibre Channel adapter has node name %q and port name %q", node, port)
}

func readDevices(root kernel.Root) *deviceList {
	computer := &Device{Name: Computer, Kinds: []Kind{System}}
	if firmware, err := root.DMI(); err == nil {
		computer.Firmware = &firmware
	}
	all := []*Device{computer}
	for _, read := range []func(kernel.Root) []*Device{pciDevices, usbDevices, netDevices, scsiDevices, blockDevices, drmDevices} {
		all = append(all, read(root)...)
	}
	all = slices.DeleteFunc(all, func(d *Device) bool {
		return d.Path == "" && d != computer // it was removed while it was read
	})
	setParents(all)
	list := &deviceList{all: all, byName: make(map[string]*Device, len(all))}
	for _, d := range all {
		list.byName[d.Name] = d
	}
	return list
}

// setParents finds for each device its nearest ancestor in /sys.
func setParents(all []*Device) {
	byPath := make(map[string]string, len(all))
	for _, d := range all[1:] {
		byPath[d.Path] = d.Name
	}
	for _, d := range all[1:] {
		d.Parent = Computer
		for dir := filepath.Dir(d.Path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			if name, ok := byPath[dir]; ok {
				d.Parent = name
				break
			}
		}
	}
}

// deviceName joins the parts with underscores and replaces every byte that is no letter or digit by an
// underscore. Empty parts are left out.
func deviceName(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	name := []byte(strings.Join(parts, "_"))
	for i, c := range name {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		default:
			name[i] = '_'
		}
	}
	return string(name)
}

func pciDevices(root kernel.Root) []*Device {
	functions := root.PCIDevices()
	ids := make([]kernel.HardwareID, len(functions))
	for i, f := range functions {
		ids[i] = kernel.HardwareID{Vendor: f.Vendor, Product: f.Device}
	}
	names := root.PCINames(ids)
	devices := make([]*Device, len(functions))
	for i, f := range functions {
		devices[i] = &Device{
			Name: deviceName("pci", f.Address.String()), Path: f.Path, Driver: f.Driver, Kinds: []Kind{PCI}, PCI: &f,
			VendorName: names.Vendor(f.Vendor), ProductName: names.Product(ids[i]),
		}
	}
	return devices
}

func usbDevices(root kernel.Root) []*Device {
	plugged := root.USBDevices()
	ids := make([]kernel.HardwareID, len(plugged))
	for i, u := range plugged {
		ids[i] = kernel.HardwareID{Vendor: u.Vendor, Product: u.Product}
	}
	names := root.USBNames(ids)
	var devices []*Device
	for i, u := range plugged {
		d := &Device{
			Name: deviceName("usb", u.Name), Path: u.Path, Driver: u.Driver, Kinds: []Kind{USB}, USB: &u,
			VendorName: names.Vendor(u.Vendor), ProductName: names.Product(ids[i]),
		}
		if d.VendorName == "" {
			d.VendorName = u.VendorText
		}
		if d.ProductName == "" {
			d.ProductName = u.ProductText
		}
		devices = append(devices, d)
		for _, f := range u.Interfaces {
			devices = append(devices, &Device{
				Name: deviceName("usb", f.Name), Path: f.Path, Driver: f.Driver, Kinds: []Kind{USBInterface}, USBInterface: &f,
			})
		}
	}
	return devices
}

func netDevices(root kernel.Root) []*Device {
	var devices []*Device
	for _, n := range root.NetDevices() {
		devices = append(devices, &Device{
			Name: deviceName("net", n.Name, n.MAC), Path: n.Path, Kinds: []Kind{Net}, Net: &n,
		})
	}
	return devices
}

func scsiDevices(root kernel.Root) []*Device {
	buses := root.SCSI()
	var devices []*Device
	for _, h := range buses.Hosts {
		d := &Device{Name: deviceName("scsi", h.Name), Path: h.Path, Kinds: []Kind{SCSIHost}, SCSIHost: &h}
		if h.WWPN != "" {
			d.Kinds = append(d.Kinds, FCHost)
		}
		devices = append(devices, d)
	}
	for _, t := range buses.Targets {
		devices = append(devices, &Device{Name: deviceName("scsi", t.Name), Path: t.Path, Kinds: []Kind{SCSITarget}, SCSITarget: &t})
	}
	for _, u := range buses.Units {
		devices = append(devices, &Device{
			Name: deviceName("scsi", u.Name), Path: u.Path, Driver: u.Driver, Kinds: []Kind{SCSI}, SCSI: &u,
		})
	}
	return devices
}

// blockDevices leaves out block devices that are no drives: loop devices, device mapper, RAM disks.
func blockDevices(root kernel.Root) []*Device {
	var devices []*Device
	for _, b := range root.BlockDevices() {
		if b.Kind == "" {
			continue
		}
		devices = append(devices, &Device{
			Name: deviceName("block", b.Name, b.Serial), Path: b.Path, Node: b.Node, Links: b.Links, Kinds: []Kind{Storage}, Storage: &b,
		})
	}
	return devices
}

func drmDevices(root kernel.Root) []*Device {
	var devices []*Device
	for _, g := range root.DRMDevices() {
		devices = append(devices, &Device{Name: deviceName("drm", g.Name), Path: g.Path, Node: g.Node, Kinds: []Kind{DRM}, DRM: &g})
	}
	return devices
}
