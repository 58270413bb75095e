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
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// StartOptions say how a guest is started.
type StartOptions struct {
	// Paused leaves the processors stopped.
	Paused bool
	// AutoDestroy ends the guest when Owner closes: its client has gone.
	AutoDestroy bool
	Owner       <-chan struct{}
	// OwnerMay says whether that client may end the guest when it goes: others may have been given the
	// guest by then. Nil: it may.
	OwnerMay Judge
	// ForceBoot discards a managed save image instead of continuing from it.
	ForceBoot   bool
	BypassCache bool
	Validate    bool
	ResetNVRAM  bool
	// Priority orders the starts that wait for their turn: lower numbers go first.
	Priority int
}

// Start starts a guest that is shut off, from its managed save image if it has
// one.
func (g *Guest) Start(ctx context.Context, o StartOptions) error {
	return g.perform(ctx, lifecycle.Start, domain.JobStart, 0, func() (work, error) { return g.planAnyStart(o) })
}

// planAnyStart plans a start of the stored definition.
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

// Create starts a transient guest, or a persistent one that the document names.
func (r *Registry) Create(ctx context.Context, doc string, o StartOptions) (*Guest, error) {
	u, err := r.understand(ctx, doc, o.Validate)
	if err != nil {
		return nil, err
	}
	return r.claimed(ctx, u.plain.Name, u.plain.UUID, func(g *Guest) error {
		return g.perform(ctx, lifecycle.Start, domain.JobStart, 0, func() (work, error) {
			if err := errors.Join(g.isCalled(u.plain.Name), g.admitBesideSave()); err != nil {
				return nil, err
			}
			def := u.after(g.current())
			return g.planStart(def, doc, o), g.fenceRun(ctx, def)
		})
	})
}

// planStart gives the work of a cold start of def.
func (g *Guest) planStart(def *domain.Definition, submitted string, o StartOptions) work {
	return func(ctx context.Context) (settle, error) {
		r, err := g.launch(ctx, def, submitted, o, nil)
		if err != nil {
			return nil, err
		}
		return func() error {
			g.takeOver(r, begun(r, false, o), o)
			return nil
		}, nil
	}
}

// takeOver makes a launched machine the guest's. It runs in the loop.
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

// destroyWith destroys the guest when its owner goes, unless it is others' by then.
func (g *Guest) destroyWith(o StartOptions, r *run) {
	select {
	case <-o.Owner:
	case <-r.process.Exited():
		return
	case <-g.ended:
		return
	}
	err := g.destroy(WithJudge(g.reg.life, o.OwnerMay), false, r)
	if fault.Is(err, fault.Denied) {
		err = errors.Join(err, g.change(g.reg.life, "", func() error { return g.outlive(r) }))
	}
	if err != nil && !errors.Is(err, errLeft) {
		g.log.Warn("the guest of a client that has gone is not destroyed", "error", err)
	}
}

// outlive has the guest end with no client any more. It runs in the loop.
func (g *Guest) outlive(r *run) error {
	if g.run == r {
		r.AutoDestroy = false
		g.keepRun()
	}
	return nil
}

// launching is a start under way. Each of its steps acquires something and
// pushes how to give it back onto the run; failure unwinds them in reverse.
type launching struct {
	g    *Guest
	run  *run
	plan qemu.Plan
	from *savedImage // what is restored; nil: a cold start
	opts StartOptions
	// prepared is a QEMU that waits for this start; nil: there is none, or the run
	// has its process.
	prepared *prepared
	// goesOn says that a machine which came from an image was told to run.
	goesOn bool
}

