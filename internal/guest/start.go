package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// StartOptions are the options of one start. The zero value boots the guest and sets its vCPUs going.
type StartOptions struct {
	// Paused leaves the vCPUs stopped.
	Paused bool
	// AutoDestroy destroys the guest when Owner is closed, that is, when its client disconnects.
	AutoDestroy bool
	Owner       <-chan struct{}
	// OwnerMay reports whether that client may still destroy the guest when it disconnects: the guest may
	// have been given to another client by then. Nil permits it.
	OwnerMay func(uuid string) error
	// ForceBoot deletes a managed save image instead of restoring the guest from it.
	ForceBoot   bool
	BypassCache bool
	Validate    bool
	ResetNVRAM  bool
	// Priority orders the starts that wait for admission: lower numbers start first.
	Priority int
}

// Start starts a guest that is shut off. A guest with a managed save image is restored from that image.
func (g *Guest) Start(ctx context.Context, sc scope.Scope, o StartOptions) error {
	return g.perform(ctx, sc, lifecycle.Start, domain.JobStart, 0, func() (work, error) { return g.planAnyStart(o) })
}

// planAnyStart plans a start of the stored definition: a restore if there is a managed save image, else a
// cold start.
func (g *Guest) planAnyStart(o StartOptions) (work, error) {
	if err := g.admitRun(); err != nil {
		return nil, err
	}
	if g.inactive == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain %q has no persistent definition to start from", g.record.Name)
	}
	if g.record.ManagedSave && !o.ForceBoot {
		return g.planManagedRestore(o), nil
	}
	if err := g.dropManagedSave(); err != nil {
		return nil, err
	}
	return g.planStart(g.inactive, "", o), nil
}

// Create starts a guest from a document. The guest is transient unless a persistent guest has the same name
// and UUID.
func (r *Registry) Create(ctx context.Context, sc scope.Scope, doc string, o StartOptions) (*Guest, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	u, err := r.understand(ctx, doc, o.Validate)
	if err != nil {
		return nil, err
	}
	return r.claimed(ctx, u.plain.Name, u.plain.UUID, func(g *Guest) error {
		return g.perform(ctx, sc, lifecycle.Start, domain.JobStart, 0, func() (work, error) {
			if err := errors.Join(g.isCalled(u.plain.Name), g.admitBesideSave()); err != nil {
				return nil, err
			}
			def := u.after(g.current())
			return g.planStart(def, doc, o), g.fenceRun(sc, def)
		})
	})
}

// planStart plans a cold start of def.
func (g *Guest) planStart(def *domain.Definition, submitted string, o StartOptions) work {
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		r, err := g.launch(ctx, sc, def, submitted, o, nil)
		if err != nil {
			return nil, err
		}
		return func() error {
			g.takeOver(r, begun(r, false, o), o)
			return nil
		}, nil
	}
}

// takeOver makes a launched run the guest's current run. It runs in the guest's loop.
func (g *Guest) takeOver(r *run, f lifecycle.Started, o StartOptions) {
	g.run = r
	r.Resuming = false
	g.quarantine = ""
	failpoint.Reach("launch.take")
	g.state.Policy = policy(r.def)
	g.revived()
	g.reg.setID(g, r.ID)
	g.live.Store(r)
	for _, change := range r.dropped {
		g.announce(change)
	}
	g.advance(f)
	g.reg.hasRun(g.uuid)
	g.watchTPM(r)
	if r.AutoDestroy {
		go g.destroyWith(o, r)
	}
	if len(g.destroyers) > 0 { // it was destroyed while it started
		g.advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
		r.end(endNow)
	}
}

// destroyWith destroys the guest when its owner disconnects, unless that client may no longer destroy it.
func (g *Guest) destroyWith(o StartOptions, r *run) {
	select {
	case <-o.Owner:
	case <-r.process.Exited():
		return
	case <-g.ended:
		return
	}
	err := g.destroy(g.reg.life, scope.Daemon("the end of a guest whose client has gone").Authorizing(o.OwnerMay), false, r)
	if fault.Is(err, fault.Denied) {
		err = errors.Join(err, g.change(g.reg.life, scope.Daemon("the end of a guest whose client has gone"), "", func() error { return g.outlive(r) }))
	}
	if err != nil && !errors.Is(err, errLeft) {
		g.log.Warn("cannot destroy the guest of a disconnected client", "error", err)
	}
}

// outlive lets the guest run on without its client: it clears AutoDestroy. It runs in the guest's loop.
func (g *Guest) outlive(r *run) error {
	if g.run == r {
		r.AutoDestroy = false
		g.keepRun()
	}
	return nil
}

