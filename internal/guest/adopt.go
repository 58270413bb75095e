package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Open makes the registry: it reads the definitions and adopts the guests that
// an earlier daemon left running, all at once. A guest whose monitor does not
// answer delays nobody: it is adopted and shown as stuck.
func Open(c Config) (*Registry, error) {
	r := newRegistry(c)
	var err error
	if r.meter, err = hostnet.OpenMeter(); err != nil {
		return nil, err
	}
	for _, dir := range []string{c.RunDir, c.DataDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
		}
	}
	if err := r.furnish(); err != nil {
		return nil, err
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	r.findSaved()
	if err := r.surveyUsers(); err != nil {
		return nil, err
	}
	r.sweepSaved()
	r.sweepPrepared()
	if err := r.sweepHalf(); err != nil {
		return nil, err
	}
	if err := r.settleHeaders(); err != nil {
		return nil, err
	}
	if err := r.loadDues(); err != nil {
		return nil, err
	}
	r.loadLabels()
	if err := r.adoptAll(); err != nil {
		return nil, err
	}
	if err := r.recoverUndefinitions(); err != nil {
		return nil, err
	}
	if err := r.store.Settle(); err != nil {
		r.log.Error("the next daemon, too, looks for guests that the store may have lost", "error", err)
	}
	r.sweepLabels()
	r.sweepDropped()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.byUUID {
		r.run(g)
	}
	r.loops.Go(func() { r.sampler.run(r.life) })
	r.loops.Go(func() { r.pool.run(r.life, scope.Daemon("preparing QEMUs for starts")) })
	r.loops.Go(func() { r.rooms.run(r.life, scope.Daemon("resuming a guest whose disk has room again")) })
	r.loops.Go(func() { r.boundLogs(r.life) })
	return r, nil
}

// furnish makes the folders of the data directory, those too that somebody has removed since.
func (r *Registry) furnish() error {
	for _, dir := range []string{r.logDir(), r.saveDir(), r.nvramDir(), r.coreDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
		}
	}
	return nil
}

// load reads the persistent definitions. One that can no longer be read is
// reported and left in the store; it must not keep the others from being served.
func (r *Registry) load() error {
	return r.store.Each(domains, func(uuid string, decode func(any) error) error {
		var rec record
		if err := decode(&rec); err != nil {
			r.log.Error("cannot read a stored domain; it is left as it is", "uuid", uuid, "error", err)
			return nil
		}
		def, err := domainxml.Parse(rec.XML, domainxml.Options{})
		if err != nil {
			r.log.Error("cannot understand a stored domain; it is left as it is", "domain", rec.Name, "uuid", uuid, "error", err)
			return nil
		}
		g := newGuest(r, rec.Name, uuid)
		g.record, g.inactive = rec, def
		g.state.Persistent, g.state.Policy = true, policy(def)
		g.publish()
		r.byName[rec.Name], r.byUUID[uuid] = g, g
		return nil
	})
}

// sweepSaved removes managed save images that were not completed, and those of
// guests that were forgotten when their daemon was killed: they hold secrets, and
// another guest of the same UUID must not find them. While the store may have lost
// records, an image without one is kept.
func (r *Registry) sweepSaved() {
	names, err := filepath.Glob(filepath.Join(r.saveDir(), "*.save*"))
	if err != nil {
		return // only for a pattern that is wrong
	}
	for _, path := range names {
		uuid, rest, _ := strings.Cut(filepath.Base(path), ".")
		var kept any
		if rest == "save.partial" || rest == "save" && r.store.Sound() && fault.Is(r.store.Get(domains, uuid, &kept), fault.NotFound) {
			removeFile(r.log, path)
		}
	}
}

// sweepDropped removes the managed save images that were given up: those of guests
// that have none by their records, and are not writing one. The loops do not run yet.
func (r *Registry) sweepDropped() {
	for _, g := range r.byUUID {
		writing := g.run != nil && g.run.ops.HasClass(operation.Move) || g.quarantine != ""
		if g.record.ManagedSave || writing {
			continue
		}
		if _, err := os.Stat(g.managedSavePath()); err == nil {
			removeFile(r.log, g.managedSavePath())
		}
	}
}

// Patience of an adoption: how long the daemon waits for the first monitor to be
// reached, and for the next one after each. Then it serves without the others,
// which are taken in when they answer: one that is stuck delays nobody.
const (
	firstReached = time.Second
	nextReached  = 100 * time.Millisecond
)

// adopting is an adoption of all guests that is under way.
type adopting struct {
	*Registry
	reached  chan struct{}   // told of each monitor that was reached
	patience context.Context // ends when those that are left are not waited for
}