// launch makes a machine from a definition and, unless the options or the saved
// image say otherwise, sets it going. On failure nothing of it is left; the run of one that was to come
// from an image is given then, too, which says what became of that.
func (g *Guest) launch(ctx context.Context, def *domain.Definition, submitted string, o StartOptions, from *savedImage) (r *run, err error) {
	if err := g.boundStart(ctx, def, submitted, from); err != nil {
		return nil, err
	}
	_ = g.reg.furnish() // whoever writes there says what is wrong
	def = def.Clone()
	if from != nil && def.GenID != "" {
		def.GenID = uuid.NewString() // the guest may have gone on from there before, and has to know
	}
	fences := g.View().fences
	ctx = withFences(ctx, fences)
	qemu.AssignAliases(def)
	l := &launching{g: g, opts: o, from: from, run: newRun(runRecord{
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
			l.unwind(ctx)
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

// unwind ends what was started and gives everything back, with time of its own.
func (l *launching) unwind(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer stop()
	l.closeFiles()
	s := l.run.session.Load()
	if s != nil && !l.goesOn { // else its last words count
		s.Close()
	}
	if l.prepared != nil {
		if err := l.prepared.kill(); err != nil {
			l.run.log.Error("a prepared process does not end", "pid", l.prepared.process.PID, "error", err)
		}
	}
	if l.run.process != nil {
		l.run.killNow()
		select {
		case <-l.run.process.Exited():
		case <-ctx.Done():
			l.run.log.Error("a process of a failed start does not end", "pid", l.run.PID)
		}
	}
	if l.goesOn {
		l.run.ran = l.run.hasResumed()
		s.Close()
	}
	if l.from != nil { // which may take long, and a daemon that ended amid it would leave an image that is nobody's
		_ = l.g.change(ctx, "", func() error { l.g.settleImage(l.run); return nil })
	}
	_ = l.run.releaseAll(ctx) // each failure has been logged
	l.g.reg.giveBackLater(l.run)
	if l.g.View().Inactive == nil {
		l.g.reg.dropMadeNVRAM(&l.run.runRecord, l.run.def, l.run.log)
	}
}

// hasResumed reports whether a QEMU that has ended said that the processors ran. It is asked before
// the loop has the run, and also where the end took all the time there was: what it said counts.
func (r *run) hasResumed() bool {
	late := time.NewTimer(lastEvents)
	defer late.Stop()
	for {
		select {
		case e, more := <-r.events:
			if !more || e.Name == "RESUME" || e.Resync { // a resync may stand for it
				return more
			}
		case <-late.C:
			return false
		}
	}
}

// guestDir is the private run directory of a guest. It is named after the UUID,
// which has a bounded length: socket paths must stay below 108 bytes.
func (r *Registry) guestDir(uuid string) string { return filepath.Join(r.RunDir, uuid) }

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

// journal says, before anything is made that outlives the daemon, what the
// start is about to take: a daemon killed in the middle finds here what to take
// back. The process is found by its directory, and the record is complete when
// the loop takes the guest over.
func (l *launching) journal(context.Context) error {
	if err := l.describe(); err != nil {
		return err
	}
	return writeRunRecord(l.run.dir, &l.run.runRecord)
}

// describe brings the definition in the record up to date.
func (l *launching) describe() (err error) {
	l.run.XML, err = l.run.text(l.run.def)
	return err
}

// reserve enters in the host's books what the guest is about to take.
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

func (l *launching) findDisks(ctx context.Context) error {
	l.plan.Disks = map[string]device.DiskAttachment{}
	fences, run := l.g.View().fences, l.run
	run.hold("disks", func(ctx context.Context) error { return l.g.reg.takeBackDisks(ctx, run) })
	for _, d := range slices.Clone(l.run.def.Devices.Disks) {
		a, present, err := l.g.reg.findDisk(fenced(ctx, fences, d), l.run, d)
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
	qemu.SetChains(&run.def.Devices, l.plan.Disks)
	if len(run.dropped) > 0 {
		return l.journal(ctx)
	}
	return nil
}

func (l *launching) attachNICs(ctx context.Context) error {
	l.plan.NICs = map[string]*device.NICAttachment{}
	for _, n := range l.run.def.Devices.NICs {
		before := slices.Clip(l.run.NICs)
		a, release, err := l.g.reg.attachNIC(network.WithNote(ctx, func(ifName string) error {
			l.run.NICs = append(before, heldNIC{Alias: n.Alias, IfName: ifName})
			return l.journal(ctx)
		}), l.run.def, n)
		if err != nil {
			return err
		}
		if a == nil {
			continue // type user: QEMU does it alone
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

// runQEMU gives the guest its process: the one that waits for it, or a new one.
func (l *launching) runQEMU(ctx context.Context) (err error) {
	defer l.closeHanded()
	if l.plan.Capabilities, err = l.g.reg.Emulators.Get(ctx, l.run.def.Devices.Emulator); err != nil {
		return err
	}
	l.run.Messages = append(l.run.Messages, remarks(l.run.def, l.plan.Capabilities)...)
	for _, text := range exposed(l.run.def) {
		l.g.log.Warn("a display is open to the network", "message", text)
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
	if p, err = l.execute(ctx); err != nil {
		return err
	}
	l.adopt(p)
	failpoint.Reach("launch.executed")
	return l.orLastWords(ctx, l.joinGroup(ctx))
}

// adopt makes a process the run's.
func (l *launching) adopt(p *qemuprocess.Process) {
	l.run.process, l.run.PID, l.run.StartTime = p, p.PID, p.StartTime
	l.g.reg.makeVictim(l.run.Name, p.PID, victim(l.opts.Priority))
	l.run.hold("process watch", func(context.Context) error { p.Release(); return nil })
}

// execute launches a process. The daemon listens on the monitor's socket before
// QEMU is there, so that connecting needs no polling.
func (l *launching) execute(ctx context.Context) (*qemuprocess.Process, error) {
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
	if logFile.Name() != os.DevNull { // which is everybody's
		handed = append(handed, logFile)
	}
	if l.from != nil {
		handed = append(handed, l.from.file)
	}
	return l.g.reg.launch(ctx, l.run.def, command, logFile, l.run.dir, l.run.User, func(place *sandbox.Spec) error {
		place.Label = l.run.labels.of()
		return l.run.labels.confine(ctx, place, &l.plan, handed)
	})
}

// claimVSock takes a context id for the guest's vsock.
func (l *launching) claimVSock(context.Context) (err error) {
	if v := l.run.def.Devices.VSock; v != nil {
		l.plan.VSock, err = qemu.ClaimVSock(v)
	}
	return err
}

// closeFiles closes the daemon's copies of what QEMU has been given, or will
// not be.
func (l *launching) closeFiles() { closePlan(&l.plan) }

// closeHanded closes those that QEMU has been given when it runs: images may wait
// for their keys, and displays listen later.
func (l *launching) closeHanded() {
	disks, listeners := l.plan.Disks, l.plan.Listeners
	l.plan.Disks, l.plan.Listeners = nil, nil
	closePlan(&l.plan)
	l.plan.Disks, l.plan.Listeners = disks, listeners
}

// shakeHands connects to the monitor, for as long as the process lives.
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
	s := l.run.session.Load() // what was prepared has one
	var err error
	if s == nil {
		if s, err = qmp.Dial(ctx, l.run.monitorPath(), l.g.log); err == nil {
			l.run.connect(s)
		}
	}
	if err == nil {
		failpoint.Reach("launch.connected")
		// The greeting comes before the machine is made; this answer does not.
		err = s.Execute(ctx, "query-status", nil, nil)
	}
	return l.orLastWords(starting, err)
}

// endPatience is how long after a failure the kernel may take to report that the
// process had ended, which then is the reason.
const endPatience = time.Second

// orLastWords gives, in place of an error that came because QEMU has ended, what
// QEMU said about that.
func (l *launching) orLastWords(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil { // somebody ended the start: QEMU has no part in that
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

// settle applies what cannot be said in arguments: secrets, limits, pins.
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
		if err := l.describe(); err != nil { // the next daemon is to know, too
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

// load loads the saved image, if any.
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
		l.run.kept = true // it had ended as it was saved, and cannot go on
	}
	return nil
}

// pledge writes down that the guest runs, where it counts as soon as it does: a daemon that finds
// a start which is not written down to its end takes it back, also where its client was told that
// the guest is there.
func (l *launching) pledge(context.Context) error {
	l.run.Resuming = l.from != nil && !l.opts.Paused && !l.run.kept
	l.run.State, _ = lifecycle.Step(lifecycle.State{Policy: policy(l.run.def)}, begun(l.run, l.from != nil, l.opts))
	return fault.Wrap(atomicfile.WriteHalf(filepath.Join(l.run.dir, runRecordFile), &l.run.runRecord), fault.Failed, fault.Host, "cannot write down that it runs")
}

// begun is what a start comes to.
func begun(r *run, restored bool, o StartOptions) lifecycle.Started {
	if restored {
		return lifecycle.Started{Reason: domain.ReasonRestored, Paused: o.Paused || r.kept}
	}
	return lifecycle.Started{Reason: domain.ReasonBooted, Paused: o.Paused}
}

// goOn lets the processors run, and the guest be one that does. One that came from an image is that
// before: taken back after it has run it would go on from its image again, on disks that have changed.
func (l *launching) goOn(ctx context.Context) error {
	record := filepath.Join(l.run.dir, runRecordFile)
	if l.from != nil {
		if err := atomicfile.Replace(record); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot write down that it runs")
		}
	}
	if !l.opts.Paused && !l.run.kept {
		if err := failpoint.Err("launch.cont"); err != nil {
			return err
		}
		if err := l.spend(ctx); err != nil {
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
		l.g.log.Error("a guest runs, and that cannot be written down", "error", err)
	}
	return nil
}

// spend has the store say that the managed save image is used up before the guest goes on from there:
// with a host that goes down just then goes all else that tells so. Where the store takes no changes
// the run record tells the next daemon.
func (l *launching) spend(ctx context.Context) error {
	if l.from == nil || !l.from.managed {
		return nil
	}
	err := l.g.change(ctx, "", func() error {
		l.g.record.ManagedSave = false
		l.run.spent = l.g.keep() == nil
		l.g.record.ManagedSave = !l.run.spent
		return nil
	})
	return cmp.Or(err, context.Cause(ctx))
}

// execute runs one step of a plan.
func execute(ctx context.Context, s *qmp.Session, step qemu.Step) error {
	if step.File != nil {
		return s.ExecuteFD(ctx, step.File, step.Command, step.Args, nil)
	}
	return s.Execute(ctx, step.Command, step.Args, nil)
}