// launching is a start in progress. Each step acquires one resource and pushes its release onto the run. If
// a step fails, the releases run in reverse order.
type launching struct {
	g    *Guest
	run  *run
	plan qemu.Plan
	from *savedImage // the saved image to restore; nil: a cold start
	opts StartOptions
	// prepared is the prepared QEMU for this start. Nil: there is none, or the run already owns its
	// process.
	prepared *prepared
	sc       scope.Scope // with the folders that were recorded for the guest's files
	// goesOn says that QEMU was told to resume the vCPUs of a restored guest.
	goesOn bool
}

// launch starts QEMU for a definition and resumes the vCPUs, unless the options or the saved image say
// otherwise. If it fails, it releases everything it took. A failed restore still returns its run, which
// says whether the guest ran from the image.
func (g *Guest) launch(ctx context.Context, sc scope.Scope, def *domain.Definition, submitted string, o StartOptions, from *savedImage) (r *run, err error) {
	if err := g.boundStart(sc, def, submitted, from); err != nil {
		return nil, err
	}
	_ = g.reg.furnish() // a missing directory is reported by the step that writes there
	def = def.Clone()
	if from != nil && def.GenID != "" {
		def.GenID = uuid.NewString() // the guest may have run on from this image before, and must be told
	}
	fences := g.View().fences
	sc = sc.Noting(fences)
	qemu.AssignAliases(def)
	l := &launching{g: g, sc: sc, opts: o, from: from, run: newRun(runRecord{
		Name: def.Name, UUID: def.UUID, ID: g.reg.newID(), Started: time.Now(), Since: time.Now(), Submitted: submitted, Fences: fences,
		AutoDestroy: o.AutoDestroy && o.Owner != nil, FromManaged: from != nil && from.managed,
	}, g.reg.guestDir(def.UUID), g.reg.Kernel, g.log)}
	l.run.def = def
	l.run.guest = g
	if err := g.reg.giveOperations(l.run, nil); err != nil {
		return nil, err
	}
	defer func() {
		l.closeFiles()
		if err != nil {
			l.unwind(ctx, sc)
			err = fmt.Errorf("cannot start domain '%s': %w", def.Name, err)
			if from != nil {
				r = l.run
			}
		}
	}()
	if err := within(ctx, startLimit, l.checkHost, l.checkHostDevices, l.makeDirectory, l.takeUser, l.takeLabel, l.journal, l.reserve, l.takeHostDevices, l.findDisks, l.makeNVRAM, l.openFiles,
		l.labelFiles, l.attachNICs, l.claimVSock, l.makeGroup, l.startTPMs, l.choosePorts); err != nil {
		return nil, err
	}
	if err := l.runAdmitted(ctx); err != nil {
		return nil, err
	}
	if err := within(ctx, l.limit(), l.sealOwn, l.readBack, l.settle, l.load, l.pledge, l.goOn); err != nil {
		return nil, err
	}
	return l.run, nil
}

// unwind ends the processes of a failed start and releases its resources. It has a time limit of its own.
func (l *launching) unwind(ctx context.Context, sc scope.Scope) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer stop()
	l.closeFiles()
	s := l.run.session.Load()
	if s != nil && !l.goesOn { // otherwise the last events still count
		s.Close()
	}
	if l.prepared != nil {
		if err := l.prepared.kill(); err != nil {
			l.run.log.Error("prepared process does not end", "pid", l.prepared.process.PID, "error", err)
		}
	}
	if l.run.process != nil {
		l.run.killNow()
		select {
		case <-l.run.process.Exited():
		case <-ctx.Done():
			l.run.log.Error("process of a failed start does not end", "pid", l.run.PID)
		}
	}
	if l.goesOn {
		l.run.ran = l.run.hasResumed()
		s.Close()
	}
	if l.from != nil { // this may take long; a daemon that ends here would leave an image without an owner
		_ = l.g.change(ctx, sc, "", func() error { l.g.settleImage(l.run); return nil })
	}
	_ = l.run.releaseAll(ctx) // each failure has been logged
	l.g.reg.giveBackLater(l.run)
	if l.g.View().Inactive == nil {
		l.g.reg.dropMadeNVRAM(&l.run.runRecord, l.run.def, l.run.log)
	}
}

// hasResumed reports whether a QEMU that has ended sent RESUME, that is, whether the vCPUs ran. It is
// called before the loop owns the run. It reads the events even when the release has used up its time,
// because the answer decides about the image.
func (r *run) hasResumed() bool {
	late := time.NewTimer(lastEvents)
	defer late.Stop()
	for {
		select {
		case e, more := <-r.events:
			if !more || e.Name == "RESUME" || e.Resync { // a resync may stand in for it
				return more
			}
		case <-late.C:
			return false
		}
	}
}

