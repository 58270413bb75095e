package hostcalls

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// A recorded host's pool takes each number that is written. The refusals are Lodge's and libvirt's.
func TestNodeAllocPages_RecordedHost(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Laptop)
	kerneltest.Write(t, dir, "sys/devices/system/node/node0/hugepages/hugepages-2048kB/surplus_hugepages = 0\n")
	inv, err := resources.NewInventory(kernel.At(dir))
	if err != nil {
		t.Fatal(err)
	}
	h := &rpc.Handlers{Backends: rpc.Backends{Host: inv}}
	ask := func(kib uint32, count uint64, flags uint32) (int32, error) {
		ret, err := nodeAllocPages(t.Context(), h, nil, &xdr.NodeAllocPagesArgs{PageSizes: []uint32{kib}, PageCounts: []uint64{count}, CellCount: 1, Flags: flags})
		if err != nil {
			return 0, err
		}
		return ret.Count, nil
	}
	before, err := inv.HugePool(0, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ask(2048, 3, 0); n != 1 || err != nil {
		t.Errorf("three more pages: %d pools, %v", n, err)
	}
	if now, _ := inv.HugePool(0, 2<<20); now.Total != before.Total+3 {
		t.Errorf("the pool has %d pages, and had %d", now.Total, before.Total)
	}
	if _, err := ask(2048, before.Total, setPools); err != nil {
		t.Errorf("as before: %v", err)
	}
	for name, c := range map[string]struct {
		kib   uint32
		count uint64
		flags uint32
		kind  fault.Kind
	}{
		"base pages":           {4, 1, 0, fault.Unsupported},
		"no such size":         {3072, 1, 0, fault.NotFound},
		"more than there is":   {2048, 1 << 40, 0, fault.NoCapacity},
		"more than can be":     {2048, ^uint64(0), 0, fault.NoCapacity},
		"a flag of the future": {2048, 1, 2, fault.Invalid},
	} {
		if _, err := ask(c.kib, c.count, c.flags); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
