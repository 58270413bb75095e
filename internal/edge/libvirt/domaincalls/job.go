package domaincalls

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DomainJobCalls report a domain's job and abort it.
func DomainJobCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetJobInfo, domainGetJobInfo)
	rpc.On(g, xdr.ProcDomainGetJobStats, domainGetJobStats)
	rpc.On(g, xdr.ProcDomainAbortJob, domainCall(guest.AbortJob))
	rpc.On(g, xdr.ProcDomainAbortJobFlags, flaggedCall("DOMAIN_ABORT_JOB_FLAGS", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.AbortJob(ctx, g, sc)
	}))
}

// Types of jobs (virDomainJobType): the state of a job.
const (
	JobNone      = 0
	JobUnbounded = 2
	JobCompleted = 3
	JobFailed    = 4
	JobCancelled = 5
)

// JobType returns the type of a job by its progress.
func JobType(p domain.Progress) int32 {
	switch {
	case p.Kind == domain.JobNone:
		return JobNone
	case p.Ended.IsZero():
		return JobUnbounded
	case p.Cancelled:
		return JobCancelled
	case p.Err != "":
		return JobFailed
	}
	return JobCompleted
}

// elapsed returns the duration of a job, up to now or to its end, in milliseconds.
func elapsed(p domain.Progress) uint64 {
	end := p.Ended
	if end.IsZero() {
		end = time.Now()
	}
	return uint64(max(0, end.Sub(p.Started).Milliseconds()))
}

// MemoryJob returns the progress of a job that transfers memory, and none for other jobs:
// libvirt's clients do not know these.
func MemoryJob(p domain.Progress) domain.Progress {
	switch p.Kind {
	case domain.JobSave, domain.JobRestore, domain.JobDump:
		return p
	case domain.JobNone, domain.JobStart, domain.JobModify, domain.JobDestroy, domain.JobShutdown, domain.JobQuery:
	}
	return domain.Progress{}
}

func domainGetJobInfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetJobInfoArgs) (*xdr.DomainGetJobInfoRet, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	p := MemoryJob(g.Job())
	if p.Kind == domain.JobNone {
		return &xdr.DomainGetJobInfoRet{Type: JobNone}, nil
	}
	return &xdr.DomainGetJobInfoRet{
		Type: JobType(p), TimeElapsed: elapsed(p),
		DataTotal: p.MemTotal, DataProcessed: p.MemProcessed, DataRemaining: p.MemRemaining,
		MemTotal: p.MemTotal, MemProcessed: p.MemProcessed, MemRemaining: p.MemRemaining,
	}, nil
}

// Flags of the statistics of a job.
const (
	JobStatsCompleted = 1
	jobStatsKeep      = 2 // keep the statistics of a completed job; they are always kept
)

func domainGetJobStats(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetJobStatsArgs) (*xdr.DomainGetJobStatsRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_JOB_STATS", args.Flags, JobStatsCompleted|jobStatsKeep); err != nil {
		return nil, err
	}
	if args.Flags == jobStatsKeep {
		return nil, fault.New(fault.Invalid, fault.Call, "only the statistics of a completed job can be kept")
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	p := MemoryJob(g.Job())
	if args.Flags&JobStatsCompleted != 0 {
		p = MemoryJob(g.View().LastJob)
	}
	ret := &xdr.DomainGetJobStatsRet{Type: JobType(p)}
	if p.Kind != domain.JobNone {
		ret.Params = jobParams(p)
	}
	return ret, nil
}

func jobParams(p domain.Progress) []xdr.TypedParam {
	params := []xdr.TypedParam{
		{Field: "operation", Value: xdr.Int(rpc.JobOperations[string(p.Kind)])},
		{Field: "time_elapsed", Value: xdr.Uint64(elapsed(p))},
	}
	for _, f := range []struct {
		name  string
		value uint64
	}{
		{"data_total", p.MemTotal},
		{"data_processed", p.MemProcessed},
		{"data_remaining", p.MemRemaining},
		{"memory_total", p.MemTotal},
		{"memory_processed", p.MemProcessed},
		{"memory_remaining", p.MemRemaining},
		{"memory_bps", p.MemRate},
		{"memory_constant", p.MemConstant},
		{"memory_normal", p.MemNormal},
		{"memory_normal_bytes", p.MemNormalBytes},
		{"memory_dirty_rate", p.DirtyRate},
		{"memory_iteration", p.Iterations},
		{"downtime", uint64(p.Downtime.Milliseconds())},
		{"setup_time", uint64(p.Setup.Milliseconds())},
	} {
		params = append(params, xdr.TypedParam{Field: f.name, Value: xdr.Uint64(f.value)})
	}
	if p.Ended.IsZero() {
		return params
	}
	params = append(params, xdr.TypedParam{Field: "success", Value: xdr.Bool(p.Err == "")})
	if p.Err != "" {
		params = append(params, xdr.TypedParam{Field: "errmsg", Value: xdr.String(rpc.StripControl(p.Err))})
	}
	return params
}
