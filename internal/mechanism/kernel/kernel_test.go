package kernel_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

func TestTopology_Server(t *testing.T) {
	h, err := kerneltest.Host(t, kerneltest.Server).Topology()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(topology.Shape{Cells: 4, Packages: 1, Cores: 2, Threads: 2}, h.Shape()); diff != "" {
		t.Error("shape:", diff)
	}
	cell, ok := h.Cell(2)
	if !ok {
		t.Fatal("there is no cell 2")
	}
	if got := cell.CPUSet().String(); got != "4-5,12-13" {
		t.Errorf("cell 2 has processors %s", got)
	}
	want := topology.CPU{
		ID: 12, Package: 1, Cluster: -1, Core: 0,
		Siblings: topology.CPUs(4, 12), Cache: topology.CPUs(4, 5, 12, 13),
	}
	if diff := cmp.Diff(want, cell.CPUs[2]); diff != "" {
		t.Error("processor 12:", diff)
	}
	wantDistances := []topology.Distance{{Cell: 0, Value: 21}, {Cell: 1, Value: 21}, {Cell: 2, Value: 10}, {Cell: 3, Value: 12}}
	if diff := cmp.Diff(wantDistances, cell.Distances); diff != "" {
		t.Error("distances:", diff)
	}
	huge, _ := h.Cells[0].Pool(2 << 20)
	if diff := cmp.Diff(topology.PagePool{Size: 2 << 20, Total: 512, Free: 256}, huge); diff != "" {
		t.Error("huge pages:", diff)
	}
	base := h.Cells[0].Pages[0]
	if want := (uint64(64<<30) - 512*2<<20) / base.Size; base.Total != want {
		t.Errorf("cell 0 has %d base pages, want %d: what the huge ones leave", base.Total, want)
	}
	lastLevel := 0
	for _, c := range h.Caches {
		if c.Level == 3 {
			lastLevel++
		}
	}
	if lastLevel != 4 || h.Present.Len() != 16 {
		t.Errorf("%d last-level caches and %d processors plugged in", lastLevel, h.Present.Len())
	}
}

func TestPagesNow(t *testing.T) {
	root := kerneltest.Host(t, kerneltest.Server)
	cell, err := root.Pages(1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(topology.PagePool{Size: 1 << 30, Total: 4, Free: 4}, cell[2]); diff != "" {
		t.Error("cell 1:", diff)
	}
	host, err := root.HostPages()
	if err != nil {
		t.Fatal(err)
	}
	// Six of the 256 free pages are reserved for a process.
	if diff := cmp.Diff(topology.PagePool{Size: 2 << 20, Total: 512, Free: 250}, host[1]); diff != "" {
		t.Error("host:", diff)
	}
	if sizes := root.HugePageSizes(); !slices.Equal(slices.Sorted(slices.Values(sizes)), []uint64{2 << 20, 1 << 30}) {
		t.Errorf("there are huge pages of %v bytes", sizes)
	}
	if _, err := root.Pages(7); !fault.Is(err, fault.NotFound) {
		t.Errorf("a cell that is not there gives %v", err)
	}
}

// Without NUMA in the kernel, and with a thread switched off.
func TestTopology_WithoutNodes(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Laptop)
	if err := os.RemoveAll(filepath.Join(dir, "sys/devices/system/node")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sys/devices/system/cpu/online"), []byte("0-6\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h, err := kernel.At(dir).Topology()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Cells) != 1 || len(h.Cells[0].CPUs) != 7 || h.Memory() != 16214736<<10 {
		t.Errorf("the single cell is %+v", h.Cells)
	}
	if got := h.Cells[0].CPUs[3].Siblings.String(); got != "3" {
		t.Errorf("processor 3 has siblings %s, though 7 is off", got)
	}
}

func TestRoot_MissingTree(t *testing.T) {
	empty := kernel.At(t.TempDir())
	if _, err := empty.Topology(); !fault.Is(err, fault.NotFound) {
		t.Errorf("topology: %v", err)
	}
	if _, err := empty.DMI(); !fault.Is(err, fault.NotFound) {
		t.Errorf("dmi: %v", err)
	}
	if _, err := empty.Process(1); !fault.Is(err, fault.NotFound) {
		t.Errorf("process: %v", err)
	}
	if _, err := empty.Pressure(kernel.CPUPressure); !fault.Is(err, fault.NotFound) {
		t.Errorf("pressure: %v", err)
	}
}

