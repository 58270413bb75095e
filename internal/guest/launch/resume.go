package launch

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// hasResumed reports whether a QEMU that has ended sent RESUME, that is, whether the vCPUs ran. It is
// called before the loop owns the instance. It reads the events even when the release has used up its time,
// because the answer decides about the image.
func hasResumed(r *machine.Instance) bool {
	late := time.NewTimer(machine.LastEvents)
	defer late.Stop()
	for {
		select {
		case e, more := <-r.Events:
			if !more || e.Name == "RESUME" || e.Resync { // a resync may stand in for it
				return more
			}
		case <-late.C:
			return false
		}
	}
}

// load restores the saved image, if there is one.
func (l *Launch) load(ctx context.Context) error {
	if l.From == nil {
		return nil
	}
	s := l.Instance.Session.Load()
	if err := l.withStderrTail(ctx, l.From.Load(ctx, s)); err != nil {
		return err
	}
	failpoint.Reach("restore.loaded")
	var status struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &status); err != nil {
		return err
	}
	if phase, _ := machine.ActivePhase(status.Status); phase == domain.ShuttingDown {
		l.Instance.StayPaused = true // it was saved after it had shut down, and cannot resume
	}
	return nil
}

// recordRunning writes the run record of a running guest under a temporary name. resumeVCPUs renames it,
// which makes it count. Order matters: the next daemon ends a start without a complete record, even if its
// client was already told that the guest runs.
func (l *Launch) recordRunning(context.Context) error {
	l.Instance.Resuming = l.From != nil && !l.opts.Paused && !l.Instance.StayPaused
	l.Instance.State, _ = lifecycle.Step(lifecycle.State{Policy: machine.Policy(l.Instance.Definition)}, startedFact(l.Instance, l.From != nil, l.opts))
	return fault.Wrap(atomicfile.WriteHalf(filepath.Join(l.Instance.Dir, machine.RecordFile), &l.Instance.RunRecord), fault.Failed, fault.Host, "cannot record that it runs")
}

// startedFact returns the lifecycle event of a completed start.
func startedFact(r *machine.Instance, restored bool, o StartOptions) lifecycle.Started {
	if restored {
		return lifecycle.Started{Reason: domain.ReasonRestored, Paused: o.Paused || r.StayPaused}
	}
	return lifecycle.Started{Reason: domain.ReasonBooted, Paused: o.Paused}
}

// resumeVCPUs resumes the vCPUs and makes the run record count. For a restored guest the record counts first.
// Otherwise a daemon that dies in between would end the guest and restore it again from the image, although
// its disks have changed since.
func (l *Launch) resumeVCPUs(ctx context.Context) error {
	record := filepath.Join(l.Instance.Dir, machine.RecordFile)
	if l.From != nil {
		if err := atomicfile.Replace(record); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot record that it runs")
		}
	}
	if !l.opts.Paused && !l.Instance.StayPaused {
		if err := failpoint.Err("launch.cont"); err != nil {
			return err
		}
		if err := l.consumeManagedSave(ctx, l.Sc); err != nil {
			return err
		}
		l.usedPrepared = l.From != nil
		if err := l.Instance.Session.Load().Execute(ctx, "cont", nil, nil); err != nil {
			return err
		}
		failpoint.Reach("launch.continued")
	}
	if l.From != nil {
		return nil
	}
	if err := atomicfile.Replace(record); err != nil { // the loop tries again
		l.Guest.Log.Error("cannot record that the guest runs", "error", err)
	}
	return nil
}

// consumeManagedSave records in the store that the managed save image is used, before the guest resumes from
// it. After a crash of the host the store alone knows this: the run record is lost with the run directory. If
// the store takes no changes, the run record tells the next daemon.
func (l *Launch) consumeManagedSave(ctx context.Context, sc scope.Scope) error {
	if l.From == nil || !l.From.Managed {
		return nil
	}
	err := l.Guest.Change(ctx, sc, "", func() error {
		l.Guest.Record.ManagedSave = false
		l.Instance.SaveConsumed = l.Guest.Store() == nil
		l.Guest.Record.ManagedSave = !l.Instance.SaveConsumed
		return nil
	})
	return cmp.Or(err, context.Cause(ctx))
}
