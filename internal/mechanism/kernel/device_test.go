package kernel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

func TestPCIDevices_Server(t *testing.T) {
	devices := map[string]kernel.PCIDevice{}
	for _, d := range kerneltest.Host(t, kerneltest.Server).PCIDevices() {
		devices[d.Address.String()] = d
	}
	nic := kernel.PCIAddress{Bus: 0x41}
	functions := []kernel.PCIAddress{{Bus: 0x41, Slot: 2}, {Bus: 0x41, Slot: 2, Function: 1}}
	want := kernel.PCIDevice{
		Address: nic, Path: "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0",
		Class: 0x020000, Vendor: 0x8086, Device: 0x1572, SubsystemVendor: 0x8086, SubsystemDevice: 7, Revision: 1,
		Driver: "i40e", Node: 1, IOMMUGroup: 11, IOMMUPeers: []kernel.PCIAddress{nic},
		VirtualFunctions: functions, MaxVirtualFunctions: 32,
		Link: &kernel.PCILink{MaxSpeed: 8, MaxWidth: 8, Speed: 8, Width: 8},
	}
	if diff := cmp.Diff(want, devices[nic.String()]); diff != "" {
		t.Error("the NIC:", diff)
	}
	virtual := devices[functions[1].String()]
	if virtual.PhysicalFunction == nil || *virtual.PhysicalFunction != nic || virtual.Driver != "vfio-pci" {
		t.Errorf("the second virtual function is %+v", virtual)
	}
	bridge := devices["0000:40:01.0"]
	if !bridge.Bridge || bridge.Link == nil || bridge.Link.Port != 9 || bridge.Link.MaxSpeed != 16 {
		t.Errorf("the bridge is %+v with the link %+v", bridge, bridge.Link)
	}
	if len(devices) != 7 {
		t.Errorf("there are %d devices", len(devices))
	}
}

func TestParsePCIAddress(t *testing.T) {
	for _, text := range []string{"0000:00:1f.2", "10000:e1:00.7"} {
		if a, ok := kernel.ParsePCIAddress(text); !ok || a.String() != text {
			t.Errorf("%s reads as %s, %v", text, a, ok)
		}
	}
	for _, text := range []string{"", "0000:00:1f", "0000:00:20.0", "0000:00:1f.8", "0000:100:00.0", "0000:00:1f.2x", "0:0:1.0", "pci0000:00"} {
		if a, ok := kernel.ParsePCIAddress(text); ok {
			t.Errorf("%q reads as %s", text, a)
		}
	}
}

func TestHardwareNames(t *testing.T) {
	root := kerneltest.Host(t, kerneltest.Laptop)
	radio := kernel.HardwareID{Vendor: 0x8086, Product: 0x24fd}
	unknown := kernel.HardwareID{Vendor: 0xc03, Product: 0}
	names := root.PCINames([]kernel.HardwareID{radio, unknown, {Vendor: 0x1af4, Product: 0x9999}})
	for got, want := range map[string]string{
		names.Vendor(0x8086):   "Intel Corporation",
		names.Product(radio):   "Wireless 8265 / 8275",
		names.Vendor(0x1af4):   "Red Hat, Inc.",
		names.Vendor(0xc03):    "",
		names.Product(unknown): "",
	} {
		if got != want {
			t.Errorf("a name is %q, want %q", got, want)
		}
	}
	if name := kernel.At(t.TempDir()).PCINames([]kernel.HardwareID{radio}).Vendor(0x8086); name != "" {
		t.Errorf("without pci.ids the vendor is %q", name)
	}
}

func TestUSBDevices_Laptop(t *testing.T) {
	devices := kerneltest.Host(t, kerneltest.Laptop).USBDevices()
	if len(devices) != 2 {
		t.Fatalf("there are %d devices", len(devices))
	}
	const at = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-4"
	want := kernel.USBDevice{
		Name: "1-4", Path: at, Bus: 1, Device: 3, Vendor: 0x46d, Product: 0xc52b,
		VendorText: "Logitech", ProductText: "USB Receiver", Driver: "usb",
		Interfaces: []kernel.USBInterface{{
			Name: "1-4:1.0", Path: at + "/1-4:1.0", Class: 3, Subclass: 1, Protocol: 1, Driver: "usbhid", Description: "Keyboard & <Mouse>",
		}},
	}
	if diff := cmp.Diff(want, devices[0]); diff != "" {
		t.Error(diff)
	}
	if hub := devices[1]; hub.Name != "usb1" || len(hub.Interfaces) != 1 || hub.Interfaces[0].Name != "1-0:1.0" {
		t.Errorf("the root hub is %+v", hub)
	}
}