// guestDir returns the private run directory of a guest. Its name is the UUID, which has a fixed length:
// socket paths must stay below 108 bytes.
func (r *Registry) guestDir(uuid string) string { return filepath.Join(r.RunDir, uuid) }

// makeDirectory makes the run directory, or takes over that of a prepared QEMU.
func (l *launching) makeDirectory(ctx context.Context) error {
	if err := l.g.reg.clear(ctx, l.run.dir); err != nil {
		return err
	}
	l.g.reg.holdUser(l.run)
	l.run.hold("run directory", l.run.removeDir)
	if entered, err := l.enterPrepared(ctx); entered || err != nil {
		return err
	}
	if err := os.Mkdir(l.run.dir, 0o700); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the run directory")
	}
	failpoint.Reach("launch.directory")
	return nil
}

// journal writes the run record before the start makes anything that outlives the daemon. The record names
// what the start is about to take, so that the next daemon can release it. That daemon finds the process by
// its directory. The record is complete when the loop takes the run over.
func (l *launching) journal(context.Context) error {
	if err := l.describe(); err != nil {
		return err
	}
	return writeRunRecord(l.run.dir, &l.run.runRecord)
}

// describe updates the definition in the run record to the current one.
func (l *launching) describe() (err error) {
	l.run.XML, err = l.run.text(l.run.def)
	return err
}

// reserve books the guest's CPUs, memory and other needs in the host's ledger.
func (l *launching) reserve(context.Context) error {
	ledger, uuid := l.g.reg.Ledger, l.run.UUID
	if err := l.run.def.CheckStart(); err != nil {
		return err
	}
	if err := ledger.CheckNodes(l.run.def.HostNodes()); err != nil {
		return err
	}
	if err := ledger.Reserve(uuid, demand(l.run.def), l.g.reg.need(l.run.def)); err != nil {
		return err
	}
	l.run.hold("reservation", func(context.Context) error { ledger.Release(uuid); return nil })
	return nil
}

// findDisks opens the images of the disks. A missing disk is dropped if its startup policy allows that.
func (l *launching) findDisks(ctx context.Context) error {
	l.plan.Disks = map[string]device.DiskAttachment{}
	fences, run := l.g.View().fences, l.run
	run.hold("disks", func(ctx context.Context) error { return l.g.reg.takeBackDisks(ctx, run) })
	for _, d := range slices.Clone(l.run.def.Devices.Disks) {
		a, present, err := l.g.reg.findDisk(ctx, fenced(l.sc, fences, d), l.run, d)
		if missing := (*absence)(nil); errors.As(err, &missing) && l.mayLack(d.StartupPolicy, isDrive(d)) {
			l.dropDisk(d, err)
			continue
		}
		if err != nil {
			return err
		}
		if present {
			l.plan.Disks[d.Alias] = a
		}
		if err := l.g.reg.checkKey(d); err != nil {
			return err
		}
	}
	qemu.ShowChains(&run.def.Devices, l.plan.Disks)
	if len(run.dropped) > 0 {
		return l.journal(ctx)
	}
	return nil
}

// attachNICs makes the host's interfaces of the NICs. The name of each is journalled before the interface
// is made.
func (l *launching) attachNICs(ctx context.Context) error {
	l.plan.NICs = map[string]*device.NICAttachment{}
	for _, n := range l.run.def.Devices.NICs {
		before := slices.Clip(l.run.NICs)
		a, release, err := l.g.reg.attachNIC(ctx, l.sc, l.run.def, n, func(ifName string) error {
			l.run.NICs = append(before, heldNIC{Alias: n.Alias, IfName: ifName})
			return l.journal(ctx)
		})
		if err != nil {
			return err
		}
		if a == nil {
			continue // type user: QEMU needs no interface of the host
		}
		l.run.hold("interface "+a.IfName, release)
		l.plan.NICs[n.Alias] = a
		n.Target = a.IfName
		failpoint.Reach("launch.nic")
		l.run.NICs = append(before, heldNIC{Alias: n.Alias, IfName: a.IfName, Bridge: a.Bridge})
	}
	if len(l.run.NICs) == 0 {
		return nil
	}
	return l.journal(ctx)
}

