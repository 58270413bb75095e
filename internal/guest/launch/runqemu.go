package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// runQEMU gives the run its process: the prepared QEMU if there is one, else a new QEMU.
func (l *Launch) runQEMU(ctx context.Context) (err error) {
	defer l.closeInherited()
	if l.plan.Capabilities, err = l.Guest.Reg.Emulators.Get(ctx, l.Instance.Definition.Devices.Emulator); err != nil {
		return err
	}
	l.Instance.Messages = append(l.Instance.Messages, provision.Remarks(l.Instance.Definition, l.plan.Capabilities)...)
	for _, text := range provision.ExposedDisplays(l.Instance.Definition) {
		l.Guest.Log.Warn("display is open to the network", "message", text)
	}
	l.plan.Definition, l.plan.Dir = l.Instance.Definition, provision.OwnPath(l.Instance)
	l.plan.Incoming = l.From != nil
	p, err := l.usePrepared(ctx)
	if err != nil {
		return err
	}
	if p != nil {
		l.setProcess(p)
		return nil
	}
	if p, err = l.launchQEMU(ctx, l.Sc); err != nil {
		return err
	}
	l.setProcess(p)
	failpoint.Reach("launch.executed")
	return l.withStderrTail(ctx, l.joinGroup(ctx))
}

// setProcess makes p the process of the run.
func (l *Launch) setProcess(p *qemuprocess.Process) {
	l.Instance.Process, l.Instance.PID, l.Instance.StartTime = p, p.PID, p.StartTime
	provision.SetOOMScore(l.Guest.Reg, l.Instance.Name, p.PID, provision.OOMScore(l.opts.Priority))
	l.Instance.PushRelease("process watch", func(context.Context) error { p.Release(); return nil })
}

// launchQEMU launches QEMU. The daemon listens on the monitor's socket before QEMU starts, so that connecting
// needs no polling.
func (l *Launch) launchQEMU(ctx context.Context, sc scope.Scope) (*qemuprocess.Process, error) {
	var monitor *os.File
	err := l.Instance.Labels.Sockets(func() (err error) { monitor, err = qemuprocess.ListenMonitor(l.Instance.MonitorPath()); return err })
	if err != nil {
		return nil, err
	}
	defer monitor.Close()
	l.plan.Monitor = monitor
	command, err := qemu.Arguments(&l.plan)
	if err != nil {
		return nil, err
	}
	logFile, err := provision.OpenLog(l.Guest.Reg, l.Instance.Definition.Name, "starting", l.Instance.Definition.Devices.Emulator, command)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	if err := failpoint.Err("launch.exec"); err != nil {
		return nil, err
	}
	handed := slices.Clone(command.Files)
	if logFile.Name() != os.DevNull { // /dev/null is shared by the whole host
		handed = append(handed, logFile)
	}
	if l.From != nil {
		handed = append(handed, l.From.File)
	}
	return provision.Launch(ctx, l.Guest.Reg, sc, l.Instance.Definition, command, logFile, l.Instance.Dir, l.Instance.User, func(place *sandbox.Spec) error {
		place.Label = l.Instance.Labels.LabelOf()
		return l.Instance.Labels.Confine(ctx, place, &l.plan, handed)
	})
}

// closeInherited closes the copies of the files that QEMU has inherited at its launch. It keeps disk images,
// which may still wait for their keys, and display sockets, which listen later.
func (l *Launch) closeInherited() {
	disks, listeners := l.plan.Disks, l.plan.Listeners
	l.plan.Disks, l.plan.Listeners = nil, nil
	provision.ClosePlan(&l.plan)
	l.plan.Disks, l.plan.Listeners = disks, listeners
}

// connectMonitor connects to the monitor and waits until QEMU answers a command. It gives up when the process
// ends.
func (l *Launch) connectMonitor(starting context.Context) error {
	ctx, cancel := context.WithCancelCause(starting)
	defer cancel(nil)
	go func() {
		select {
		case <-l.Instance.Process.Exited():
			cancel(errors.New("QEMU has ended"))
		case <-ctx.Done():
		}
	}()
	s := l.Instance.Session.Load() // a prepared QEMU is connected already
	var err error
	if s == nil {
		if s, err = qmp.Dial(ctx, l.Instance.MonitorPath(), l.Guest.Log); err == nil {
			l.Instance.Connect(s)
		}
	}
	if err == nil {
		failpoint.Reach("launch.connected")
		// QEMU sends its greeting before it makes the machine, but answers this command only afterwards.
		err = s.Execute(ctx, "query-status", nil, nil)
	}
	return l.withStderrTail(starting, err)
}

// withStderrTail replaces an error that came because QEMU has ended by QEMU's own message.
func (l *Launch) withStderrTail(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil { // the start was cancelled: QEMU is not the cause
		return err
	}
	late := time.NewTimer(endPatience)
	defer late.Stop()
	select {
	case <-l.Instance.Process.Exited():
		return l.explainExit(provision.StderrTail(l.Guest.Reg, l.Instance.Definition.Name, l.Instance.Process))
	case <-late.C:
		return err
	}
}
