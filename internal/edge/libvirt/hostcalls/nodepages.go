package hostcalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// setPools is VIR_NODE_ALLOC_PAGES_SET: the counts are sizes of pools. Otherwise they are pages to add.
const setPools = 1

// nodeAllocPages grows or shrinks pools of huge pages, and returns the number of changed pools. It stops at the first
// pool that the kernel does not change as asked.
func nodeAllocPages(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeAllocPagesArgs) (*xdr.NodeAllocPagesRet, error) {
	if err := rpc.CheckFlags("NODE_ALLOC_PAGES", args.Flags, setPools); err != nil {
		return nil, err
	}
	if len(args.PageSizes) != len(args.PageCounts) {
		return nil, fault.New(fault.Invalid, fault.Call, "%d page sizes and %d counts: there must be one count for each size", len(args.PageSizes), len(args.PageCounts))
	}
	cells, err := cellRange(h, args.StartCell, args.CellCount)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeAllocPagesRet{}
	for _, cell := range cells {
		for i, kib := range args.PageSizes {
			if err := resizePool(h, cell, uint64(kib)<<10, args.PageCounts[i], args.Flags&setPools == 0); err != nil {
				return nil, err
			}
			ret.Count++
		}
	}
	return ret, nil
}

// resizePool changes one pool. It refuses to take memory that the host does not have: the kernel would take all of it.
func resizePool(h *rpc.Handlers, cell int, size, count uint64, add bool) error {
	if size == topology.BasePage {
		return rpc.WithCode(rpc.CodeUnsupported, fault.New(fault.Unsupported, fault.Host, "system pages pool can't be modified"))
	}
	pool, err := h.Host.HugePool(cell, size)
	if err != nil {
		return err
	}
	want := count
	if add {
		want = pool.Total + min(count, ^uint64(0)-pool.Total)
	}
	if want == pool.Total {
		return nil
	}
	memory, err := h.Host.Memory()
	if err != nil {
		return err
	}
	if more := want - min(pool.Total, want); more > memory.Available/size {
		return fault.New(fault.NoCapacity, fault.Host, "%d more pages of %d KiB are more than the host's available memory of %d KiB; ask for %d at most",
			more, size>>10, memory.Available>>10, memory.Available/size)
	}
	got, err := h.Host.SetHugePool(cell, size, want)
	if err == nil && got.Total != want {
		err = rpc.WithCode(rpc.CodeOperationFailed, fault.New(fault.Failed, fault.Host, "Unable to allocate %d pages. Allocated only %d", want, got.Total))
	}
	return err
}
