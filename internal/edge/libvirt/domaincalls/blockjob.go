package domaincalls

import (
	"context"
	"math"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
)

// DomainBlockJobCalls start, report and end QEMU's block jobs.
func DomainBlockJobCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainBlockCommit, domainBlockCommit)
	rpc.On(g, xdr.ProcDomainBlockJobAbort, domainBlockJobAbort)
	rpc.On(g, xdr.ProcDomainGetBlockJobInfo, domainGetBlockJobInfo)
	rpc.On(g, xdr.ProcDomainBlockJobSetSpeed, domainBlockJobSetSpeed)
}

// Flags of the calls.
const (
	commitShallow  = 1
	commitDelete   = 2
	commitActive   = 4
	commitRelative = 8
	commitBytes    = 16 // the bandwidth is in bytes a second

	abortAsync = 1
	abortPivot = 2

	infoBytes  = 1
	speedBytes = 1
)

func domainBlockCommit(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainBlockCommitArgs) (*rpc.Void, error) {
	if args.Flags&commitDelete != 0 {
		return nil, fault.New(fault.Unsupported, fault.Call, "virsh blockcommit --delete is not built; delete the committed images yourself, with virsh vol-delete")
	}
	if err := rpc.CheckFlags("DOMAIN_BLOCK_COMMIT", args.Flags, commitShallow|commitActive|commitRelative|commitBytes); err != nil {
		return nil, err
	}
	speed, err := bandwidthBytes(args.Bandwidth, args.Flags&commitBytes != 0)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, blockJobError(blockjob.BlockCommit(ctx, g, s.Scope, args.Disk, blockjob.CommitOptions{
		Base: rpc.StringValue(args.Base), Top: rpc.StringValue(args.Top), Speed: speed,
		Shallow: args.Flags&commitShallow != 0, Active: args.Flags&commitActive != 0, Relative: args.Flags&commitRelative != 0,
	}))
}

func domainBlockJobAbort(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainBlockJobAbortArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_BLOCK_JOB_ABORT", args.Flags, abortAsync|abortPivot); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, blockJobError(blockjob.EndBlockJob(ctx, g, s.Scope, args.Path, args.Flags&abortPivot != 0, args.Flags&abortAsync != 0))
}

func domainGetBlockJobInfo(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetBlockJobInfoArgs) (*xdr.DomainGetBlockJobInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_BLOCK_JOB_INFO", args.Flags, infoBytes); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	j, found, err := blockjob.QueryJob(ctx, g, s.Scope, args.Path)
	if err != nil || !found {
		return &xdr.DomainGetBlockJobInfoRet{}, err
	}
	ret := &xdr.DomainGetBlockJobInfoRet{Found: true, Type: rpc.BlockJobKinds[j.Kind], Bandwidth: j.Speed, Cursor: j.Done, End: j.Total}
	if args.Flags&infoBytes == 0 {
		ret.Bandwidth = (j.Speed + 1<<20 - 1) >> 20
	}
	return ret, nil
}

func domainBlockJobSetSpeed(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainBlockJobSetSpeedArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_BLOCK_JOB_SET_SPEED", args.Flags, speedBytes); err != nil {
		return nil, err
	}
	speed, err := bandwidthBytes(args.Bandwidth, args.Flags&speedBytes != 0)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, blockjob.SetBlockJobSpeed(ctx, g, s.Scope, args.Path, speed)
}

// bandwidthBytes returns a bandwidth in bytes a second; bytes: it is in that unit, and not in MiB a second.
func bandwidthBytes(bandwidth uint64, bytes bool) (uint64, error) {
	const limit = math.MaxInt64 >> 20
	switch {
	case bytes:
		return bandwidth, nil
	case bandwidth > limit:
		return 0, rpc.WithCode(rpc.CodeOverflow, fault.New(fault.Invalid, fault.Call, "bandwidth must be less than %d", uint64(limit)))
	}
	return bandwidth << 20, nil
}

// blockJobError gives an error about a disk with another job, or one that is not ready, libvirt's code for that.
func blockJobError(err error) error {
	if fault.Is(err, fault.Busy) && fault.About(err) == fault.Device {
		return rpc.WithCode(rpc.CodeBlockCopyActive, err)
	}
	return err
}
