package kernel_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

func TestMemoryRollup_Recorded(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	got, err := kernel.At(dir).MemoryRollup(7)
	want := kernel.MemoryRollup{
		Resident: 816960 << 10, Proportional: 600240 << 10, ProportionalAnon: 598112 << 10, Swap: 12288 << 10, ProportionalSwap: 12000 << 10,
		AnonHuge: 63488 << 10, Merged: 400000 << 10, SharedHuge: 2 << 20, PrivateHuge: 4 << 20, Locked: 16 << 10,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := kernel.At(dir).MemoryRollup(8); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestAnonymousMappings_Recorded(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	got, err := kernel.At(dir).AnonymousMappings(7, 2)
	want := []kernel.MemoryMapping{
		{Start: 0x7f0000000000, Size: 1 << 30, Resident: 400000 << 10, Swap: 4 << 20, AnonHuge: 60 << 20},
		{Start: 0x7f0050000000, Size: 512 << 20, Resident: 410000 << 10, Swap: 8 << 20, AnonHuge: 2 << 20, Merged: 400000 << 10, Mergeable: true},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if all, err := kernel.At(dir).AnonymousMappings(7, 100); err != nil || len(all) != 3 {
		t.Errorf("%+v, %v", all, err)
	}
	if none, err := kernel.At(dir).AnonymousMappings(7, 0); err != nil || len(none) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
	if _, err := kernel.At(dir).AnonymousMappings(8, 1); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// A QEMU with thousands of mappings is read, and one with more than a bound is refused.
func TestAnonymousMappings_Many(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	var text strings.Builder
	for i := range 9000 {
		fmt.Fprintf(&text, "%x-%x rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: rd wr mg\n", i<<32, i<<32+4096*(i+1))
	}
	overwrite(t, dir, map[string]string{"proc/7/smaps": text.String()})
	got, err := kernel.At(dir).AnonymousMappings(7, 3)
	if err != nil || len(got) != 3 || got[0].Size != 9000*4096 || got[2].Size != 8998*4096 || !got[0].Mergeable {
		t.Errorf("%+v, %v", got, err)
	}
	overwrite(t, dir, map[string]string{"proc/7/smaps": strings.Repeat(text.String(), 1+32<<20/text.Len())})
	if got, err := kernel.At(dir).AnonymousMappings(7, 3); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("%+v, %v", got, err)
	}
	overwrite(t, dir, map[string]string{"proc/7/smaps": strings.Repeat("x", 1<<20)})
	if got, err := kernel.At(dir).AnonymousMappings(7, 3); !fault.Is(err, fault.Failed) {
		t.Errorf("a line without end: %+v, %v", got, err)
	}
}

// This process has memory merged, and no longer. KSM itself need not run.
func TestAnonymousMappings_Live(t *testing.T) {
	const size = 256 << 20 // untouched, and larger than what else this process has in one piece
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	for _, advice := range []struct {
		value     int
		mergeable bool
	}{{unix.MADV_NORMAL, false}, {unix.MADV_MERGEABLE, true}, {unix.MADV_UNMERGEABLE, false}} {
		if err := unix.Madvise(memory, advice.value); err != nil {
			t.Skip("this kernel has no KSM: ", err)
		}
		all, err := kernel.Root{}.AnonymousMappings(os.Getpid(), 64)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, m := range all {
			if start >= m.Start && start < m.Start+m.Size && m.Size >= size {
				found = true
				if m.Mergeable != advice.mergeable {
					t.Errorf("after advice %d: %+v", advice.value, m)
				}
			}
		}
		if !found {
			t.Errorf("the mapping at %x is not in %+v", start, all)
		}
	}
	if m, err := (kernel.Root{}).MemoryRollup(os.Getpid()); err != nil || m.Resident == 0 || m.Proportional > m.Resident {
		t.Errorf("%+v, %v", m, err)
	}
}
