package kernel

import (
	"strconv"
	"strings"
)

// USBDevice is one device on a USB bus; a root hub is one too.
type USBDevice struct {
	// Name is the kernel's, such as usb1 or 1-4.2.
	Name, Path string
	// Bus and Device are the numbers that lsusb shows. Device changes when the
	// device is unplugged and plugged in again.
	Bus, Device     int
	Vendor, Product uint16
	// VendorText, ProductText and Serial are the device's own words, which may be
	// anything.
	VendorText, ProductText, Serial string
	Driver                          string
	Interfaces                      []USBInterface
}

// USBInterface is one function of a USB device.
type USBInterface struct {
	// Name is the kernel's, such as 1-4.2:1.0.
	Name, Path                        string
	Number, Class, Subclass, Protocol int
	Driver, Description               string
}

// USBDevices reads every USB device with its interfaces, by name.
func (r Root) USBDevices() []USBDevice {
	const dir = "sys/bus/usb/devices"
	var devices []USBDevice
	at := map[string]int{}
	names := r.list(dir)
	for _, name := range names {
		if strings.Contains(name, ":") || !r.exists(dir, name, "idVendor") {
			continue
		}
		at[name] = len(devices)
		devices = append(devices, USBDevice{
			Name: name, Path: r.resolve(dir, name),
			Bus: r.number(0, dir, name, "busnum"), Device: r.number(0, dir, name, "devnum"),
			Vendor:     uint16(r.hex(16, dir, name, "idVendor")),
			Product:    uint16(r.hex(16, dir, name, "idProduct")),
			VendorText: r.attr(dir, name, "manufacturer"), ProductText: r.attr(dir, name, "product"),
			Serial: r.attr(dir, name, "serial"), Driver: r.link(dir, name, "driver"),
		})
	}
	for _, name := range names {
		i, known := at[usbOwner(name)]
		if !known || !strings.Contains(name, ":") {
			continue
		}
		devices[i].Interfaces = append(devices[i].Interfaces, USBInterface{
			Name: name, Path: r.resolve(dir, name),
			Number:   int(r.hex(8, dir, name, "bInterfaceNumber")),
			Class:    int(r.hex(8, dir, name, "bInterfaceClass")),
			Subclass: int(r.hex(8, dir, name, "bInterfaceSubClass")),
			Protocol: int(r.hex(8, dir, name, "bInterfaceProtocol")),
			Driver:   r.link(dir, name, "driver"), Description: r.attr(dir, name, "interface"),
		})
	}
	return devices
}

// usbOwner gives the device of an interface. The interfaces of a root hub usbN
// are called N-0:1.0.
func usbOwner(name string) string {
	device, _, _ := strings.Cut(name, ":")
	if bus, port, _ := strings.Cut(device, "-"); port == "0" {
		if _, err := strconv.Atoi(bus); err == nil {
			return "usb" + bus
		}
	}
	return device
}
