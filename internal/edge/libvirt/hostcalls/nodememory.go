package hostcalls

import (
	"context"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// NodeMemoryCalls read and change the merging of equal pages (KSM: virsh node-memory-tune) and the pools of huge pages
// (virsh allocpages).
func NodeMemoryCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcNodeGetMemoryParameters, nodeGetMemoryParameters)
	rpc.On(g, xdr.ProcNodeSetMemoryParameters, nodeSetMemoryParameters)
	rpc.On(g, xdr.ProcNodeAllocPages, nodeAllocPages)
}

// memoryParameter is a parameter of KSM, by libvirt's name and the kernel's file. A parameter without write is only
// read.
type memoryParameter struct {
	name, file string
	read       func(kernel.KSM) xdr.TypedValue
	write      func(s *kernel.KSMSettings, value uint32)
}

// memoryParameters are those of libvirt's API (virNodeGetMemoryParameters).
var memoryParameters = []memoryParameter{
	{
		"shm_pages_to_scan", "pages_to_scan", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint(uint32(k.PagesToScan)) },
		func(s *kernel.KSMSettings, v uint32) { s.PagesToScan = new(uint64(v)) },
	},
	{
		"shm_sleep_millisecs", "sleep_millisecs", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint(uint32(k.Sleep.Milliseconds())) },
		func(s *kernel.KSMSettings, v uint32) { s.Sleep = new(time.Duration(v) * time.Millisecond) },
	},
	{"shm_pages_shared", "pages_shared", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint64(k.PagesShared) }, nil},
	{"shm_pages_sharing", "pages_sharing", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint64(k.PagesSharing) }, nil},
	{"shm_pages_unshared", "pages_unshared", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint64(k.PagesUnshared) }, nil},
	{"shm_pages_volatile", "pages_volatile", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint64(k.PagesVolatile) }, nil},
	{"shm_full_scans", "full_scans", func(k kernel.KSM) xdr.TypedValue { return xdr.Uint64(k.FullScans) }, nil},
	{
		"shm_merge_across_nodes", "merge_across_nodes", func(k kernel.KSM) xdr.TypedValue {
			if k.MergeAcrossNodes {
				return xdr.Uint(1)
			}
			return xdr.Uint(0)
		},
		func(s *kernel.KSMSettings, v uint32) { s.MergeAcrossNodes = new(v != 0) },
	},
}

// nodeGetMemoryParameters leaves out what this kernel does not know. A kernel without KSM has none.
func nodeGetMemoryParameters(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeGetMemoryParametersArgs) (*xdr.NodeGetMemoryParametersRet, error) {
	if _, err := rpc.ParamFlags("NODE_GET_MEMORY_PARAMETERS", args.Flags, 0); err != nil {
		return nil, err
	}
	k, err := h.Host.PageSharing()
	if fault.Is(err, fault.Unsupported) {
		return &xdr.NodeGetMemoryParametersRet{}, nil
	}
	if err != nil {
		return nil, err
	}
	var params []xdr.TypedParam
	for _, p := range memoryParameters {
		if k.Knows(p.file) {
			params = append(params, xdr.TypedParam{Field: p.name, Value: p.read(k)})
		}
	}
	params, count, err := rpc.ParamsOrCount(params, args.NParams)
	return &xdr.NodeGetMemoryParametersRet{Params: params, NParams: count}, err
}

func nodeSetMemoryParameters(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeSetMemoryParametersArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("NODE_SET_MEMORY_PARAMETERS", args.Flags, 0); err != nil {
		return nil, err
	}
	k, err := h.Host.PageSharing()
	if err != nil {
		return nil, err
	}
	s, err := pageSharingSettings(k, args.Params)
	if err != nil {
		return nil, err
	}
	return nil, h.Host.SetPageSharing(s)
}

// pageSharingSettings makes settings of parameters. It refuses all if it refuses one.
func pageSharingSettings(k kernel.KSM, params []xdr.TypedParam) (s kernel.KSMSettings, err error) {
	if err := rpc.CheckParamNames(params, func(name string) bool { return findWritable(name) != nil }); err != nil {
		return s, err
	}
	for _, given := range params {
		p := findWritable(given.Field)
		switch {
		case given.Value.Kind() != xdr.KindUint:
			return s, fault.New(fault.Invalid, fault.Call, "invalid type for parameter '%s', expected 'uint'", given.Field)
		case !k.Knows(p.file):
			return s, fault.New(fault.WrongState, fault.Host, "parameter '%s' is not supported by this kernel", given.Field)
		}
		p.write(&s, uint32(given.Value.Uint()))
	}
	return s, nil
}

// findWritable finds a parameter that can be changed; nil: there is none of that name.
func findWritable(name string) *memoryParameter {
	i := slices.IndexFunc(memoryParameters, func(p memoryParameter) bool { return p.name == name && p.write != nil })
	if i < 0 {
		return nil
	}
	return &memoryParameters[i]
}
