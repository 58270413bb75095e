package domaincalls

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
)

// DomainStatsCalls return the resource use of domains.
func DomainStatsCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainBlockStats, domainBlockStats)
	rpc.On(g, xdr.ProcDomainBlockStatsFlags, domainBlockStatsFlags)
	rpc.On(g, xdr.ProcDomainInterfaceStats, domainInterfaceStats)
	rpc.On(g, xdr.ProcDomainMemoryStats, domainMemoryStats)
	rpc.On(g, xdr.ProcDomainGetBlockInfo, domainGetBlockInfo)
	rpc.On(g, xdr.ProcDomainGetDiskErrors, domainGetDiskErrors)
	rpc.On(g, xdr.ProcDomainGetCPUStats, domainGetCPUStats)
	rpc.OnAfterReply(g, xdr.ProcConnectGetAllDomainStats, connectGetAllDomainStats)
}

// maxSampleAge is the largest age of a sample that answers a call.
const maxSampleAge = 500 * time.Millisecond

// sampleTimeout bounds how long a call about one domain waits for a new sample.
const sampleTimeout = 2 * time.Second

// sampleStats returns a sample of a running domain, at most maxSampleAge old.
func sampleStats(ctx context.Context, h *rpc.Handlers, d xdr.Domain) (*machine.Stats, error) {
	g, _, err := activeGuest(h, d)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sampleTimeout,
		fault.New(fault.Timeout, fault.Monitor, "QEMU did not answer within %v", sampleTimeout))
	defer cancel()
	return statistics.Stats(ctx, g, maxSampleAge)
}

// diskStats returns the counters of the disk with a target or path; without a name, the
// sum over all disks. Stale counters are an error, because the reply has no field for
// their age.
func diskStats(ctx context.Context, h *rpc.Handlers, d xdr.Domain, name string) (machine.DiskStats, error) {
	st, err := sampleStats(ctx, h, d)
	if err != nil {
		return machine.DiskStats{}, err
	}
	if st.Stale != nil {
		return machine.DiskStats{}, st.Stale
	}
	var sum machine.DiskStats
	for _, disk := range st.Disks {
		if name != "" && (disk.Target == name || disk.Path == name) {
			return disk, nil
		}
		sum.ReadOps += disk.ReadOps
		sum.ReadBytes += disk.ReadBytes
		sum.ReadTime += disk.ReadTime
		sum.WriteOps += disk.WriteOps
		sum.WriteBytes += disk.WriteBytes
		sum.WriteTime += disk.WriteTime
		sum.FlushOps += disk.FlushOps
		sum.FlushTime += disk.FlushTime
	}
	if name != "" {
		return sum, fault.New(fault.Invalid, fault.Call, "invalid path: %s", name)
	}
	return sum, nil
}

func domainBlockStats(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainBlockStatsArgs) (*xdr.DomainBlockStatsRet, error) {
	disk, err := diskStats(ctx, h, args.Domain, args.Path)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainBlockStatsRet{
		ReadRequests: int64(disk.ReadOps), ReadBytes: int64(disk.ReadBytes),
		WriteRequests: int64(disk.WriteOps), WriteBytes: int64(disk.WriteBytes), Errors: -1, // not counted
	}, nil
}

func domainBlockStatsFlags(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainBlockStatsFlagsArgs) (*xdr.DomainBlockStatsFlagsRet, error) {
	if _, err := rpc.ParamFlags("DOMAIN_BLOCK_STATS_FLAGS", args.Flags, 0); err != nil {
		return nil, err
	}
	disk, err := diskStats(ctx, h, args.Domain, args.Path)
	if err != nil {
		return nil, err
	}
	params := []xdr.TypedParam{
		{Field: "wr_bytes", Value: xdr.Int64(int64(disk.WriteBytes))},
		{Field: "wr_operations", Value: xdr.Int64(int64(disk.WriteOps))},
		{Field: "rd_bytes", Value: xdr.Int64(int64(disk.ReadBytes))},
		{Field: "rd_operations", Value: xdr.Int64(int64(disk.ReadOps))},
		{Field: "flush_operations", Value: xdr.Int64(int64(disk.FlushOps))},
		{Field: "wr_total_times", Value: xdr.Int64(int64(disk.WriteTime))},
		{Field: "rd_total_times", Value: xdr.Int64(int64(disk.ReadTime))},
		{Field: "flush_total_times", Value: xdr.Int64(int64(disk.FlushTime))},
	}
	ret := &xdr.DomainBlockStatsFlagsRet{}
	ret.Params, ret.NParams, err = rpc.ParamsOrCount(params, args.NParams)
	return ret, err
}

