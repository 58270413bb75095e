package libvirt

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// domainJobCalls report a domain's job and abort it.
func domainJobCalls(g group) {
	on(g, xdr.ProcDomainGetJobInfo, (*handlers).domainGetJobInfo)
	on(g, xdr.ProcDomainGetJobStats, (*handlers).domainGetJobStats)
	on(g, xdr.ProcDomainAbortJob, domainCall(guest.AbortJob))
	on(g, xdr.ProcDomainAbortJobFlags, flaggedCall("DOMAIN_ABORT_JOB_FLAGS", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.AbortJob(ctx, g, sc)
	}))
}

// Types of job, which is to say how a job stands.
const (
	jobNone      = 0
	jobUnbounded = 2
	jobCompleted = 3
	jobFailed    = 4
	jobCancelled = 5
)

func jobType(p domain.Progress) int32 {
	switch {
	case p.Kind == domain.JobNone:
		return jobNone
	case p.Ended.IsZero():
		return jobUnbounded
	case p.Cancelled:
		return jobCancelled
	case p.Err != "":
		return jobFailed
	}
	return jobCompleted
}

// elapsed is the duration of a job, up to now or to its end, in milliseconds.
func elapsed(p domain.Progress) uint64 {
	end := p.Ended
	if end.IsZero() {
		end = time.Now()
	}
	return uint64(max(0, end.Sub(p.Started).Milliseconds()))
}

// movesMemory leaves out the short jobs: libvirt's clients do not know them.
func movesMemory(p domain.Progress) domain.Progress {
	switch p.Kind {
	case domain.JobSave, domain.JobRestore, domain.JobDump:
		return p
	case domain.JobNone, domain.JobStart, domain.JobModify, domain.JobDestroy, domain.JobShutdown, domain.JobQuery:
	}
	return domain.Progress{}
}

func (h *handlers) domainGetJobInfo(_ context.Context, _ *request, args *xdr.DomainGetJobInfoArgs) (*xdr.DomainGetJobInfoRet, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	p := movesMemory(g.Job())
	if p.Kind == domain.JobNone {
		return &xdr.DomainGetJobInfoRet{Type: jobNone}, nil
	}
	return &xdr.DomainGetJobInfoRet{
		Type: jobType(p), TimeElapsed: elapsed(p),
		DataTotal: p.MemTotal, DataProcessed: p.MemProcessed, DataRemaining: p.MemRemaining,
		MemTotal: p.MemTotal, MemProcessed: p.MemProcessed, MemRemaining: p.MemRemaining,
	}, nil
}

// Flags of the statistics of a job.
const (
	jobStatsCompleted = 1
	jobStatsKeep      = 2 // the figures of a completed job, which are kept in any case
)

func (h *handlers) domainGetJobStats(_ context.Context, _ *request, args *xdr.DomainGetJobStatsArgs) (*xdr.DomainGetJobStatsRet, error) {
	if err := checkFlags("DOMAIN_GET_JOB_STATS", args.Flags, jobStatsCompleted|jobStatsKeep); err != nil {
		return nil, err
	}
	if args.Flags == jobStatsKeep {
		return nil, fault.New(fault.Invalid, fault.Call, "only the statistics of a completed job can be kept")
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	p := movesMemory(g.Job())
	if args.Flags&jobStatsCompleted != 0 {
		p = movesMemory(g.View().LastJob)
	}
	ret := &xdr.DomainGetJobStatsRet{Type: jobType(p)}
	if p.Kind != domain.JobNone {
		ret.Params = jobParams(p)
	}
	return ret, nil
}

func jobParams(p domain.Progress) []xdr.TypedParam {
	params := []xdr.TypedParam{
		{Field: "operation", Value: xdr.Int(jobOperations[string(p.Kind)])},
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
		params = append(params, xdr.TypedParam{Field: "errmsg", Value: xdr.String(steerless(p.Err))})
	}
	return params
}
