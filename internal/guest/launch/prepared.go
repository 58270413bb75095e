package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// PreparedDir is the directory that holds the directories of prepared QEMUs.
func PreparedDir(r *machine.Registry) string { return filepath.Join(r.RunDir, ".prepared") }

// prepare starts a QEMU for a guest and waits until its machine is made. If it fails, nothing is left.
func prepare(ctx context.Context, r *machine.Registry, sc scope.Scope, def *domain.Definition) (_ *machine.PreparedQEMU, err error) {
	p := &machine.PreparedQEMU{
		UUID: def.UUID, Name: def.Name, Def: def, Made: time.Now(),
		Dir: filepath.Join(PreparedDir(r), def.UUID), Group: r.Cgroups.Guest(def.UUID),
	}
	p.Reg = r
	if g, err := r.ByUUID(def.UUID); err == nil {
		sc = sc.WithNotedFolders(g.View().Fences)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end(ctx, p))
		}
	}()
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return nil, err
	}
	if r.Quarters != nil {
		user, err := r.Quarters.Users.Take(def.UUID)
		if err != nil {
			return nil, err
		}
		p.User = &user
		if err := provision.MakeOwn(p.Dir, user); err != nil {
			return nil, err
		}
	}
	if p.Read, err = identities(ctx, qemu.ReadAtStart(def, def.Devices.Emulator)); err != nil {
		return nil, err
	}
	failpoint.Reach("prepare.directory")
	if err := launchPrepared(ctx, p, sc, r); err != nil {
		return nil, err
	}
	failpoint.Reach("prepare.launched")
	s, err := qmp.Dial(ctx, monitorPath(p), r.Log)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.Execute(ctx, "query-status", nil, nil); err != nil { // QEMU answers once the machine is made
		return nil, err
	}
	m, err := r.Kernel.ProcessMemory(p.Process.PID)
	p.Memory = m.Anonymous
	return p, err
}

func monitorPath(p *machine.PreparedQEMU) string { return filepath.Join(p.Dir, machine.MonitorSocket) }

// launchPrepared launches QEMU as a start would.
func launchPrepared(ctx context.Context, p *machine.PreparedQEMU, sc scope.Scope, r *machine.Registry) error {
	capabilities, err := r.Emulators.Get(ctx, p.Def.Devices.Emulator)
	if err != nil {
		return err
	}
	p.Binary = capabilities.Binary
	def := p.Def.Clone()
	qemu.AssignAliases(def)
	monitor, err := qemuprocess.ListenMonitor(monitorPath(p))
	if err != nil {
		return err
	}
	defer monitor.Close()
	if p.Command, err = qemu.Arguments(&qemu.Plan{Definition: def, Capabilities: capabilities, Dir: filepath.Join(r.GuestDir(def.UUID), provision.OwnDir), Monitor: monitor}); err != nil {
		return err
	}
	if err := p.Group.Create(); err != nil {
		return err
	}
	logFile, err := provision.OpenLog(r, p.Name, "preparing", p.Def.Devices.Emulator, p.Command)
	if err != nil {
		return err
	}
	defer logFile.Close()
	p.Process, err = provision.Launch(ctx, r, sc, def, p.Command, logFile, p.Dir, p.User, func(*sandbox.Spec) error { return nil })
	if err != nil {
		return err
	}
	provision.SetOOMScore(r, p.Name, p.Process.PID, waitingVictim)
	return p.Group.AddProcess(p.Process.PID)
}

// alive reports whether the process still runs.
func alive(p *machine.PreparedQEMU) bool {
	select {
	case <-p.Process.Exited():
		return false
	default:
		return true
	}
}

// kill kills the process, unless it has ended already.
func kill(p *machine.PreparedQEMU) error {
	if p.Process == nil || !alive(p) {
		return nil
	}
	if err := machine.KillAndWait(p.Process); err != nil && alive(p) {
		return err
	}
	return nil
}

// end kills the process and releases its resources.
func end(ctx context.Context, p *machine.PreparedQEMU) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), machine.ReleaseLimit)
	defer stop()
	if err := errors.Join(kill(p), p.Group.Clear(ctx), machine.RemoveTree(p.Dir)); err != nil {
		return err // the user must not be reused while any of its processes may be left
	}
	if p.User != nil {
		return p.Reg.Quarters.Users.Free(*p.User)
	}
	return nil
}

// differs returns why a start with command would make another machine than the prepared one. Nil: it would
// make the same.
func differs(ctx context.Context, p *machine.PreparedQEMU, def *domain.Definition, command *qemu.Command, binary qemucaps.Identity) error {
	switch {
	case !alive(p):
		return errors.New("it has ended")
	case time.Since(p.Made) > keepPrepared:
		return errors.New("it is too old")
	case p.Binary != binary:
		return errors.New("the binary has changed")
	case !p.Command.SameMachine(command):
		return errors.New("the arguments have changed")
	}
	now, err := identities(ctx, qemu.ReadAtStart(def, def.Devices.Emulator))
	if err != nil {
		return err
	}
	for path, before := range p.Read {
		if now[path] != before {
			return fmt.Errorf("%s has changed", path)
		}
	}
	return nil
}

// identities returns the identity of each file. A missing file has the zero identity.
func identities(ctx context.Context, paths []string) (map[string]machine.FileIdentity, error) {
	all := make(map[string]machine.FileIdentity, len(paths))
	for _, path := range paths {
		id, err := fsguard.Do(ctx, path, func() (machine.FileIdentity, error) {
			var s unix.Stat_t
			if err := unix.Stat(path, &s); err != nil {
				return machine.FileIdentity{}, nil //nolint:nilerr // QEMU reports a missing file
			}
			return machine.FileIdentity{Device: s.Dev, Inode: s.Ino, Size: s.Size, ModTime: s.Mtim.Nano(), Change: s.Ctim.Nano()}, nil
		}, nil)
		if err != nil {
			return nil, err
		}
		all[path] = id
	}
	return all, nil
}