// runQEMU gives the run its process: the prepared QEMU if there is one, else a new QEMU.
func (l *launching) runQEMU(ctx context.Context) (err error) {
	defer l.closeHanded()
	if l.plan.Capabilities, err = l.g.reg.Emulators.Get(ctx, l.run.def.Devices.Emulator); err != nil {
		return err
	}
	l.run.Messages = append(l.run.Messages, remarks(l.run.def, l.plan.Capabilities)...)
	for _, text := range exposed(l.run.def) {
		l.g.log.Warn("display is open to the network", "message", text)
	}
	l.plan.Definition, l.plan.Dir = l.run.def, l.run.ownPath()
	l.plan.Incoming = l.from != nil
	p, err := l.resume(ctx)
	if err != nil {
		return err
	}
	if p != nil {
		l.adopt(p)
		return nil
	}
	if p, err = l.execute(ctx, l.sc); err != nil {
		return err
	}
	l.adopt(p)
	failpoint.Reach("launch.executed")
	return l.orLastWords(ctx, l.joinGroup(ctx))
}

// adopt makes p the process of the run.
func (l *launching) adopt(p *qemuprocess.Process) {
	l.run.process, l.run.PID, l.run.StartTime = p, p.PID, p.StartTime
	l.g.reg.makeVictim(l.run.Name, p.PID, victim(l.opts.Priority))
	l.run.hold("process watch", func(context.Context) error { p.Release(); return nil })
}

// execute launches QEMU. The daemon listens on the monitor's socket before QEMU starts, so that connecting
// needs no polling.
func (l *launching) execute(ctx context.Context, sc scope.Scope) (*qemuprocess.Process, error) {
	var monitor *os.File
	err := l.run.labels.sockets(func() (err error) { monitor, err = qemuprocess.ListenMonitor(l.run.monitorPath()); return err })
	if err != nil {
		return nil, err
	}
	defer monitor.Close()
	l.plan.Monitor = monitor
	command, err := qemu.Arguments(&l.plan)
	if err != nil {
		return nil, err
	}
	logFile, err := l.g.reg.openLog(l.run.def.Name, "starting", l.run.def.Devices.Emulator, command)
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
	if l.from != nil {
		handed = append(handed, l.from.file)
	}
	return l.g.reg.launch(ctx, sc, l.run.def, command, logFile, l.run.dir, l.run.User, func(place *sandbox.Spec) error {
		place.Label = l.run.labels.of()
		return l.run.labels.confine(ctx, place, &l.plan, handed)
	})
}

// claimVSock reserves a context id for the guest's vsock device.
func (l *launching) claimVSock(context.Context) (err error) {
	if v := l.run.def.Devices.VSock; v != nil {
		l.plan.VSock, err = qemu.ClaimVSock(v)
	}
	return err
}

// closeFiles closes the daemon's copies of the files of the plan, whether QEMU has been given them or not.
func (l *launching) closeFiles() { closePlan(&l.plan) }

// closeHanded closes the copies of the files that QEMU has inherited at its launch. It keeps disk images,
// which may still wait for their keys, and display sockets, which listen later.
func (l *launching) closeHanded() {
	disks, listeners := l.plan.Disks, l.plan.Listeners
	l.plan.Disks, l.plan.Listeners = nil, nil
	closePlan(&l.plan)
	l.plan.Disks, l.plan.Listeners = disks, listeners
}

// shakeHands connects to the monitor and waits until QEMU answers a command. It gives up when the process
// ends.
func (l *launching) shakeHands(starting context.Context) error {
	ctx, cancel := context.WithCancelCause(starting)
	defer cancel(nil)
	go func() {
		select {
		case <-l.run.process.Exited():
			cancel(errors.New("QEMU has ended"))
		case <-ctx.Done():
		}
	}()
	s := l.run.session.Load() // a prepared QEMU is connected already
	var err error
	if s == nil {
		if s, err = qmp.Dial(ctx, l.run.monitorPath(), l.g.log); err == nil {
			l.run.connect(s)
		}
	}
	if err == nil {
		failpoint.Reach("launch.connected")
		// QEMU sends its greeting before it makes the machine, but answers this command only afterwards.
		err = s.Execute(ctx, "query-status", nil, nil)
	}
	return l.orLastWords(starting, err)
}

// endPatience is how long to wait, after a failure, for the kernel to report that the process has ended. In
// that case QEMU's own message is the better reason.
const endPatience = time.Second

// orLastWords replaces an error that came because QEMU has ended by QEMU's own message.
func (l *launching) orLastWords(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil { // the start was cancelled: QEMU is not the cause
		return err
	}
	late := time.NewTimer(endPatience)
	defer late.Stop()
	select {
	case <-l.run.process.Exited():
		return l.explain(l.g.reg.lastWords(l.run.def.Name, l.run.process))
	case <-late.C:
		return err
	}
}

