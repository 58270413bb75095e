package resources_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

func inventory(t *testing.T, root kernel.Root) *resources.Inventory {
	t.Helper()
	inv, err := resources.NewInventory(root)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestFacts(t *testing.T) {
	laptop := inventory(t, kerneltest.Host(t, kerneltest.Laptop))
	facts := laptop.Facts()
	if facts.UUID.String() != "4c4c4544-0051-3510-8051-b9c04f4e3732" {
		t.Errorf("the UUID is %s", facts.UUID)
	}
	if diff := cmp.Diff(topology.Shape{Cells: 1, Packages: 1, Cores: 4, Threads: 2}, facts.Topology.Shape()); diff != "" {
		t.Error(diff)
	}
	if memory, err := laptop.CellMemory(0); err != nil || memory.Free != 9000000<<10 {
		t.Errorf("cell 0 has %+v, %v", memory, err)
	}
	if _, err := laptop.CellMemory(1); !fault.Is(err, fault.Invalid) {
		t.Errorf("cell 1 gives %v", err)
	}
	server := inventory(t, kerneltest.Host(t, kerneltest.Server)).Facts()
	if server.Firmware != nil || server.UUID.String() != "00000000-0000-0000-0000-000000000000" || server.Memory != 256<<30 {
		t.Errorf("the server without SMBIOS is %s with %d bytes", server.UUID, server.Memory)
	}
	live := inventory(t, kernel.Root{})
	if live.Facts().Arch == "" || live.Facts().Memory == 0 {
		t.Errorf("the live host is %+v", live.Facts())
	}
}

// A maker that leaves the UUID blank does not give all its machines the same UUID.
func TestInventory_BlankFirmwareUUID(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Laptop)
	write(t, dir, "sys/class/dmi/id/product_uuid", "ffffffff-ffff-ffff-ffff-ffffffffffff\n")
	kerneltest.Write(t, dir, "etc/machine-id = b08dfa6083e7567a1921a715000001fb\n")
	if id := inventory(t, kernel.At(dir)).Facts().UUID.String(); id != "b08dfa60-83e7-567a-1921-a715000001fb" {
		t.Errorf("the UUID is %s", id)
	}
}

// A machine without any identity, such as a fresh container, still gets a UUID.
func TestInventory_UnnamedMachine(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Server)
	kerneltest.Write(t, dir, "proc/sys/kernel/random/boot_id = 4cd6a2c1-9a0e-4f42-8f6d-2a1d9f8a3c11\n")
	if id := inventory(t, kernel.At(dir)).Facts().UUID.String(); id != "4cd6a2c1-9a0e-4f42-8f6d-2a1d9f8a3c11" {
		t.Errorf("the UUID is %s", id)
	}
}

func write(t *testing.T, dir, path, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A description is shared while fresh, read again when old, and served with its old time if the kernel
// refuses.
func TestFactsAge(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Laptop)
	synctest.Test(t, func(t *testing.T) {
		inv := inventory(t, kernel.At(dir))
		first := inv.Facts()
		write(t, dir, "sys/devices/system/cpu/online", "0-3\n")
		if inv.Facts() != first {
			t.Error("fresh facts are read again")
		}
		<-time.After(time.Minute) // on the bubble's clock
		second := inv.Facts()
		if second.Topology.Online.Len() != 4 || !second.Read.After(first.Read) {
			t.Errorf("after a minute processors %s are online", second.Topology.Online)
		}
		write(t, dir, "sys/devices/system/cpu/online", "nonsense\n")
		<-time.After(time.Minute)
		if third := inv.Facts(); third != second {
			t.Error("facts that cannot be read replace those that could")
		}
		if err := inv.Refresh(); err == nil {
			t.Error("a refresh that fails says nothing")
		}
	})
}

