package guest

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
	"github.com/lodge-kvm/lodge/kernel/kerneltest"
)

func TestHostDevicesThatCannotBePassedThrough(t *testing.T) {
	server, dir := kerneltest.Host(t, kerneltest.Server), t.TempDir()
	kerneltest.Write(t, dir, "sys/bus/pci/devices/0000:00:05.0/class = 0x00ff00\n")
	cloud := kernel.At(dir)
	for _, c := range []struct {
		host    kernel.Root
		address string
		kind    fault.Kind
		says    string // "": it can
	}{
		{server, "0000:41:02.1", 0, ""},
		{server, "0000:41:02.0", fault.Unsupported, `driver "iavf"`},
		{server, "0000:40:01.0", fault.Unsupported, "is a bridge"},
		{server, "0000:41:1f.7", fault.NotFound, "no such PCI device"},
		{cloud, "0000:00:05.0", fault.Unsupported, "no IOMMU"},
	} {
		at, ok := kernel.ParsePCIAddress(c.address)
		if !ok {
			t.Fatal(c.address)
		}
		d := &device.HostDevice{Type: "pci", PCI: device.PCI{Domain: at.Domain, Bus: at.Bus, Slot: at.Slot, Function: at.Function}}
		_, err := passable(c.host, d, nil)
		if c.says == "" && err != nil || c.says != "" && (!fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.address, err)
		}
	}
}

// TestUSB_FoundByWhatIsSaidOfIt: by ids, by address or by both; the address that was found is noted.
func TestUSB_FoundByWhatIsSaidOfIt(t *testing.T) {
	dir := t.TempDir()
	for name, u := range map[string]string{"1-1": "1 4 1234 0001", "1-2": "1 5 1234 0002", "2-1": "2 3 1234 0002", "2-2": "2 9 abcd 0000"} {
		f := strings.Fields(u)
		for i, attr := range []string{"busnum", "devnum", "idVendor", "idProduct"} {
			kerneltest.Write(t, dir, "sys/bus/usb/devices/"+name+"/"+attr+" = "+f[i]+"\n")
		}
	}
	root := kernel.At(dir)
	for name, c := range map[string]struct {
		d        device.HostDevice
		bus, dev uint
		says     string // "": it is found
	}{
		"by ids":                  {device.HostDevice{USBVendor: 0x1234, USBProduct: 1}, 1, 4, ""},
		"product 0":               {device.HostDevice{USBVendor: 0xabcd}, 2, 9, ""},
		"by address":              {device.HostDevice{USBBus: 2, USBDevice: 3}, 2, 3, ""},
		"by both":                 {device.HostDevice{USBVendor: 0x1234, USBProduct: 2, USBBus: 2, USBDevice: 3}, 2, 3, ""},
		"it has moved":            {device.HostDevice{USBVendor: 0x1234, USBProduct: 1, USBBus: 1, USBDevice: 77, USBFound: device.On}, 1, 4, ""},
		"no such ids":             {device.HostDevice{USBVendor: 0x1234, USBProduct: 0xbeef}, 0, 0, "no USB device 1234:beef"},
		"no such address":         {device.HostDevice{USBBus: 2, USBDevice: 4}, 0, 0, "no USB device at bus 2, device 4"},
		"another at that address": {device.HostDevice{USBVendor: 0x1234, USBProduct: 1, USBBus: 1, USBDevice: 5}, 0, 0, "no USB device 1234:0001 at bus 1, device 5"},
		"two of these ids":        {device.HostDevice{USBVendor: 0x1234, USBProduct: 2}, 0, 0, "2 USB devices 1234:0002; say which one by <address bus='1' device='5'/>"},
	} {
		err := findUSB(root, &c.d)
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || c.d.USBBus != c.bus || c.d.USBDevice != c.dev:
			t.Errorf("%s: found at %d:%d: %v", name, c.d.USBBus, c.d.USBDevice, err)
		}
	}
}

// TestHostDevicesAreTakenWhereTheyAreManaged: and not away from a host that uses
// another function of the same IOMMU group.
func TestHostDevicesAreTakenWhereTheyAreManaged(t *testing.T) {
	dir := t.TempDir()
	kerneltest.Write(t, dir, `sys/bus/pci/devices/0000:01:00.0/class = 0x020000
sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/e1000e
sys/bus/pci/devices/0000:01:00.0/iommu_group -> ../../groups/7
sys/bus/pci/devices/0000:01:00.1/class = 0x020000
sys/bus/pci/devices/0000:01:00.1/driver -> ../../drivers/e1000e
sys/bus/pci/devices/0000:01:00.1/iommu_group -> ../../groups/7
sys/bus/pci/groups/7/devices/0000:01:00.0/x =
sys/bus/pci/groups/7/devices/0000:01:00.1/x =
`)
	one := &device.HostDevice{Type: "pci", Managed: device.On, PCI: device.PCI{Bus: 1}}
	other := &device.HostDevice{Type: "pci", Managed: device.On, PCI: device.PCI{Bus: 1, Function: 1}}
	for _, c := range []struct {
		managed device.Switch
		beside  []*device.HostDevice
		says    string // "": it is taken
	}{
		{device.On, []*device.HostDevice{one, other}, ""},
		{device.On, []*device.HostDevice{one}, "0000:01:00.1"},
		{device.Off, []*device.HostDevice{one, other}, "virsh nodedev-detach pci_0000_01_00_0"},
	} {
		d := *one
		d.Managed = c.managed
		taken, err := passable(kernel.At(dir), &d, c.beside)
		if taken != (c.says == "") || c.says == "" && err != nil || c.says != "" && (!fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("managed %v beside %d: taken %v, %v", c.managed, len(c.beside), taken, err)
		}
	}
}

// TestADisplayThatDrawsHasItsAdapter: the one it names or the host's first, and none
// where it does not draw by one.
func TestADisplayThatDrawsHasItsAdapter(t *testing.T) {
	laptop, cloud := kerneltest.Host(t, kerneltest.Laptop), kernel.At(t.TempDir())
	for _, c := range []struct {
		host kernel.Root
		gl   device.Switch
		node string
		want string
	}{
		{laptop, device.On, "", "/dev/dri/renderD128"},
		{laptop, device.On, "/dev/dri/renderD129", "/dev/dri/renderD129"},
		{laptop, device.Unset, "", ""},
		{cloud, device.On, "", ""},
	} {
		def := &domain.Definition{Devices: device.Set{Graphics: []*device.Graphics{{Type: "spice", GL: c.gl, RenderNode: c.node}}}}
		if got := strings.Join(hostNodes(&Registry{Config: Config{Kernel: c.host}}, def), " "); got != c.want {
			t.Errorf("gl %v, node %q: %q is let in, want %q", c.gl, c.node, got, c.want)
		}
	}
}
