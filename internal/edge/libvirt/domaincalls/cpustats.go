package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// allCPUs as the first CPU asks for the sum over all.
const allCPUs = -1

// maxStatsCPUs is the largest number of CPUs that one call may ask for.
const maxStatsCPUs = 128

// domainGetCPUStats returns the CPU time that a domain used, in total or on each CPU
// of the host, in nanoseconds. With room for no parameters it returns their number for
// one CPU; asked for no CPUs, it returns the number of CPUs.
func domainGetCPUStats(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetCPUStatsArgs) (*xdr.DomainGetCPUStatsRet, error) {
	if _, err := rpc.ParamFlags("DOMAIN_GET_CPU_STATS", args.Flags, 0); err != nil {
		return nil, err
	}
	g, _, err := activeGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	used, err := statistics.Usage(g)
	if err != nil {
		return nil, err
	}
	if args.StartCPU == allCPUs {
		if args.NCPUs != 1 {
			return nil, fault.New(fault.Invalid, fault.Call, "the total is one entry; ask for 1 CPU, not for %d", args.NCPUs)
		}
		ret := new(xdr.DomainGetCPUStatsRet)
		ret.Params, ret.NParams, err = rpc.ParamsOrCount(cpuTotals(used), int32(min(args.NParams, xdr.MaxDomainCPUStats)))
		return ret, err
	}
	return CPUTimes(used, args)
}

func cpuTotals(used kernel.GroupStats) []xdr.TypedParam {
	return []xdr.TypedParam{
		{Field: "cpu_time", Value: xdr.Uint64(uint64(used.CPU))},
		{Field: "user_time", Value: xdr.Uint64(uint64(used.User))},
		{Field: "system_time", Value: xdr.Uint64(uint64(used.System))},
	}
}

// CPUTimes answers for single CPUs, with one parameter for each.
func CPUTimes(used kernel.GroupStats, args *xdr.DomainGetCPUStatsArgs) (*xdr.DomainGetCPUStatsRet, error) {
	switch count := len(used.PerCPU); {
	case count == 0:
		return nil, fault.New(fault.Unsupported, fault.Host, "this host does not count the time of a domain on single CPUs")
	case args.NCPUs == 0:
		return &xdr.DomainGetCPUStatsRet{NParams: int32(count)}, nil
	case args.StartCPU < 0 || int(args.StartCPU) >= count:
		return nil, fault.New(fault.Invalid, fault.Call, "start_cpu %d larger than maximum of %d", args.StartCPU, count-1)
	}
	ret := &xdr.DomainGetCPUStatsRet{NParams: 1}
	if args.NParams == 0 {
		return ret, nil
	}
	for _, t := range used.PerCPU[args.StartCPU:] {
		if len(ret.Params) == int(min(args.NCPUs, maxStatsCPUs)) {
			break
		}
		ret.Params = append(ret.Params, xdr.TypedParam{Field: "cpu_time", Value: xdr.Uint64(uint64(t))})
	}
	return ret, nil
}
