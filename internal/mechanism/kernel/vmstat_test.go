package kernel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

func TestVMCounters_Recorded(t *testing.T) {
	got, err := kerneltest.Host(t, kerneltest.Memory).VMCounters()
	want := kernel.VMCounters{
		SwapIns: 300, SwapOuts: 4000, ZswapIns: 15, MajorFaults: 231404, RefaultAnon: 120, RefaultFile: 12901722, AllocStalls: 10,
		ScanKswapd: 400, ScanDirect: 40, ScanProactive: 10, StealKswapd: 200, StealDirect: 20, StealProactive: 5, OOMKills: 2,
		THPFaults: 326766, THPFallbacks: 9, THPCollapses: 44, THPSplits: 11, THPSwapOuts: 12, CompactStalls: 8, KSMCopies: 14, KSMSwapInCopies: 13,
		Absent: []string{"zswpout"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := kernel.At(t.TempDir()).VMCounters(); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestVMCounters_Live(t *testing.T) {
	var live kernel.Root
	c, err := live.VMCounters()
	if err != nil || c.MajorFaults == 0 {
		t.Errorf("%+v, %v", c, err)
	}
	stalls, err := live.AllocationStalls()
	if err == nil && stalls < c.AllocStalls {
		t.Errorf("%d stalls, and %d before", stalls, c.AllocStalls)
	}
}
