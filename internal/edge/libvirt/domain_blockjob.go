package libvirt

import (
	"context"
	"math"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
)

// domainBlockJobCalls start, report and end QEMU's jobs on a disk's backing chain.
func domainBlockJobCalls(g group) {
	on(g, xdr.ProcDomainBlockCommit, (*handlers).domainBlockCommit)
	on(g, xdr.ProcDomainBlockJobAbort, (*handlers).domainBlockJobAbort)
	on(g, xdr.ProcDomainGetBlockJobInfo, (*handlers).domainGetBlockJobInfo)
	on(g, xdr.ProcDomainBlockJobSetSpeed, (*handlers).domainBlockJobSetSpeed)
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

func (h *handlers) domainBlockCommit(ctx context.Context, s *request, args *xdr.DomainBlockCommitArgs) (*void, error) {
	if args.Flags&commitDelete != 0 {
		return nil, fault.New(fault.Unsupported, fault.Call, "virsh blockcommit --delete is not built; delete the images that were committed yourself, with virsh vol-delete")
	}
	if err := checkFlags("DOMAIN_BLOCK_COMMIT", args.Flags, commitShallow|commitActive|commitRelative|commitBytes); err != nil {
		return nil, err
	}
	speed, err := bytesASecond(args.Bandwidth, args.Flags&commitBytes != 0)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, ofBlockJob(blockjob.BlockCommit(ctx, g, s.scope, args.Disk, blockjob.CommitOptions{
		Base: given(args.Base), Top: given(args.Top), Speed: speed,
		Shallow: args.Flags&commitShallow != 0, Active: args.Flags&commitActive != 0, Relative: args.Flags&commitRelative != 0,
	}))
}

func (h *handlers) domainBlockJobAbort(ctx context.Context, s *request, args *xdr.DomainBlockJobAbortArgs) (*void, error) {
	if err := checkFlags("DOMAIN_BLOCK_JOB_ABORT", args.Flags, abortAsync|abortPivot); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, ofBlockJob(blockjob.EndBlockJob(ctx, g, s.scope, args.Path, args.Flags&abortPivot != 0, args.Flags&abortAsync != 0))
}

func (h *handlers) domainGetBlockJobInfo(ctx context.Context, s *request, args *xdr.DomainGetBlockJobInfoArgs) (*xdr.DomainGetBlockJobInfoRet, error) {
	if err := checkFlags("DOMAIN_GET_BLOCK_JOB_INFO", args.Flags, infoBytes); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	j, found, err := blockjob.QueryJob(ctx, g, s.scope, args.Path)
	if err != nil || !found {
		return &xdr.DomainGetBlockJobInfoRet{}, err
	}
	ret := &xdr.DomainGetBlockJobInfoRet{Found: true, Type: blockJobKinds[j.Kind], Bandwidth: j.Speed, Cursor: j.Done, End: j.Total}
	if args.Flags&infoBytes == 0 {
		ret.Bandwidth = (j.Speed + 1<<20 - 1) >> 20
	}
	return ret, nil
}

func (h *handlers) domainBlockJobSetSpeed(ctx context.Context, s *request, args *xdr.DomainBlockJobSetSpeedArgs) (*void, error) {
	if err := checkFlags("DOMAIN_BLOCK_JOB_SET_SPEED", args.Flags, speedBytes); err != nil {
		return nil, err
	}
	speed, err := bytesASecond(args.Bandwidth, args.Flags&speedBytes != 0)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, blockjob.SetBlockJobSpeed(ctx, g, s.scope, args.Path, speed)
}

// bytesASecond gives a bandwidth that is in MiB a second unless it is in bytes.
func bytesASecond(bandwidth uint64, bytes bool) (uint64, error) {
	const most = math.MaxInt64 >> 20
	switch {
	case bytes:
		return bandwidth, nil
	case bandwidth > most:
		return 0, withCode(codeOverflow, fault.New(fault.Invalid, fault.Call, "bandwidth must be less than %d", uint64(most)))
	}
	return bandwidth << 20, nil
}

// ofBlockJob gives libvirt's own code for a disk that has a job which is not ready, or which is in the way.
func ofBlockJob(err error) error {
	if fault.Is(err, fault.Busy) && fault.About(err) == fault.Device {
		return withCode(codeBlockCopyActive, err)
	}
	return err
}