func TestBlockDevices(t *testing.T) {
	laptop := kerneltest.Host(t, kerneltest.Laptop).BlockDevices()
	if len(laptop) != 3 {
		t.Fatalf("there are %d devices; partitions do not count", len(laptop))
	}
	want := kernel.BlockDevice{
		Name: "sda", Path: "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", Node: "/dev/sda",
		Links: []string{"/dev/disk/by-id/ata-Samsung_SSD_860_EVO_500GB_S3Z1NB0K000001A", "/dev/disk/by-path/pci-0000:00:17.0-ata-1"},
		Bus:   "ata", Kind: "disk", Model: "Samsung_SSD_860_EVO_500GB", Vendor: "ATA", Serial: "Samsung_SSD_860_EVO_500GB_S3Z1NB0K000001A",
		Size: 976773168 * 512, LogicalBlockSize: 512,
	}
	if diff := cmp.Diff(want, laptop[1]); diff != "" {
		t.Error(diff)
	}
	if cd := laptop[2]; cd.Kind != "cdrom" || !cd.Removable {
		t.Errorf("the CD drive is %+v", cd)
	}
	if loop := laptop[0]; loop.Kind != "" {
		t.Errorf("the loop device is a %s", loop.Kind)
	}
	nvme := kerneltest.Host(t, kerneltest.Server).BlockDevices()[0]
	if nvme.Kind != "disk" || nvme.Serial != "S64GNE0R000001" || nvme.Model != "SAMSUNG MZQL21T9HCJR" {
		t.Errorf("the NVMe disk without udev is %+v", nvme)
	}
}

func TestNetDevices(t *testing.T) {
	want := []kernel.NetDevice{
		{Name: "ens1f0", Path: "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/net/ens1f0", MAC: "3c:fd:fe:00:00:01", State: "up", Mbps: 10000},
		{Name: "ens1f0v0", Path: "/sys/devices/pci0000:40/0000:40:01.0/0000:41:02.0/net/ens1f0v0", MAC: "3c:fd:fe:00:00:02", State: "down"},
		{Name: "lo", Path: "/sys/devices/virtual/net/net/lo", MAC: "00:00:00:00:00:00", State: "unknown"},
	}
	if diff := cmp.Diff(want, kerneltest.Host(t, kerneltest.Server).NetDevices()); diff != "" {
		t.Error(diff)
	}
	for _, d := range kerneltest.Host(t, kerneltest.Laptop).NetDevices() {
		if d.Wireless != (d.Name == "wlp2s0") {
			t.Errorf("%s is taken for a radio: %v", d.Name, d.Wireless)
		}
	}
}

func TestSCSIAndGraphics(t *testing.T) {
	laptop := kerneltest.Host(t, kerneltest.Laptop)
	scsi := laptop.SCSI()
	if len(scsi.Hosts) != 2 || len(scsi.Targets) != 2 || len(scsi.Units) != 2 {
		t.Fatalf("the SCSI buses have %+v", scsi)
	}
	if host := scsi.Hosts[1]; host.Number != 1 || host.UniqueID != 2 || host.WWPN != "" {
		t.Errorf("the second adapter is %+v", host)
	}
	if unit := scsi.Units[1]; unit.Kind != "cdrom" || unit.Host != 1 || unit.Driver != "sr" {
		t.Errorf("the CD drive is %+v", unit)
	}
	channel := kerneltest.Host(t, kerneltest.Server).SCSI().Hosts[0]
	if channel.WWPN != "21000024ff000001" || channel.FabricWWN != "1000c4f57c000001" {
		t.Errorf("the Fibre Channel adapter is %+v", channel)
	}
	var kinds []string
	for _, d := range laptop.DRMDevices() {
		kinds = append(kinds, d.Kind+" "+d.Node)
	}
	if diff := cmp.Diff([]string{"primary /dev/dri/card0", "render /dev/dri/renderD128"}, kinds); diff != "" {
		t.Error(diff)
	}
}
