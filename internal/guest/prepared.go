package guest

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
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// prepared is a QEMU that was started for a guest ahead of time, with exactly the arguments that a start
// would use now. It waits with its vCPUs stopped, in a directory of its own and in the guest's control
// group. It is put there early because moving a process between groups takes the kernel longer than the
// rest of a prepared start.
type prepared struct {
	reg        *Registry
	uuid, name string
	def        *domain.Definition // as read, to notice a change
	command    *qemu.Command
	binary     qemucaps.Identity
	read       map[string]fileIdentity // the files that QEMU read while it made the machine
	process    *qemuprocess.Process
	group      *kernel.Group
	dir        string
	user       *sandbox.User // nil: it runs as the daemon
	made       time.Time
	memory     uint64 // bytes that only this process holds
}

// fileIdentity tells whether a file has changed, without reading it.
type fileIdentity struct {
	Device, Inode         uint64
	Size, ModTime, Change int64
}

// preparedDir is the directory that holds the directories of prepared QEMUs.
func (r *Registry) preparedDir() string { return filepath.Join(r.RunDir, ".prepared") }

// prepare starts a QEMU for a guest and waits until its machine is made. If it fails, nothing is left.
func (r *Registry) prepare(ctx context.Context, sc scope.Scope, def *domain.Definition) (_ *prepared, err error) {
	p := &prepared{
		uuid: def.UUID, name: def.Name, def: def, made: time.Now(),
		dir: filepath.Join(r.preparedDir(), def.UUID), group: r.Cgroups.Guest(def.UUID),
	}
	p.reg = r
	if g, err := r.ByUUID(def.UUID); err == nil {
		sc = sc.Noting(g.View().fences)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end(ctx))
		}
	}()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	if r.Quarters != nil {
		user, err := r.Quarters.Users.Take(def.UUID)
		if err != nil {
			return nil, err
		}
		p.user = &user
		if err := makeOwn(p.dir, user); err != nil {
			return nil, err
		}
	}
	if p.read, err = identities(ctx, qemu.ReadAtStart(def, def.Devices.Emulator)); err != nil {
		return nil, err
	}
	failpoint.Reach("prepare.directory")
	if err := p.launch(ctx, sc, r); err != nil {
		return nil, err
	}
	failpoint.Reach("prepare.launched")
	s, err := qmp.Dial(ctx, p.monitorPath(), r.log)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.Execute(ctx, "query-status", nil, nil); err != nil { // QEMU answers once the machine is made
		return nil, err
	}
	m, err := r.Kernel.ProcessMemory(p.process.PID)
	p.memory = m.Anonymous
	return p, err
}

func (p *prepared) monitorPath() string { return filepath.Join(p.dir, monitorSocket) }

// launch launches QEMU as a start would.
func (p *prepared) launch(ctx context.Context, sc scope.Scope, r *Registry) error {
	capabilities, err := r.Emulators.Get(ctx, p.def.Devices.Emulator)
	if err != nil {
		return err
	}
	p.binary = capabilities.Binary
	def := p.def.Clone()
	qemu.AssignAliases(def)
	monitor, err := qemuprocess.ListenMonitor(p.monitorPath())
	if err != nil {
		return err
	}
	defer monitor.Close()
	if p.command, err = qemu.Arguments(&qemu.Plan{Definition: def, Capabilities: capabilities, Dir: filepath.Join(r.guestDir(def.UUID), ownDir), Monitor: monitor}); err != nil {
		return err
	}
	if err := p.group.Create(); err != nil {
		return err
	}
	logFile, err := r.openLog(p.name, "preparing", p.def.Devices.Emulator, p.command)
	if err != nil {
		return err
	}
	defer logFile.Close()
	p.process, err = r.launch(ctx, sc, def, p.command, logFile, p.dir, p.user, func(*sandbox.Spec) error { return nil })
	if err != nil {
		return err
	}
	r.makeVictim(p.name, p.process.PID, waitingVictim)
	return p.group.AddProcess(p.process.PID)
}

// alive reports whether the process still runs.
func (p *prepared) alive() bool {
	select {
	case <-p.process.Exited():
		return false
	default:
		return true
	}
}

// kill kills the process, unless it has ended already.
func (p *prepared) kill() error {
	if p.process == nil || !p.alive() {
		return nil
	}
	if err := killAndWait(p.process); err != nil && p.alive() {
		return err
	}
	return nil
}

// end kills the process and releases its resources.
func (p *prepared) end(ctx context.Context) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer stop()
	if err := errors.Join(p.kill(), p.group.Clear(ctx), removeTree(p.dir)); err != nil {
		return err // the user must not be reused while any of its processes may be left
	}
	if p.user != nil {
		return p.reg.Quarters.Users.Free(*p.user)
	}
	return nil
}

// differs returns why a start with command would make another machine than the prepared one. Nil: it would
// make the same.
func (p *prepared) differs(ctx context.Context, def *domain.Definition, command *qemu.Command, binary qemucaps.Identity) error {
	switch {
	case !p.alive():
		return errors.New("it has ended")
	case time.Since(p.made) > keepPrepared:
		return errors.New("it is too old")
	case p.binary != binary:
		return errors.New("the binary has changed")
	case !p.command.Same(command):
		return errors.New("the arguments have changed")
	}
	now, err := identities(ctx, qemu.ReadAtStart(def, def.Devices.Emulator))
	if err != nil {
		return err
	}
	for path, before := range p.read {
		if now[path] != before {
			return fmt.Errorf("%s has changed", path)
		}
	}
	return nil
}

