package kernel_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

func TestSwapAreas(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	got, err := kernel.At(dir).SwapAreas()
	want := []kernel.SwapArea{
		{Path: "/dev/nvme0n1p3", Size: 8388604 << 10, Used: 12288 << 10, Priority: -2},
		{Path: "/srv/my swap\nfile (deleted)", File: true, Size: 1048572 << 10, Priority: 5},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for text, areas := range map[string]int{
		"Filename\tType\tSize\tUsed\tPriority\n": 0,
		"/a\u00a0b\u2003c\vd file 4 0 1\n":       1, // blanks that the kernel does not escape
		"/a file 18446744073709551615 0 1\n":     0,
		"/a file 4 -1 1\n":                       0,
		"/a socket 4 0 1\n":                      0,
	} {
		overwrite(t, dir, map[string]string{"proc/swaps": text})
		if got, err := kernel.At(dir).SwapAreas(); err != nil || len(got) != areas {
			t.Errorf("%q has %d areas, want %d: %v", text, len(got), areas, err)
		}
	}
	overwrite(t, dir, map[string]string{"proc/swaps": strings.Repeat("/a file 4 0 1\n", 65)})
	if _, err := kernel.At(dir).SwapAreas(); !fault.Is(err, fault.Failed) {
		t.Errorf("more areas than there can be: %v", err)
	}
}

func TestZswapAndSwappiness(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	root := kernel.At(dir)
	got, err := root.Zswap()
	want := kernel.Zswap{Enabled: true, Compressor: "zstd", MaxPoolPercent: 20, Held: 4 << 20, Stored: 12 << 20, Absent: []string{"shrinker_enabled"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if err := root.SetZswap(false); err != nil || content(t, dir, "sys/module/zswap/parameters/enabled") != "N" {
		t.Errorf("zswap stays on: %v", err)
	}
	if err := root.SetSwappiness(60); err != nil {
		t.Error(err)
	}
	if n, err := root.Swappiness(); n != 60 || err != nil {
		t.Errorf("swappiness %d, %v", n, err)
	}
	if err := root.SetSwappiness(201); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	overwrite(t, dir, map[string]string{"proc/sys/vm/swappiness": "-1\n"})
	if n, err := root.Swappiness(); err == nil || !strings.Contains(err.Error(), `"-1"`) {
		t.Errorf("a swappiness below zero reads as %d, %v", n, err)
	}
	if _, err := kernel.At(t.TempDir()).Zswap(); !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
}

func TestSwap_Live(t *testing.T) {
	var live kernel.Root
	if _, err := live.SwapAreas(); err != nil {
		t.Error(err)
	}
	if _, err := live.Zswap(); err != nil && !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
	before, err := live.Swappiness()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("setting swappiness needs root")
	}
	if err := live.SetSwappiness(before); err != nil && !fault.Is(err, fault.Denied) {
		t.Error(err)
	}
}