func domainInterfaceStats(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainInterfaceStatsArgs) (*xdr.DomainInterfaceStatsRet, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	n, err := hotplug.InterfaceStats(g, args.Device)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainInterfaceStatsRet{
		RxBytes: int64(n.RxBytes), RxPackets: int64(n.RxPackets), RxErrors: int64(n.RxErrors), RxDrops: int64(n.RxDropped),
		TxBytes: int64(n.TxBytes), TxPackets: int64(n.TxPackets), TxErrors: int64(n.TxErrors), TxDrops: int64(n.TxDropped),
	}, nil
}

// balloonStat is a statistic that the guest reports: its tag in DOMAIN_MEMORY_STATS,
// its name in CONNECT_GET_ALL_DOMAIN_STATS, and its unit in bytes.
type balloonStat struct {
	figure machine.BalloonFigure
	tag    int32
	name   string
	unit   uint64
}

// BalloonStats are the guest's statistics with libvirt's tag, name and unit for each.
var BalloonStats = []balloonStat{
	{machine.SwappedIn, 0, "balloon.swap_in", 1024},
	{machine.SwappedOut, 1, "balloon.swap_out", 1024},
	{machine.MajorFaults, 2, "balloon.major_fault", 1},
	{machine.MinorFaults, 3, "balloon.minor_fault", 1},
	{machine.FreeMemory, 4, "balloon.unused", 1024},
	{machine.TotalMemory, 5, "balloon.available", 1024},
	{machine.AvailableMemory, 8, "balloon.usable", 1024},
	{machine.DiskCaches, 10, "balloon.disk_caches", 1024},
	{machine.HugePagesGiven, 11, "balloon.hugetlb_pgalloc", 1},
	{machine.HugePagesRefused, 12, "balloon.hugetlb_pgfail", 1},
}

// Tags of the statistics that the host knows.
const (
	tagActual     = 6
	tagRSS        = 7
	tagLastUpdate = 9
)

func domainMemoryStats(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainMemoryStatsArgs) (*xdr.DomainMemoryStatsRet, error) {
	if err := rpc.CheckFlags("DOMAIN_MEMORY_STATS", args.Flags, 0); err != nil {
		return nil, err
	}
	st, err := sampleStats(ctx, h, args.Domain)
	if err != nil {
		return nil, err
	}
	all := []xdr.DomainMemoryStat{{Tag: tagActual, Value: st.Balloon.Current / 1024}}
	for _, f := range BalloonStats {
		if value, ok := statistics.Figure(&st.Balloon, f.figure); ok {
			all = append(all, xdr.DomainMemoryStat{Tag: f.tag, Value: value / f.unit})
		}
	}
	if !st.Balloon.Updated.IsZero() {
		all = append(all, xdr.DomainMemoryStat{Tag: tagLastUpdate, Value: uint64(st.Balloon.Updated.Unix())})
	}
	all = append(all, xdr.DomainMemoryStat{Tag: tagRSS, Value: st.Resident / 1024})
	return &xdr.DomainMemoryStatsRet{Stats: all[:min(uint64(len(all)), uint64(args.MaxStats))]}, nil
}

func domainGetBlockInfo(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetBlockInfoArgs) (*xdr.DomainGetBlockInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_BLOCK_INFO", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	info, err := statistics.GetBlockInfo(ctx, g, s.Scope, args.Path)
	return &xdr.DomainGetBlockInfoRet{Allocation: info.Allocation, Capacity: info.Capacity, Physical: info.Physical}, err
}

// diskErrors are libvirt's numbers for disk errors.
var diskErrors = rpc.EnumValues{"unspecified": 1, "no space": 2}

func domainGetDiskErrors(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetDiskErrorsArgs) (*xdr.DomainGetDiskErrorsRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_DISK_ERRORS", args.Flags, 0); err != nil {
		return nil, err
	}
	g, v, err := activeGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	ret := &xdr.DomainGetDiskErrorsRet{NErrors: int32(len(v.Active.Devices.Disks))}
	if args.MaxErrors == 0 { // the client asks how many there can be
		return ret, nil
	}
	failed, err := statistics.DiskErrors(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, disk := range v.Active.Devices.Disks {
		if word, ok := failed[disk.Target]; ok && uint32(len(ret.Errors)) < min(args.MaxErrors, xdr.MaxDomainDiskErrors) {
			ret.Errors = append(ret.Errors, xdr.DomainDiskError{Disk: disk.Target, Error: diskErrors[word]})
		}
	}
	ret.NErrors = int32(len(ret.Errors))
	return ret, nil
}