// enterPrepared makes the directory of the guest's prepared QEMU the run directory, if there is one. The
// monitor's socket lies in it and QEMU works there, as after a launch. The instance record is written before the
// rename, so that the next daemon finds the process in either place.
func (l *Launch) enterPrepared(ctx context.Context) (entered bool, err error) {
	p, err := take(ctx, l.Guest.Reg.WarmPool, l.Instance.UUID)
	if p == nil || err != nil {
		return false, err
	}
	if l.From != nil {
		return false, end(ctx, p) // it was not started to receive a saved image
	}
	l.Instance.User = p.User
	if err = l.describe(); err == nil {
		err = machine.WriteRecord(p.Dir, &l.Instance.InstanceRecord)
		failpoint.Reach("prepare.claimed")
	}
	if err == nil {
		err = os.Rename(p.Dir, l.Instance.Dir)
	}
	if err != nil {
		l.Instance.User = nil
		return false, errors.Join(fault.Wrap(err, fault.Failed, fault.Host, "cannot take over the prepared QEMU"), end(ctx, p))
	}
	failpoint.Reach("prepare.entered")
	p.Dir, l.prepared = l.Instance.Dir, p
	l.Instance.Hold("control group", p.Group.Clear) // also if the start fails before it makes a group
	return true, nil
}

// resume makes the prepared process the run's, if it equals what this start would make. It is in the
// guest's control group already. Nil: QEMU must be launched.
func (l *Launch) resume(ctx context.Context) (*qemuprocess.Process, error) {
	p := l.prepared
	if p == nil {
		return nil, nil
	}
	command, err := qemu.Arguments(&l.plan)
	if err != nil {
		return nil, err
	}
	l.prepared = nil
	cause := differs(ctx, p, l.Instance.Definition, command, l.plan.Capabilities.Binary)
	if cause == nil {
		cause = l.greet(ctx)
	}
	if cause == nil {
		cause = noteResumed(l.Guest.Reg, p)
	}
	if cause == nil {
		return p.Process, nil
	}
	if s := l.Instance.Session.Swap(nil); s != nil {
		s.Close()
	}
	l.Guest.Log.Info("prepared QEMU cannot be used; guest starts cold", "cause", cause)
	return nil, kill(p)
}

// greetLimit bounds the wait for a prepared QEMU, which has nothing to do but answer.
const greetLimit = 3 * time.Second

// greet connects to the monitor of a prepared QEMU, within greetLimit.
func (l *Launch) greet(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, greetLimit)
	defer stop()
	s, err := qmp.Dial(ctx, l.Instance.MonitorPath(), l.Guest.Log)
	if err != nil {
		return err
	}
	l.Instance.Connect(s)
	return nil
}

// noteResumed writes into the guest's log which prepared process it uses.
func noteResumed(r *machine.Registry, p *machine.PreparedQEMU) error {
	f, err := provision.AppendLog(r, p.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s: starting\nprocess %d, which was prepared at %s\n", provision.LogTime(time.Now()), p.Process.PID, provision.LogTime(p.Made))
	return err
}

// SweepPrepared ends the prepared QEMUs that an earlier daemon left.
func SweepPrepared(r *machine.Registry) {
	ctx, stop := context.WithTimeout(r.Life, machine.ReleaseLimit)
	defer stop()
	entries, err := os.ReadDir(PreparedDir(r))
	if err != nil {
		return // there is no such directory
	}
	defer machine.RemoveFile(r.Log, PreparedDir(r))
	for _, e := range entries {
		dir := filepath.Join(PreparedDir(r), e.Name())
		if err := sweepOne(ctx, r, dir); err != nil {
			r.Log.Error("cannot end a QEMU that an earlier daemon had prepared", "dir", dir, "error", err)
		}
	}
}

// sweepOne ends one prepared QEMU and removes its directory and control group.
func sweepOne(ctx context.Context, r *machine.Registry, dir string) error {
	pid, err := provision.EmulatorIn(r, dir)
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := endPrepared(r, pid); err != nil {
			return err
		}
	}
	return errors.Join(r.Cgroups.Guest(filepath.Base(dir)).Clear(ctx), machine.RemoveTree(dir))
}

// endPrepared kills a process and waits for its end. A process that has ended already is no error.
func endPrepared(r *machine.Registry, pid int) error {
	at, err := r.Kernel.Process(pid)
	if err != nil {
		return err
	}
	process, err := qemuprocess.Adopt(pid, at.Start)
	if err == nil {
		err = machine.KillAndWait(process)
	}
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// EndedWaiting ends a prepared QEMU after its directories were removed. It reports false for a QEMU in use:
// its directory is the guest's, because a start that takes it renames the directory.
func EndedWaiting(r *machine.Registry, pid int, uuid string) bool {
	dir := filepath.Join(string(filepath.Separator), filepath.Base(r.RunDir), filepath.Base(PreparedDir(r)), uuid)
	if !r.Kernel.Uses(pid, dir) && !r.Kernel.Uses(pid, filepath.Join(dir, provision.OwnDir)) {
		return false
	}
	ctx, stop := context.WithTimeout(r.Life, machine.ReleaseLimit)
	defer stop()
	err := endPrepared(r, pid)
	if err == nil {
		err = r.Cgroups.Guest(uuid).Clear(ctx)
	}
	if err != nil {
		r.Log.Error("cannot end a QEMU that an earlier daemon had prepared", "uuid", uuid, "pid", pid, "error", err)
	}
	return err == nil
}

const waitingVictim = 900