// settle applies the settings that QEMU's arguments cannot express: secrets, limits and CPU pins.
func (l *launching) settle(ctx context.Context) error {
	s := l.run.session.Load()
	failpoint.Reach("launch.settle")
	for _, d := range l.run.def.Devices.Disks {
		if err := l.unlock(ctx, s, d); err != nil {
			return err
		}
	}
	for _, step := range qemu.AfterStart(&l.plan) {
		if err := execute(ctx, s, step); err != nil {
			return err
		}
	}
	if modules := l.run.def.Devices.Memories; len(modules) > 0 {
		if err := findModules(ctx, s, modules); err != nil {
			return err
		}
		if err := l.describe(); err != nil { // the next daemon needs them too
			return err
		}
	}
	absent, err := l.g.reg.limitThreads(ctx, s, l.run, &domain.CPUTune{}, &l.run.def.Tune)
	if err != nil {
		return err
	}
	l.run.warnAbsent(absent)
	return l.g.reg.pinThreads(ctx, l.run)
}

// load restores the saved image, if there is one.
func (l *launching) load(ctx context.Context) error {
	if l.from == nil {
		return nil
	}
	s := l.run.session.Load()
	if err := l.orLastWords(ctx, l.from.load(ctx, s)); err != nil {
		return err
	}
	failpoint.Reach("restore.loaded")
	var status struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &status); err != nil {
		return err
	}
	if phase, _ := activePhase(status.Status); phase == domain.ShuttingDown {
		l.run.kept = true // it was saved after it had shut down, and cannot resume
	}
	return nil
}

// pledge writes the run record of a running guest under a temporary name. goOn renames it, which makes it
// count. Order matters: the next daemon ends a start without a complete record, even if its client was
// already told that the guest runs.
func (l *launching) pledge(context.Context) error {
	l.run.Resuming = l.from != nil && !l.opts.Paused && !l.run.kept
	l.run.State, _ = lifecycle.Step(lifecycle.State{Policy: policy(l.run.def)}, begun(l.run, l.from != nil, l.opts))
	return fault.Wrap(atomicfile.WriteHalf(filepath.Join(l.run.dir, runRecordFile), &l.run.runRecord), fault.Failed, fault.Host, "cannot record that it runs")
}

// begun returns the lifecycle event of a completed start.
func begun(r *run, restored bool, o StartOptions) lifecycle.Started {
	if restored {
		return lifecycle.Started{Reason: domain.ReasonRestored, Paused: o.Paused || r.kept}
	}
	return lifecycle.Started{Reason: domain.ReasonBooted, Paused: o.Paused}
}

// goOn resumes the vCPUs and makes the run record count. For a restored guest the record counts first.
// Otherwise a daemon that dies in between would end the guest and restore it again from the image, although
// its disks have changed since.
func (l *launching) goOn(ctx context.Context) error {
	record := filepath.Join(l.run.dir, runRecordFile)
	if l.from != nil {
		if err := atomicfile.Replace(record); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot record that it runs")
		}
	}
	if !l.opts.Paused && !l.run.kept {
		if err := failpoint.Err("launch.cont"); err != nil {
			return err
		}
		if err := l.spend(ctx, l.sc); err != nil {
			return err
		}
		l.goesOn = l.from != nil
		if err := l.run.session.Load().Execute(ctx, "cont", nil, nil); err != nil {
			return err
		}
		failpoint.Reach("launch.continued")
	}
	if l.from != nil {
		return nil
	}
	if err := atomicfile.Replace(record); err != nil { // the loop tries again
		l.g.log.Error("cannot record that the guest runs", "error", err)
	}
	return nil
}

// spend records in the store that the managed save image is used, before the guest resumes from it. After a
// crash of the host the store alone knows this: the run record is lost with the run directory. If the store
// takes no changes, the run record tells the next daemon.
func (l *launching) spend(ctx context.Context, sc scope.Scope) error {
	if l.from == nil || !l.from.managed {
		return nil
	}
	err := l.g.change(ctx, sc, "", func() error {
		l.g.record.ManagedSave = false
		l.run.spent = l.g.keep() == nil
		l.g.record.ManagedSave = !l.run.spent
		return nil
	})
	return cmp.Or(err, context.Cause(ctx))
}

// execute runs one step of a plan: a QMP command, with a file descriptor if the step has one.
func execute(ctx context.Context, s *qmp.Session, step qemu.Step) error {
	if step.File != nil {
		return s.ExecuteFD(ctx, step.File, step.Command, step.Args, nil)
	}
	return s.Execute(ctx, step.Command, step.Args, nil)
}
