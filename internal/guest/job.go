package guest

import (
	"cmp"
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// progress is the progress of a job that moves memory. The job writes it, and any goroutine may read it.
type progress struct {
	now atomic.Pointer[domain.Progress]
}

func (p *progress) read() domain.Progress {
	if p == nil || p.now.Load() == nil {
		return domain.Progress{}
	}
	return *p.now.Load()
}

// moveMemory runs a job with progress and without a time limit. It ends early only by AbortJob or Destroy.
func (g *Guest) moveMemory(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, kind domain.JobKind, plan func(*progress) (work, error)) error {
	p := &progress{}
	return g.ask(ctx, sc, &task{verb: verb, kind: kind, progress: p, plan: func() (work, error) { return plan(p) }})
}

// Job returns the guest's current job. Its Kind is JobNone if there is none.
func (g *Guest) Job() domain.Progress {
	v := g.View()
	p := v.progress.read()
	p.Kind, p.Started = v.job.Kind, v.job.Started
	return p
}

// noteEnd keeps the figures of an ended job that moved memory.
func (g *Guest) noteEnd(j *job, failure error) {
	if j.task.progress == nil {
		return
	}
	p := j.task.progress.read()
	p.Kind, p.Started, p.Ended = j.kind, j.started, time.Now()
	if failure != nil {
		p.Err, p.Cancelled = failure.Error(), fault.Is(failure, fault.Aborted)
	}
	g.lastJob = p
	g.announce(event.DomainJob{
		Kind: string(j.kind), Success: failure == nil,
		Milli: uint64(p.Ended.Sub(p.Started).Milliseconds()), TotalBytes: p.MemTotal,
	})
}

// AbortJob aborts the job that moves the guest's memory. The guest then continues as before the job.
func (g *Guest) AbortJob(ctx context.Context, sc scope.Scope) error {
	return g.change(ctx, sc, "", func() error {
		if g.job == nil || g.job.task.progress == nil {
			return fault.New(fault.WrongState, fault.Domain, "no job is active on the domain")
		}
		g.job.cancel(fault.New(fault.Aborted, fault.Domain, "the %s job of domain '%s' was aborted by a client", g.job.kind, g.record.Name))
		return nil
	})
}

// migration is the part of QEMU's answer to query-migrate that Lodge reads.
type migration struct {
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

func (m *migration) progress() *domain.Progress {
	return &domain.Progress{
		MemTotal: m.RAM.Total, MemProcessed: m.RAM.Transferred, MemRemaining: m.RAM.Remaining,
		MemConstant: m.RAM.Duplicate, MemNormal: m.RAM.Normal, MemNormalBytes: m.RAM.NormalBytes,
		MemRate: uint64(m.RAM.MBPS * 1e6 / 8), DirtyRate: m.RAM.DirtyPagesRate, Iterations: m.RAM.DirtySyncCount,
		Downtime: time.Duration(m.Downtime) * time.Millisecond, Setup: time.Duration(m.SetupTime) * time.Millisecond,
	}
}

// unlimited is a bandwidth that no file reaches, in bytes a second.
const unlimited = 1 << 40

// Intervals between queries of a migration's progress. They are short at first, because a small guest is
// saved in milliseconds.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// halt stops the vCPUs so that the guest's state can be written. QEMU writes it once and refuses again
// until the guest has run. A guest that was paused during a dump or an aborted save must therefore run for
// a moment.
func halt(ctx context.Context, s *qmp.Session) error {
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

// migrateTo writes a guest's state to a file from its present offset, in at most most bytes, until it is
// complete or ctx ends.
func migrateTo(ctx context.Context, s *qmp.Session, f *os.File, most int64, p *progress, labels *labels) error {
	t, qemus, err := transferTo(f, most, labels)
	if err != nil {
		return err
	}
	err = s.Execute(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": unlimited}, nil)
	if err == nil {
		err = s.ExecuteFD(ctx, qemus, "getfd", map[string]any{"fdname": "lodge-save"}, nil)
	}
	_ = qemus.Close() // QEMU has its own, or none
	if err == nil {
		err = s.Execute(ctx, "migrate", map[string]any{"uri": "fd:lodge-save"}, nil)
	}
	if err == nil {
		// A QEMU that waits for a file system may not answer until its socket is closed.
		settled := context.AfterFunc(ctx, t.hangUp)
		err = followMigration(ctx, s, p)
		settled()
	}
	return t.end(ctx, err)
}

// followMigration waits for the end of a migration, successful or not, and updates p. If ctx ends, it
// cancels the migration and waits until QEMU has stopped.
func followMigration(ctx context.Context, s *qmp.Session, p *progress) error {
	asking := context.WithoutCancel(ctx)
	aborted := ctx.Done()
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		var m migration
		if err := s.Execute(asking, "query-migrate", nil, &m); err != nil {
			return err
		}
		p.now.Store(m.progress())
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