// identities returns the identity of each file. A missing file has the zero identity.
func identities(ctx context.Context, paths []string) (map[string]fileIdentity, error) {
	all := make(map[string]fileIdentity, len(paths))
	for _, path := range paths {
		id, err := fsguard.Do(ctx, path, func() (fileIdentity, error) {
			var s unix.Stat_t
			if err := unix.Stat(path, &s); err != nil {
				return fileIdentity{}, nil //nolint:nilerr // QEMU reports a missing file
			}
			return fileIdentity{s.Dev, s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano()}, nil
		}, nil)
		if err != nil {
			return nil, err
		}
		all[path] = id
	}
	return all, nil
}

// enterPrepared makes the directory of the guest's prepared QEMU the run directory, if there is one. The
// monitor's socket lies in it and QEMU works there, as after a launch. The run record is written before the
// rename, so that the next daemon finds the process in either place.
func (l *launching) enterPrepared(ctx context.Context) (entered bool, err error) {
	p, err := l.g.reg.pool.take(ctx, l.run.UUID)
	if p == nil || err != nil {
		return false, err
	}
	if l.from != nil {
		return false, p.end(ctx) // it was not started to receive a saved image
	}
	l.run.User = p.user
	if err = l.describe(); err == nil {
		err = writeRunRecord(p.dir, &l.run.runRecord)
		failpoint.Reach("prepare.claimed")
	}
	if err == nil {
		err = os.Rename(p.dir, l.run.dir)
	}
	if err != nil {
		l.run.User = nil
		return false, errors.Join(fault.Wrap(err, fault.Failed, fault.Host, "cannot take over the prepared QEMU"), p.end(ctx))
	}
	failpoint.Reach("prepare.entered")
	p.dir, l.prepared = l.run.dir, p
	l.run.hold("control group", p.group.Clear) // also if the start fails before it makes a group
	return true, nil
}

// resume makes the prepared process the run's, if it equals what this start would make. It is in the
// guest's control group already. Nil: QEMU must be launched.
func (l *launching) resume(ctx context.Context) (*qemuprocess.Process, error) {
	p := l.prepared
	if p == nil {
		return nil, nil
	}
	command, err := qemu.Arguments(&l.plan)
	if err != nil {
		return nil, err
	}
	l.prepared = nil
	cause := p.differs(ctx, l.run.def, command, l.plan.Capabilities.Binary)
	if cause == nil {
		cause = l.greet(ctx)
	}
	if cause == nil {
		cause = l.g.reg.noteResumed(p)
	}
	if cause == nil {
		return p.process, nil
	}
	if s := l.run.session.Swap(nil); s != nil {
		s.Close()
	}
	l.g.log.Info("prepared QEMU cannot be used; guest starts cold", "cause", cause)
	return nil, p.kill()
}

// greetLimit bounds the wait for a prepared QEMU, which has nothing to do but answer.
const greetLimit = 3 * time.Second

// greet connects to the monitor of a prepared QEMU, within greetLimit.
func (l *launching) greet(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, greetLimit)
	defer stop()
	s, err := qmp.Dial(ctx, l.run.monitorPath(), l.g.log)
	if err != nil {
		return err
	}
	l.run.connect(s)
	return nil
}

// noteResumed writes into the guest's log which prepared process it uses.
func (r *Registry) noteResumed(p *prepared) error {
	f, err := r.appendLog(p.name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s: starting\nprocess %d, which was prepared at %s\n", logTime(time.Now()), p.process.PID, logTime(p.made))
	return err
}

// sweepPrepared ends the prepared QEMUs that an earlier daemon left.
func (r *Registry) sweepPrepared() {
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	entries, err := os.ReadDir(r.preparedDir())
	if err != nil {
		return // there is no such directory
	}
	defer removeFile(r.log, r.preparedDir())
	for _, e := range entries {
		dir := filepath.Join(r.preparedDir(), e.Name())
		if err := r.sweepOne(ctx, dir); err != nil {
			r.log.Error("cannot end a QEMU that an earlier daemon had prepared", "dir", dir, "error", err)
		}
	}
}

// sweepOne ends one prepared QEMU and removes its directory and control group.
func (r *Registry) sweepOne(ctx context.Context, dir string) error {
	pid, err := r.emulatorIn(dir)
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := r.endPrepared(pid); err != nil {
			return err
		}
	}
	return errors.Join(r.Cgroups.Guest(filepath.Base(dir)).Clear(ctx), removeTree(dir))
}

// endPrepared kills a process and waits for its end. A process that has ended already is no error.
func (r *Registry) endPrepared(pid int) error {
	at, err := r.Kernel.Process(pid)
	if err != nil {
		return err
	}
	process, err := qemuprocess.Adopt(pid, at.Start)
	if err == nil {
		err = killAndWait(process)
	}
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// endedWaiting ends a prepared QEMU after its directories were removed. It reports false for a QEMU in use:
// its directory is the guest's, because a start that takes it renames the directory.
func (r *Registry) endedWaiting(pid int, uuid string) bool {
	dir := filepath.Join(string(filepath.Separator), filepath.Base(r.RunDir), filepath.Base(r.preparedDir()), uuid)
	if !r.Kernel.Uses(pid, dir) && !r.Kernel.Uses(pid, filepath.Join(dir, ownDir)) {
		return false
	}
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	err := r.endPrepared(pid)
	if err == nil {
		err = r.Cgroups.Guest(uuid).Clear(ctx)
	}
	if err != nil {
		r.log.Error("cannot end a QEMU that an earlier daemon had prepared", "uuid", uuid, "pid", pid, "error", err)
	}
	return err == nil
}
