package guest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

func TestHostDevice_CannotPassThrough(t *testing.T) {
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
		_, err := provision.CheckPassthrough(c.host, d, nil)
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
		"two of these ids":        {device.HostDevice{USBVendor: 0x1234, USBProduct: 2}, 0, 0, "2 USB devices 1234:0002; select one by <address bus='1' device='5'/>"},
	} {
		err := provision.FindUSB(root, &c.d)
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

// A managed host device is taken from its driver, but not if the host uses another function of the same IOMMU
// group.
func TestHostDevice_Managed(t *testing.T) {
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
		taken, err := provision.CheckPassthrough(kernel.At(dir), &d, c.beside)
		if taken != (c.says == "") || c.says == "" && err != nil || c.says != "" && (!fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("managed %v beside %d: taken %v, %v", c.managed, len(c.beside), taken, err)
		}
	}
}

// cardHost is a host with one card that vfio-pci owns. unbound reports whether vfio-pci was told to release it.
func cardHost(t *testing.T) (r *machine.Registry, unbound func() bool) {
	t.Helper()
	dir := t.TempDir()
	kerneltest.Write(t, dir, `sys/bus/pci/devices/0000:01:00.0/class = 0x020000
sys/bus/pci/devices/0000:01:00.0/driver_override = vfio-pci
sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/vfio-pci
sys/bus/pci/devices/0000:01:00.0/iommu_group -> ../../groups/7
sys/bus/pci/groups/7/devices/0000:01:00.0/x =
sys/bus/pci/drivers/vfio-pci/unbind =
sys/bus/pci/drivers_probe =
`)
	r = newRegistry(machine.Config{Kernel: kernel.At(dir), Log: slog.New(slog.DiscardHandler)})
	return r, func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "sys/bus/pci/drivers/vfio-pci/unbind"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text)) != ""
	}
}

// cardRun is a run of a guest with that card.
func cardRun(r *machine.Registry, name string) *launch.Launch {
	card := &device.HostDevice{Type: "pci", Managed: device.On, PCI: device.PCI{Bus: 1}}
	card.Alias = "hostdev0"
	run := machine.NewInstance(machine.RunRecord{Name: name, UUID: name}, "", r.Kernel, slog.New(slog.DiscardHandler))
	run.Definition = &domain.Definition{Devices: device.Set{HostDevices: []*device.HostDevice{card}}}
	run.Reg = r
	return &launch.Launch{Guest: &machine.Guest{Reg: r}, Instance: run}
}

// TestHostDevice_TwoGuestsThatStartAtOnce: the second is refused, and its end takes nothing away.
// Neither do nodedev-detach and -reattach. Once the first has ended the device is free.
// Promise: G14
func TestHostDevice_TwoGuestsThatStartAtOnce(t *testing.T) {
	r, unbound := cardHost(t)
	ctx, at := t.Context(), kernel.PCIAddress{Bus: 1}
	first, second := cardRun(r, "first"), cardRun(r, "second")
	if err := first.CheckHostDevices(ctx); err != nil {
		t.Fatal(err)
	}
	for who, do := range map[string]func() error{
		"a second guest": func() error { return second.CheckHostDevices(ctx) },
		"detach":         func() error { return provision.DetachFromHost(ctx, r, scope.Daemon("a test"), at) },
		"reattach":       func() error { return provision.ReattachToHost(ctx, r, scope.Daemon("a test"), at) },
	} {
		if err := do(); !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), "domain 'first'") {
			t.Errorf("%s: %v", who, err)
		}
	}
	if err := second.Instance.ReleaseAll(ctx); err != nil || unbound() {
		t.Errorf("the end of the second takes the device from the first: %v", err)
	}
	if err := first.Instance.ReleaseAll(ctx); err != nil {
		t.Error(err)
	}
	if err := second.CheckHostDevices(ctx); err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// TestHostDevice_UnpluggedGoesBackToTheHost: at once, and not when its guest ends: another may
// have it then.
// Promise: G14
func TestHostDevice_UnpluggedGoesBackToTheHost(t *testing.T) {
	for _, after := range []string{"this daemon", "the next daemon"} {
		r, unbound := cardHost(t)
		ctx, at := t.Context(), kernel.PCIAddress{Bus: 1}
		run := cardRun(r, "first").Instance
		run.Taken = []kernel.PCIAddress{at}
		hotplug.ReholdClaims(r, run)
		hotplug.ReturnAtEnd(r, run, at)
		left := hotplug.NewCleanup(run, run.Definition.Devices.ByAlias("hostdev0"))
		if len(run.Taken) != 0 || !left.Taken {
			t.Fatalf("the record says that %v are taken", run.Taken)
		}
		run.Definition.Devices.HostDevices = nil
		if after == "the next daemon" {
			r.Devices = machine.DeviceClaims{}
			run.Releases, left = nil, &hotplug.CleanupOp{R: run, Device: left.Device, Taken: left.Taken}
			left.Rehold()
		}
		if err := cardRun(r, "second").CheckHostDevices(ctx); !fault.Is(err, fault.Busy) {
			t.Errorf("%s: another guest gets it before the host does: %v", after, err)
		}
		if err := left.GiveBack(ctx); err != nil || !unbound() {
			t.Errorf("%s: the host does not get it back: %v", after, err)
		}
		left.Ended()
		r.Loops.Wait()
		if err := cardRun(r, "second").CheckHostDevices(ctx); err != nil {
			t.Errorf("%s: no other guest gets it: %v", after, err)
		}
	}
}

// TestHostDevice_GivenBackLateIsLeftToItsNextGuest: what could not be given back is tried again
// without a claim.
func TestHostDevice_GivenBackLateIsLeftToItsNextGuest(t *testing.T) {
	r, unbound := cardHost(t)
	late := hotplug.ReturnDevice(r, cardRun(r, "first").Instance, kernel.PCIAddress{Bus: 1})
	second := cardRun(r, "second")
	if err := second.CheckHostDevices(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := late(context.Background()); err != nil || unbound() {
		t.Errorf("it is taken from its next guest: %v", err)
	}
	_ = second.Instance.ReleaseAll(t.Context())
	if err := late(context.Background()); err != nil || !unbound() {
		t.Errorf("the host does not get it back: %v", err)
	}
}

// A display renders with the adapter that it names, or with the first of the host. A display that does not
// render gets none.
// Promise: I2
func TestDisplay_RenderNode(t *testing.T) {
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
		if got := strings.Join(provision.HostNodes(&machine.Registry{Config: machine.Config{Kernel: c.host}}, def), " "); got != c.want {
			t.Errorf("gl %v, node %q: %q is let in, want %q", c.gl, c.node, got, c.want)
		}
	}
}
