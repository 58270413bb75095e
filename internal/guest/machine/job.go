package machine

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Progress is the progress of a job that moves memory. The job writes it, and any goroutine may read it.
type Progress struct {
	Now atomic.Pointer[domain.Progress]
}

func (p *Progress) read() domain.Progress {
	if p == nil || p.Now.Load() == nil {
		return domain.Progress{}
	}
	return *p.Now.Load()
}

// MoveMemory runs a job with progress and without a time limit. It ends early only by AbortJob or Destroy.
func (g *Guest) MoveMemory(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, kind domain.JobKind, plan func(*Progress) (Work, error)) error {
	p := &Progress{}
	return g.submit(ctx, sc, &Task{verb: verb, Kind: kind, Progress: p, Plan: func() (Work, error) { return plan(p) }})
}

// Job returns the guest's current job. Its Kind is JobNone if there is none.
func (g *Guest) Job() domain.Progress {
	v := g.View()
	p := v.progress.read()
	p.Kind, p.Started = v.Job.Kind, v.Job.Started
	return p
}

// NoteEnd keeps the figures of an ended job that moved memory.
func (g *Guest) NoteEnd(j *Job, failure error) {
	if j.Task.Progress == nil {
		return
	}
	p := j.Task.Progress.read()
	p.Kind, p.Started, p.Ended = j.Kind, j.started, time.Now()
	if failure != nil {
		p.Err, p.Cancelled = failure.Error(), fault.Is(failure, fault.Aborted)
	}
	g.lastJob = p
	g.Announce(event.DomainJob{
		Kind: string(j.Kind), Success: failure == nil,
		Milli: uint64(p.Ended.Sub(p.Started).Milliseconds()), TotalBytes: p.MemTotal,
	})
}

// Migration is the part of QEMU's answer to query-migrate that Lodge reads.
type Migration struct {
	Status    string
	ErrorDesc string `json:"error-desc"`
	Downtime  int64
	SetupTime int64 `json:"setup-time"`
	RAM       struct {
		Total, Transferred, Remaining uint64
		Duplicate, Normal             uint64
		NormalBytes                   uint64 `json:"normal-bytes"`
		DirtyPagesRate                uint64 `json:"dirty-pages-rate"`
		DirtySyncCount                uint64 `json:"dirty-sync-count"`
		MBPS                          float64
	}
}

func (m *Migration) progress() *domain.Progress {
	return &domain.Progress{
		MemTotal: m.RAM.Total, MemProcessed: m.RAM.Transferred, MemRemaining: m.RAM.Remaining,
		MemConstant: m.RAM.Duplicate, MemNormal: m.RAM.Normal, MemNormalBytes: m.RAM.NormalBytes,
		MemRate: uint64(m.RAM.MBPS * 1e6 / 8), DirtyRate: m.RAM.DirtyPagesRate, Iterations: m.RAM.DirtySyncCount,
		Downtime: time.Duration(m.Downtime) * time.Millisecond, Setup: time.Duration(m.SetupTime) * time.Millisecond,
	}
}

// Unlimited is a bandwidth that no file reaches, in bytes a second.
const Unlimited = 1 << 40

// Intervals between queries of a migration's progress. They are short at first, because a small guest is
// saved in milliseconds.
const (
	FirstPoll = 5 * time.Millisecond
	MaxPoll   = 200 * time.Millisecond
)

// StopVCPUs stops the vCPUs so that the guest's state can be written. QEMU writes it once and refuses again
// until the guest has run. A guest that was paused during a dump or an aborted save must therefore run for
// a moment.
func StopVCPUs(ctx context.Context, s *qmp.Session) error {
	if err := s.Execute(ctx, "stop", nil, nil); err != nil {
		return err
	}
	var now struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &now); err != nil || now.Status != "postmigrate" {
		return err
	}
	if err := s.Execute(ctx, "cont", nil, nil); err != nil {
		return err
	}
	return s.Execute(ctx, "stop", nil, nil)
}

// FollowMigration waits for the end of a migration, successful or not, and updates p. If ctx ends, it
// cancels the migration and waits until QEMU has stopped.
func FollowMigration(ctx context.Context, s *qmp.Session, p *Progress) error {
	asking := context.WithoutCancel(ctx)
	aborted := ctx.Done()
	for wait := FirstPoll; ; wait = min(2*wait, MaxPoll) {
		var m Migration
		if err := s.Execute(asking, "query-migrate", nil, &m); err != nil {
			return err
		}
		p.Now.Store(m.progress())
		switch m.Status {
		case "completed":
			return nil
		case "cancelled":
			return cmp.Or(context.Cause(ctx), fault.New(fault.Aborted, fault.Domain, "another client of QEMU's monitor cancelled it"))
		case "failed":
			return cmp.Or(context.Cause(ctx), fault.New(fault.Failed, fault.Domain, "QEMU could not migrate the guest's state: %s", m.ErrorDesc))
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-aborted:
			aborted = nil // once
			if err := s.Execute(asking, "migrate_cancel", nil, nil); err != nil {
				return err
			}
		}
		pause.Stop()
	}
}