func TestMemoryAndTimes(t *testing.T) {
	root := kerneltest.Host(t, kerneltest.Server)
	memory, err := root.Memory()
	if err != nil {
		t.Fatal(err)
	}
	want := kernel.Memory{
		Total: 256 << 30, Free: 166 << 30, Available: 200 << 30, Buffers: 1 << 30, Cached: 30 << 30,
		SwapTotal: 8 << 30, SwapFree: 8 << 30,
	}
	if diff := cmp.Diff(want, memory); diff != "" {
		t.Error(diff)
	}
	node, err := root.NodeMemory(3)
	if err != nil || node.Free != 43<<30 {
		t.Errorf("node 3 has %+v, %v", node, err)
	}
	times, err := root.CPUTimes()
	if err != nil {
		t.Fatal(err)
	}
	wantTime := kernel.CPUTime{
		User: 1020 * time.Millisecond, Nice: 100 * time.Millisecond, System: 500 * time.Millisecond, Idle: 10 * time.Second,
		IOWait: 50 * time.Millisecond, IRQ: 10 * time.Millisecond, SoftIRQ: 20 * time.Millisecond,
	}
	if diff := cmp.Diff(wantTime, times.Each[2]); diff != "" || len(times.Each) != 16 {
		t.Error("processor 2:", diff)
	}
	pressure, err := root.Pressure(kernel.MemoryPressure)
	wantPressure := kernel.Pressure{
		Some: kernel.Stall{Avg10: 1.25, Avg60: 0.5, Avg300: 0.1, Total: 123456 * time.Microsecond},
		Full: kernel.Stall{Avg10: 0.25, Avg60: 0.1, Avg300: 0.05, Total: 23456 * time.Microsecond},
	}
	if diff := cmp.Diff(wantPressure, pressure); diff != "" || err != nil {
		t.Error("pressure:", diff, err)
	}
}

func TestProcessor(t *testing.T) {
	p, err := kerneltest.Host(t, kerneltest.Laptop).Processor()
	if err != nil {
		t.Fatal(err)
	}
	if p.Vendor != "AuthenticAMD" || p.Family != 23 || p.ModelNumber != 24 || p.Stepping != 1 || p.MHz != 1397.321 || p.PhysicalBits != 46 || p.Microcode != 0x2b000461 {
		t.Errorf("the processor is %+v", p)
	}
	if len(p.Flags) < 10 || p.Flags[len(p.Flags)-1] != "svm" {
		t.Errorf("the flags are %v", p.Flags)
	}
}

func TestDMI(t *testing.T) {
	d, err := kerneltest.Host(t, kerneltest.Laptop).DMI()
	if err != nil || d.Vendor != "LENOVO" || d.UUID != "4c4c4544-0051-3510-8051-b9c04f4e3732" || d.BoardVersion != "SDK0J40697 WIN" {
		t.Errorf("the firmware says %+v, %v", d, err)
	}
}

// The readers must also work on the live host. Every host has at least one processor, which
// runs this test and has run for some time.
func TestRoot_LiveHost(t *testing.T) {
	var live kernel.Root
	h, err := live.Topology()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Cells) == 0 || h.Online.IsEmpty() || h.Memory() == 0 {
		t.Errorf("the live host has %d cells, processors %s, %d bytes", len(h.Cells), h.Online, h.Memory())
	}
	times, err := live.CPUTimes()
	if err != nil || times.Total.Idle+times.Total.User == 0 {
		t.Errorf("times %+v, %v", times.Total, err)
	}
	for _, d := range live.PCIDevices() {
		if d.Path == "" || d.Vendor == 0 {
			t.Errorf("PCI device %s reads as %+v", d.Address, d)
		}
	}
	for _, d := range live.NetDevices() {
		if d.Name == "lo" && d.MAC != "00:00:00:00:00:00" {
			t.Errorf("the loopback reads as %+v", d)
		}
	}
}
