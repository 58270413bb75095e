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
		err := passable(c.host, d)
		if c.says == "" && err != nil || c.says != "" && (!fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.address, err)
		}
	}
	if err := passable(cloud, &device.HostDevice{Type: "usb"}); err != nil {
		t.Error(err)
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