func TestLedger_RefusesImpossible(t *testing.T) {
	ledger := resources.NewLedger(inventory(t, kerneltest.Host(t, kerneltest.Server)))
	pages := func(size uint64, cell int, count uint64) topology.Reservation {
		return topology.Reservation{Pages: []topology.PageDemand{{Size: size, Cell: cell, Count: count}}}
	}
	const small, large = 2 << 20, 1 << 30
	for _, step := range []struct {
		guest, refusal string
		want           topology.Reservation
	}{
		{"plain", "", topology.Reservation{Memory: 200 << 30}},
		{"overcommitted", "", topology.Reservation{Memory: 256 << 30}},
		{"huge", "257 GiB of memory and this host has 256 GiB", topology.Reservation{Memory: 257 << 30}},
		{"plain", "already has a reservation", topology.Reservation{Memory: 1 << 30}},
		{"first", "", pages(small, 0, 200)},
		// By the kernel's count 250 pages are free, because the first guest has not touched its own; 312 of
		// 512 are not reserved.
		{"second", "251 huge pages of 2 MiB and this host has 250 left (512 in all, 250 free, 200 held by other guests)", pages(small, topology.AnyCell, 251)},
		{"second", "cell 2 has 0 left", pages(small, 2, 1)},
		{"third", "", pages(large, 1, 3)},
		{"fourth", "1 left (4 in all, 4 free, 3 held", pages(large, topology.AnyCell, 2)},
		{"fourth", "", pages(large, topology.AnyCell, 1)},
		{"fifth", "no huge pages of 16 MiB", pages(16<<20, 0, 1)},
		{"fifth", "cell 9", pages(small, 9, 1)},
		{"own", "", topology.Reservation{CPUs: topology.CPUs(0, 8)}},
		{"other", "and guest \"own\" has 8", topology.Reservation{CPUs: topology.CPUs(8, 9)}},
		{"other", "20 are offline", topology.Reservation{CPUs: topology.CPUs(9, 20)}},
		{"other", "", topology.Reservation{CPUs: topology.CPUs(9)}},
	} {
		err := ledger.Reserve(step.guest, step.want, resources.Need{})
		switch {
		case step.refusal == "" && err != nil:
			t.Errorf("%s: %v", step.guest, err)
		case step.refusal != "" && (err == nil || !strings.Contains(err.Error(), step.refusal)):
			t.Errorf("%s: %v, want %q", step.guest, err, step.refusal)
		case step.refusal != "" && step.guest != "plain" && !fault.Is(err, fault.NoCapacity):
			t.Errorf("%s: the kind is %v", step.guest, fault.Of(err))
		}
	}
	ledger.Release("third")
	ledger.Release("nobody")
	if err := ledger.Reserve("late", pages(large, 1, 3), resources.Need{}); err != nil {
		t.Errorf("what was released cannot be had: %v", err)
	}
	ledger.Restore("adopted", topology.Reservation{CPUs: topology.CPUs(9)}, resources.Need{}) // reserved by an earlier daemon
	if held := ledger.Held(); len(held) != 8 {
		t.Errorf("the books have %d guests", len(held))
	}
}

// Additions to a running guest are checked against the host like its start.
//
// Promise: G7
func TestLedger_ExtendAndReduce(t *testing.T) {
	ledger := resources.NewLedger(inventory(t, kerneltest.Host(t, kerneltest.Server)))
	pages := func(count uint64) topology.Reservation {
		return topology.Reservation{Pages: []topology.PageDemand{{Size: 1 << 30, Cell: 1, Count: count}}}
	}
	memory := func(gib uint64) topology.Reservation { return topology.Reservation{Memory: gib << 30} }
	if err := ledger.Extend("nobody", memory(1)); !fault.Is(err, fault.WrongState) {
		t.Errorf("a guest that holds nothing is extended: %v", err)
	}
	if err := ledger.Reserve("grows", memory(200).Plus(pages(1)), resources.Need{}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		by      topology.Reservation
		refusal string
	}{
		{memory(57), "would have 257 GiB of memory and this host has 256 GiB"},
		{memory(56), ""},
		{pages(4), "3 left (4 in all, 4 free, 1 held"},
		{pages(3), ""},
	} {
		err := ledger.Extend("grows", step.by)
		if step.refusal == "" && err != nil || step.refusal != "" && (!fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), step.refusal)) {
			t.Errorf("%+v: %v", step.by, err)
		}
	}
	ledger.Reduce("grows", memory(56).Plus(pages(2)))
	held := ledger.Held()["grows"]
	var left uint64
	for _, p := range held.Pages {
		left += p.Count
	}
	if held.Memory != 200<<30 || left != 2 {
		t.Errorf("%d bytes and %d pages are held", held.Memory, left)
	}
	ledger.Reduce("nobody", memory(1))
	ledger.Release("grows")
	ledger.Add("grows", memory(1))
	if held := ledger.Held(); len(held) != 0 {
		t.Errorf("the books have %v", held)
	}
}

