package launch

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Launch is a start in progress. Each step acquires one resource and pushes its release onto the instance. If
// a step fails, the releases run in reverse order.
type Launch struct {
	Guest    *machine.Guest
	Instance *machine.Instance
	plan     qemu.Plan
	From     *savestate.SavedImage // the saved image to restore; nil: a cold start
	opts     StartOptions
	// prepared is the prepared QEMU for this start. Nil: there is none, or the instance already owns its
	// process.
	prepared *machine.PreparedQEMU
	Sc       scope.Scope // with the folders that were recorded for the guest's files
	// usedPrepared says that QEMU was told to resume the vCPUs of a restored guest.
	usedPrepared bool
}

// Unwind ends the processes of a failed start and releases its resources. It has a time limit of its own.
func (l *Launch) Unwind(ctx context.Context, sc scope.Scope) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), machine.ReleaseLimit)
	defer stop()
	l.closeFiles()
	s := l.Instance.Session.Load()
	if s != nil && !l.usedPrepared { // otherwise the last events still count
		s.Close()
	}
	if l.prepared != nil {
		if err := kill(l.prepared); err != nil {
			l.Instance.Log.Error("prepared process does not end", "pid", l.prepared.Process.PID, "error", err)
		}
	}
	if l.Instance.Process != nil {
		l.Instance.KillNow()
		select {
		case <-l.Instance.Process.Exited():
		case <-ctx.Done():
			l.Instance.Log.Error("process of a failed start does not end", "pid", l.Instance.PID)
		}
	}
	if l.usedPrepared {
		l.Instance.VCPUsRan = hasResumed(l.Instance)
		s.Close()
	}
	if l.From != nil { // this may take long; a daemon that ends here would leave an image without an owner
		_ = l.Guest.Change(ctx, sc, "", func() error { savestate.SettleImage(l.Guest, l.Instance); return nil })
	}
	_ = l.Instance.ReleaseAll(ctx) // each failure has been logged
	l.Guest.Reg.RetryReleases(l.Instance)
	if l.Guest.View().Inactive == nil {
		dropMadeNVRAM(l.Guest.Reg, &l.Instance.RunRecord, l.Instance.Definition, l.Instance.Log)
	}
}

// makeDirectory makes the run directory, or takes over that of a prepared QEMU.
func (l *Launch) makeDirectory(ctx context.Context) error {
	if err := provision.ClearRunDir(ctx, l.Guest.Reg, l.Instance.Dir); err != nil {
		return err
	}
	provision.HoldUser(l.Guest.Reg, l.Instance)
	l.Instance.PushRelease("run directory", l.Instance.RemoveDir)
	if entered, err := l.usePreparedDir(ctx); entered || err != nil {
		return err
	}
	if err := os.Mkdir(l.Instance.Dir, 0o700); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the run directory")
	}
	failpoint.Reach("launch.directory")
	return nil
}

// writeRecord writes the run record before the start makes anything that outlives the daemon. The record
// names the resources that the start is about to take, so that the next daemon can release them. That daemon
// finds the process by its directory. The record is complete when the loop takes the instance over.
func (l *Launch) writeRecord(context.Context) error {
	if err := l.updateRecordedXML(); err != nil {
		return err
	}
	return machine.WriteRecord(l.Instance.Dir, &l.Instance.RunRecord)
}

// updateRecordedXML updates the definition in the run record to the current one.
func (l *Launch) updateRecordedXML() (err error) {
	l.Instance.XML, err = l.Instance.FormatForRecord(l.Instance.Definition)
	return err
}

// reserve books the guest's CPUs, memory and other needs in the host's ledger.
func (l *Launch) reserve(context.Context) error {
	ledger, uuid := l.Guest.Reg.Ledger, l.Instance.UUID
	if err := l.Instance.Definition.CheckStart(); err != nil {
		return err
	}
	if err := ledger.CheckNodes(l.Instance.Definition.HostNodes()); err != nil {
		return err
	}
	if err := ledger.Reserve(uuid, provision.Demand(l.Instance.Definition), statistics.Need(l.Guest.Reg, l.Instance.Definition)); err != nil {
		return err
	}
	l.Instance.PushRelease("reservation", func(context.Context) error { ledger.Release(uuid); return nil })
	return nil
}

// applySettings applies the settings that QEMU's arguments cannot express: secrets, limits and CPU pins.
func (l *Launch) applySettings(ctx context.Context) error {
	s := l.Instance.Session.Load()
	failpoint.Reach("launch.settle")
	for _, d := range l.Instance.Definition.Devices.Disks {
		if err := l.unlock(ctx, s, d); err != nil {
			return err
		}
	}
	for _, step := range qemu.AfterStart(&l.plan) {
		if err := machine.Execute(ctx, s, step); err != nil {
			return err
		}
	}
	if modules := l.Instance.Definition.Devices.Memories; len(modules) > 0 {
		if err := provision.FindModules(ctx, s, modules); err != nil {
			return err
		}
		if err := l.updateRecordedXML(); err != nil { // the next daemon needs them too
			return err
		}
	}
	absent, err := provision.LimitThreads(ctx, l.Guest.Reg, s, l.Instance, &domain.CPUTune{}, &l.Instance.Definition.Tune)
	if err != nil {
		return err
	}
	provision.WarnAbsent(l.Instance, absent)
	return provision.PinThreads(ctx, l.Guest.Reg, l.Instance)
}