// adoptAll looks into every run directory and adopts what it finds. The loops
// do not run yet, so that each adoption may write its guest.
func (r *Registry) adoptAll() error {
	r.findOrphans()
	entries, err := os.ReadDir(r.RunDir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot look for running guests")
	}
	patience, lose := context.WithCancelCause(r.life)
	defer lose(nil)
	a := &adopting{Registry: r, reached: make(chan struct{}, len(entries)), patience: patience}
	var all sync.WaitGroup
	for _, e := range entries {
		dir := filepath.Join(r.RunDir, e.Name())
		if !e.IsDir() || dir == r.preparedDir() {
			continue
		}
		all.Go(func() {
			if err := a.adopt(dir); err != nil {
				r.setAside(dir, err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	late := time.NewTimer(firstReached)
	defer late.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-a.reached:
			late.Reset(nextReached)
		case <-late.C:
			lose(fault.New(fault.Timeout, fault.Monitor, "the monitor has not answered for %v", nextReached))
		}
	}
}

// findOrphans gives a run directory again to the guests whose own somebody has removed while
// their QEMUs run on in their control groups, so that they are set aside, and not started
// twice: no monitor leads to them any more. One that was prepared and only waits is ended.
func (r *Registry) findOrphans() {
	for _, name := range r.Cgroups.Guests() {
		dir := r.guestDir(name)
		if _, err := os.Lstat(dir); uuid.Validate(name) != nil || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		pid, unknown := r.emulatorIn(dir)
		if unknown == nil && (pid == 0 || r.endedWaiting(pid, name)) {
			continue
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			r.log.Error("a guest runs whose run directory has gone, and cannot be kept from being started twice", "uuid", name, "error", err)
		}
	}
}

// adopt takes over one guest, or finishes what a start or an end under way left.
// An error says why that cannot be done.
func (r *adopting) adopt(dir string) error {
	rec, err := readRunRecord(dir)
	if err != nil {
		return err
	}
	if rec == nil {
		pid, err := r.emulatorIn(dir)
		if err != nil {
			return err
		}
		if pid != 0 {
			return errors.New("its run record has gone") // one is written before a QEMU is launched
		}
		return removeTree(dir) // a start that had not yet written anything
	}
	if rec.User != nil && len(rec.Isolation) == 0 { // its daemon did not say, and did this much
		rec.Isolation = []string{"user", "root", "capabilities"}
	}
	run := newRun(*rec, dir, r.Kernel, r.log.With("domain", rec.Name, "uuid", rec.UUID))
	if run.def, err = domainxml.Parse(rec.XML, domainxml.Options{Active: true}); err != nil {
		return fmt.Errorf("cannot understand its run record: %w", err)
	}
	process, err := r.findProcess(run)
	started := rec.State.Phase.Active()
	if started {
		r.hasRun(rec.UUID)
	}
	if err == nil && process != nil && !started {
		run.log.Warn("taking back a start that its daemon did not live to complete", "pid", process.PID)
		process, err = nil, killAndWait(process)
	}
	if err != nil {
		return err
	}
	r.dropHalfWritten(dir)
	records, err := operation.Files{Dir: dir}.Read()
	if err == nil {
		err = r.giveOperations(run, records)
	}
	if err != nil {
		return err
	}
	r.rehold(run)
	run.ops.Rehold()
	rec.State = run.State // what is open may have changed it
	run.shorten = run.Surplus
	if process == nil {
		r.bury(run, rec, started)
		return nil
	}
	r.takeUp(run, rec, process)
	return nil
}

// dropHalfWritten removes what a daemon that was killed was just writing.
func (r *Registry) dropHalfWritten(dir string) {
	removeFile(r.log, filepath.Join(dir, runRecordFile)+atomicfile.Half)
}

// takeUp makes a guest that runs on this daemon's own.
func (r *adopting) takeUp(run *run, rec *runRecord, process *qemu.Process) {
	run.process = process
	run.hold("process watch", func(context.Context) error { process.Release(); return nil })
	if err := run.seal(); err != nil { // its daemon may not have known how
		run.log.Error("a QEMU may go on to write into its run directory", "error", err)
	}
	g := r.adopted(rec)
	run.guest = g
	g.run, g.state, g.since = run, rec.State, rec.Since
	g.findRunning(rec, run.def)
	if g.inactive == nil && rec.State.Persistent { // a daemon to come may know it again
		run.KeepTPM, run.MadeNVRAM = true, false
	}
	g.state.Persistent = g.inactive != nil // what is stored counts
	g.settleManaged(run)
	g.live.Store(run)
	if len(run.NoRoom) > 0 && !r.StayFull {
		r.rooms.wait(g, run.NoRoom)
	}
	r.setID(g, rec.ID)
	r.reattach(g, run)
	g.watchTPM(run)
	g.endAgain()
	g.publish()
}

// adopted gives the guest of a run record, making it when it is transient.
func (r *Registry) adopted(rec *runRecord) *Guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.byUUID[rec.UUID]
	if g == nil {
		g = newGuest(r, rec.Name, rec.UUID)
		g.record.Fences = rec.Fences
		r.byUUID[rec.UUID] = g
		if other := r.byName[rec.Name]; other == nil {
			r.byName[rec.Name] = g
		} else { // by the store of a backup, say
			g.log.Error("a guest runs that has another's name; it is found by its UUID", "other", other.uuid)
		}
	}
	return g
}

// findProcess finds the process of a run record again; nil when it has ended.
func (r *Registry) findProcess(run *run) (*qemu.Process, error) {
	pid, start := run.PID, run.StartTime
	if pid == 0 { // launched, perhaps, but not yet recorded
		var err error
		if pid, err = r.emulatorIn(run.dir); pid == 0 || err != nil {
			return nil, err
		}
		p, err := r.Kernel.Process(pid)
		if fault.Is(err, fault.NotFound) { // it has ended just now
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		start = p.Start
	}
	process, err := qemu.Adopt(pid, start)
	if fault.Is(err, fault.NotFound) {
		run.log.Info("a guest ended while no daemon looked", "cause", err)
		return nil, nil
	}
	return process, err
}

// emulatorIn finds the QEMU that was launched in a guest's run directory; 0 when
// there is none. An administrator may look around there too.
// An error says that this cannot be told, because no more files can be opened, say: whoever took that
// for none would end a guest, or start it twice.
func (r *Registry) emulatorIn(dir string) (int, error) {
	if pid, err := r.emulatorOf(dir); pid != 0 || err != nil {
		return pid, err
	}
	inGroup, err := r.Cgroups.Guest(filepath.Base(dir)).Processes()
	if err != nil {
		return 0, err
	}
	there, err := r.Kernel.WorkingIn(dir)
	if err != nil {
		return 0, err
	}
	return r.guestAmong(append(inGroup, there...), dir)
}

// guestAmong finds the QEMU of a run directory among processes; 0: it is none of them.
func (r *Registry) guestAmong(pids []int, dir string) (int, error) {
	for _, pid := range pids {
		command, err := r.Kernel.Command(pid)
		if err != nil {
			return 0, err
		}
		if isGuest(command, dir) {
			return pid, nil
		}
	}
	return 0, nil
}

// killAndWait ends a process and waits for that, but not for one that the kernel
// does not let go.
func killAndWait(p *qemu.Process) error {
	if err := p.Kill(); err != nil {
		return err
	}
	late := time.NewTimer(nowPatience)
	defer late.Stop()
	select {
	case <-p.Exited():
		return nil
	case <-late.C:
		p.Release()
		return fault.New(fault.Timeout, fault.Host, "process %d was killed and does not end", p.PID)
	}
}

// bury settles a guest that ended while no daemon looked: what it held is given
// back, and it is shown as what it became.
func (r *Registry) bury(run *run, rec *runRecord, started bool) {
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	r.mu.RLock()
	g := r.byUUID[rec.UUID]
	r.mu.RUnlock()
	run.guest, run.alone = g, true
	if g != nil && started && rec.revives(rec.State) {
		r.noteCrash(rec.UUID) // the autostart takes it up
	}
	if g == nil && started && rec.State.Persistent { // nobody else has its definition any more
		g = r.lostWith(rec, run.def)
	}
	if g != nil && started {
		run.guest = g
		g.settleManaged(run) // it may need what is released now
	}
	_ = run.releaseAll(ctx) // each failure has been logged
	r.giveBackLater(run)
	if !started {
		sc := scope.Daemon("a start that was cut off")
		if g != nil {
			sc = sc.Noting(g.View().fences)
		}
		dropHalfNVRAM(ctx, sc, run)
	}
	switch {
	case g != nil || !started:
	case rec.State.Persistent: // a daemon to come may know it again
		r.noteLeft(rec.UUID, rec.Name, run.log)
	case r.store.Sound(): // else its definition may be lost
		r.dropSecretsOf(rec, run.def, run.log)
	}
	if g == nil || !started {
		return
	}
	g.state.Phase, g.state.Reason = domain.ShutOff, cmp.Or(rec.State.EndFor, domain.ReasonUnknown)
	g.publish()
}

// clear removes the run directory of a guest that has ended, and what can be
// known from it alone. It refuses while a QEMU works there.
func (r *Registry) clear(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	pid, err := r.emulatorIn(dir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Domain, "cannot tell whether QEMU of an earlier run lives on in %s", dir)
	}
	if pid != 0 {
		return fault.New(fault.Busy, fault.Domain, "QEMU (process %d) of an earlier run lives on in %s; end that process first", pid, dir)
	}
	// The emulator of a TPM is in the group, which would give it no time to write down what it has.
	return errors.Join(stopTPMs(ctx, &run{dir: dir}), r.Cgroups.Guest(filepath.Base(dir)).Clear(ctx), removeTree(dir))
}

// rehold rebuilds the releases of an adopted guest from its record, in the order
// in which a start acquires them.
func (r *Registry) rehold(run *run) {
	r.reholdClaims(run) // dropped last: a later daemon finds no record then that names them
	r.holdUser(run)
	run.hold("run directory", run.removeDir)
	r.reholdLabels(run)
	r.Ledger.Restore(run.UUID, demand(run.def), r.need(run.def)) // it has it already: nothing can be refused
	run.hold("reservation", func(context.Context) error { r.Ledger.Release(run.UUID); return nil })
	for _, at := range run.Taken {
		r.holdDevice(run, at)
	}
	for _, n := range run.NICs {
		release, err := r.readoptNIC(run, n)
		if err != nil {
			run.log.Info("an interface of an adopted guest is not there", "interface", n.IfName, "cause", err)
			continue
		}
		run.hold(n.what(), release)
	}
	r.reholdRest(run)
}