// Concurrent reservations never promise a page twice.
func TestLedger_ConcurrentReservationsNeverOversell(t *testing.T) {
	ledger := resources.NewLedger(inventory(t, kerneltest.Host(t, kerneltest.Server)))
	var asking sync.WaitGroup
	for i := range 20 {
		asking.Go(func() {
			_ = ledger.Reserve(fmt.Sprint(i), topology.Reservation{
				CPUs:  topology.CPUs(i % 8),
				Pages: []topology.PageDemand{{Size: 1 << 30, Cell: 1, Count: 1}},
			}, resources.Need{})
		})
	}
	asking.Wait()
	var pages uint64
	cpus := map[string]bool{}
	for _, r := range ledger.Held() {
		pages += r.Pages[0].Count
		cpus[r.CPUs.String()] = true
	}
	if pages != 4 || len(cpus) != 4 {
		t.Errorf("%d of 4 pages and %d processors are held", pages, len(cpus))
	}
}

func TestDevices(t *testing.T) {
	var tree []string
	for _, d := range resources.NewDevices(kerneltest.Host(t, kerneltest.Laptop)).All() {
		tree = append(tree, d.Parent+" > "+d.Name)
	}
	want := []string{
		" > computer",
		"computer > pci_0000_00_02_0",
		"computer > pci_0000_00_14_0",
		"computer > pci_0000_00_17_0",
		"computer > pci_0000_00_1c_0",
		"pci_0000_00_1c_0 > pci_0000_02_00_0",
		"usb_usb1 > usb_1_4",
		"usb_1_4 > usb_1_4_1_0",
		"pci_0000_00_14_0 > usb_usb1",
		"usb_usb1 > usb_1_0_1_0",
		"computer > net_virbr0_52_54_00_aa_bb_cc",
		"pci_0000_02_00_0 > net_wlp2s0_00_28_f8_00_00_01",
		"pci_0000_00_17_0 > scsi_host0",
		"pci_0000_00_17_0 > scsi_host1",
		"scsi_host0 > scsi_target0_0_0",
		"scsi_host1 > scsi_target1_0_0",
		"scsi_target0_0_0 > scsi_0_0_0_0",
		"scsi_target1_0_0 > scsi_1_0_0_0",
		"scsi_0_0_0_0 > block_sda_Samsung_SSD_860_EVO_500GB_S3Z1NB0K000001A",
		"scsi_1_0_0_0 > block_sr0_HL_DT_ST_DVDRAM_GUD0N_KLZ000",
		"pci_0000_00_02_0 > drm_card0",
		"pci_0000_00_02_0 > drm_renderD128",
	}
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Error(diff)
	}
}

func TestDeviceLookup(t *testing.T) {
	devices := resources.NewDevices(kerneltest.Host(t, kerneltest.Server))
	d, err := devices.ByName("pci_0000_41_02_1")
	if err != nil || d.Driver != "vfio-pci" || d.Parent != "pci_0000_40_01_0" {
		t.Errorf("the virtual function is %+v, %v", d, err)
	}
	if _, err := devices.ByName("pci_9"); !fault.Is(err, fault.NotFound) || fault.About(err) != fault.NodeDevice {
		t.Errorf("an unknown name gives %v", err)
	}
	fc, err := devices.ByWWN("20000024FF000001", "21000024ff000001")
	if err != nil || fc.Name != "scsi_host7" || !fc.Is(resources.SCSIHost) || !fc.Is(resources.FCHost) {
		t.Errorf("the Fibre Channel adapter is %+v, %v", fc, err)
	}
	if found := devices.Of(resources.Storage, resources.FCHost); len(found) != 2 {
		t.Errorf("%d devices are storage or Fibre Channel", len(found))
	}
}
