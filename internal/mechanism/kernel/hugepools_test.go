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

func TestHugePools_Recorded(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Memory)
	root := kernel.At(dir)
	got, err := root.HugePools()
	want := []kernel.HugePool{
		{Node: 0, Size: 1 << 30},
		{Node: 0, Size: 2 << 20, Total: 64, Free: 60, Surplus: 1},
		{Node: 1, Size: 2 << 20, Total: 32, Free: 32},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	pool, err := root.SetHugePool(1, 2<<20, 128)
	if err != nil || pool.Total != 128 || content(t, dir, "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages") != "128" {
		t.Errorf("%+v, %v", pool, err)
	}
	if pool, err := root.SetHugePool(0, 2<<20, 4097); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "makes 4096") {
		t.Errorf("more than there is: %+v, %v", pool, err)
	}
	for _, wrong := range []kernel.HugePool{{Node: 2, Size: 2 << 20}, {Node: 1, Size: 1 << 30}} {
		if _, err := root.SetHugePool(wrong.Node, wrong.Size, 1); !fault.Is(err, fault.NotFound) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	overwrite(t, dir, map[string]string{"sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages": "some\n"})
	if _, err := root.HugePools(); err == nil || !strings.Contains(err.Error(), `"some`) {
		t.Errorf("a file that is not understood: %v", err)
	}
}

func TestHugePools_WithoutNodes(t *testing.T) {
	dir := t.TempDir()
	kerneltest.Write(t, dir, `proc/meminfo = MemTotal: 1048576 kB
sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 3
sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages = 2
sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages = 0
`)
	root := kernel.At(dir)
	got, err := root.HugePools()
	if diff := cmp.Diff([]kernel.HugePool{{Size: 2 << 20, Total: 3, Free: 2}}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if pool, err := root.SetHugePool(0, 2<<20, 5); err != nil || pool.Total != 5 {
		t.Errorf("%+v, %v", pool, err)
	}
	if pools, err := kernel.At(t.TempDir()).HugePools(); err != nil || len(pools) != 0 {
		t.Errorf("%+v, %v", pools, err)
	}
}

// A page more and back, on this host.
func TestSetHugePool_Live(t *testing.T) {
	var live kernel.Root
	pools, err := live.HugePools()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || len(pools) == 0 {
		t.Skip("it needs root and huge pages")
	}
	before := pools[0]
	for _, p := range pools {
		if p.Size < before.Size {
			before = p
		}
	}
	t.Cleanup(func() {
		if after, err := live.SetHugePool(before.Node, before.Size, before.Total); err != nil || after.Total != before.Total {
			t.Errorf("%+v, and before %+v, %v", after, before, err)
		}
	})
	after, err := live.SetHugePool(before.Node, before.Size, before.Total+2)
	if fault.Is(err, fault.Denied) {
		t.Skip(err)
	}
	if err != nil || after.Total < before.Total || after.Total > before.Total+2 {
		t.Errorf("%+v, and before %+v, %v", after, before, err)
	}
}
