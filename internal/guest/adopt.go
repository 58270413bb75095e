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
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Open makes the registry. It reads the stored definitions and adopts, all at once, the guests that an
// earlier daemon left running. A guest without an answering monitor delays no other guest: it is adopted
// and shown as stuck.
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
		r.log.Error("cannot mark the store as settled; the next daemon searches for lost guests again", "error", err)
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

// furnish makes the missing folders of the data directory, also those that were removed while the daemon
// ran.
func (r *Registry) furnish() error {
	for _, dir := range []string{r.logDir(), r.saveDir(), r.nvramDir(), r.coreDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
		}
	}
	return nil
}

// load reads the persistent definitions. A definition that cannot be read is logged and left in the store,
// and the other guests are still served.
func (r *Registry) load() error {
	return r.store.Each(domains, func(uuid string, decode func(any) error) error {
		var rec record
		if err := decode(&rec); err != nil {
			r.log.Error("cannot read a stored domain; record kept", "uuid", uuid, "error", err)
			return nil
		}
		def, err := domainxml.Parse(rec.XML, domainxml.Options{})
		if err != nil {
			r.log.Error("cannot parse a stored domain; record kept", "domain", rec.Name, "uuid", uuid, "error", err)
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

// sweepSaved removes incomplete managed save images, and images of guests that no longer have a record.
// Such images hold secrets, and a new guest of the same UUID must not find them. While the store may have
// lost records, it keeps images without a record.
func (r *Registry) sweepSaved() {
	names, err := filepath.Glob(filepath.Join(r.saveDir(), "*.save*"))
	if err != nil {
		return // only a malformed pattern fails
	}
	for _, path := range names {
		uuid, rest, _ := strings.Cut(filepath.Base(path), ".")
		var kept any
		if rest == "save.partial" || rest == "save" && r.store.Sound() && fault.Is(r.store.Get(domains, uuid, &kept), fault.NotFound) {
			removeFile(r.log, path)
		}
	}
}

// sweepDropped removes the managed save images that were given up: the record of the guest names none, and
// no save is in progress. It runs before the loops start.
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

// These bound how long an adoption waits: for the first monitor to answer, and for the next one after each
// answer. Then the daemon begins to serve. Monitors that answer later are connected then, so that a stuck
// guest delays no other.
const (
	firstReached = time.Second
	nextReached  = 100 * time.Millisecond
)

// adopting is the adoption of all guests while it is in progress.
type adopting struct {
	*Registry
	reached  chan struct{}   // receives once for each monitor that answered
	patience context.Context // ends when the remaining monitors are no longer waited for
}

// adoptAll adopts the guest of every run directory, each in a goroutine. The loops do not run yet, so that
// an adoption may change its guest.
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

// findOrphans makes a new run directory for a guest if its directory was removed while its QEMU still runs
// in its control group. The guest is then quarantined and cannot be started twice: no monitor can reach
// that QEMU any more. A prepared QEMU that still waits is ended instead.
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
			r.log.Error("run directory of a running guest is missing; the guest may be started twice", "uuid", name, "error", err)
		}
	}
}

// adopt takes over one guest, or finishes an interrupted start or stop. An error says why the guest cannot
// be adopted.
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
			return errors.New("its run record is missing") // the record is written before QEMU is launched
		}
		return removeTree(dir) // the start had not written anything yet
	}
	if rec.User != nil && len(rec.Isolation) == 0 { // an older record names none, and these were set up
		rec.Isolation = []string{"user", "root", "capabilities"}
	}
	run := newRun(*rec, dir, r.Kernel, r.log.With("domain", rec.Name, "uuid", rec.UUID))
	if run.def, err = domainxml.Parse(rec.XML, domainxml.Options{Active: true}); err != nil {
		return fmt.Errorf("cannot parse its run record: %w", err)
	}
	process, err := r.findProcess(run)
	started := rec.State.Phase.Active()
	if started {
		r.hasRun(rec.UUID)
	}
	if err == nil && process != nil && !started {
		run.log.Warn("start interrupted by the end of its daemon; undoing it", "pid", process.PID)
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
	rec.State = run.State // open operations may have changed it
	run.shorten = run.Surplus
	if process == nil {
		r.bury(run, rec, started)
		return nil
	}
	r.takeUp(run, rec, process)
	return nil
}

// dropHalfWritten removes the incomplete run record that a killed daemon left.
func (r *Registry) dropHalfWritten(dir string) {
	removeFile(r.log, filepath.Join(dir, runRecordFile)+atomicfile.Half)
}

// takeUp makes a running guest this daemon's own.
func (r *adopting) takeUp(run *run, rec *runRecord, process *qemuprocess.Process) {
	run.process = process
	run.hold("process watch", func(context.Context) error { process.Release(); return nil })
	if err := run.seal(); err != nil { // an older daemon may not have sealed it
		run.log.Error("cannot seal the run directory; QEMU may still write to it", "error", err)
	}
	g := r.adopted(rec)
	run.guest = g
	g.run, g.state, g.since = run, rec.State, rec.Since
	g.findRunning(rec, run.def)
	if g.inactive == nil && rec.State.Persistent { // a later daemon may have the definition again
		run.KeepTPM, run.MadeNVRAM = true, false
	}
	g.state.Persistent = g.inactive != nil // the store decides
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

// adopted returns the guest of a run record. It makes a guest if none has that UUID, as for a transient
// one.
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
		} else { // after the store was restored from a backup, for example
			g.log.Error("running guest has the name of another guest; find it by UUID", "other", other.uuid)
		}
	}
	return g
}

// findProcess finds the process of a run record. It returns nil if the process has ended.
func (r *Registry) findProcess(run *run) (*qemuprocess.Process, error) {
	pid, start := run.PID, run.StartTime
	if pid == 0 { // QEMU may have been launched before its PID was recorded
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
	process, err := qemuprocess.Adopt(pid, start)
	if fault.Is(err, fault.NotFound) {
		run.log.Info("guest ended while no daemon ran", "cause", err)
		return nil, nil
	}
	return process, err
}

// emulatorIn finds the QEMU that was launched in a guest's run directory. It returns 0 if there is none.
// Other processes, such as an administrator's shell, may work in that directory too. An error means that
// the answer is unknown, for example because no more files can be opened. The caller must not take it for
// 0: it would end a running guest or start it twice.
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

// guestAmong finds the QEMU of a run directory among processes. It returns 0 if none of them is.
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

// killAndWait kills a process and waits, at most nowPatience, until it has ended. A process that hangs in
// the kernel is reported as an error.
func killAndWait(p *qemuprocess.Process) error {
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

// bury settles a guest that ended while no daemon ran. It releases what the guest held and publishes the
// guest's final state.
func (r *Registry) bury(run *run, rec *runRecord, started bool) {
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	r.mu.RLock()
	g := r.byUUID[rec.UUID]
	r.mu.RUnlock()
	run.guest, run.alone = g, true
	if g != nil && started && rec.revives(rec.State) {
		r.noteCrash(rec.UUID) // autostart starts it again
	}
	if g == nil && started && rec.State.Persistent { // no other record has its definition any more
		g = r.lostWith(rec, run.def)
	}
	if g != nil && started {
		run.guest = g
		g.settleManaged(run) // it may need resources that are released below
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
	case rec.State.Persistent: // a later daemon may have the definition again
		r.noteLeft(rec.UUID, rec.Name, run.log)
	case r.store.Sound(): // otherwise its definition may be lost
		r.dropSecretsOf(rec, run.def, run.log)
	}
	if g == nil || !started {
		return
	}
	g.state.Phase, g.state.Reason = domain.ShutOff, cmp.Or(rec.State.EndFor, domain.ReasonUnknown)
	g.publish()
}

// clear removes the run directory of a guest that has ended, and what can be released without a record. It
// refuses while a QEMU still works there.
func (r *Registry) clear(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	pid, err := r.emulatorIn(dir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Domain, "cannot tell whether QEMU of an earlier run still works in %s", dir)
	}
	if pid != 0 {
		return fault.New(fault.Busy, fault.Domain, "QEMU (process %d) of an earlier run still works in %s; end that process first", pid, dir)
	}
	// The TPM emulator runs in the control group. Ended with the group, it would have no time to save its
	// state, so it is stopped first.
	return errors.Join(stopTPMs(ctx, &run{dir: dir}), r.Cgroups.Guest(filepath.Base(dir)).Clear(ctx), removeTree(dir))
}

// rehold pushes the releases of an adopted guest again, by its run record and in the order of a start.
func (r *Registry) rehold(run *run) {
	r.reholdClaims(run) // released last: only then no later daemon finds a record that names them
	r.holdUser(run)
	run.hold("run directory", run.removeDir)
	r.reholdLabels(run)
	r.Ledger.Restore(run.UUID, demand(run.def), r.need(run.def)) // the guest already has it: this cannot be refused
	run.hold("reservation", func(context.Context) error { r.Ledger.Release(run.UUID); return nil })
	for _, at := range run.Taken {
		r.holdDevice(run, at)
	}
	for _, n := range run.NICs {
		release, err := r.readoptNIC(run, n)
		if err != nil {
			run.log.Info("interface of an adopted guest is missing", "interface", n.IfName, "cause", err)
			continue
		}
		run.hold(n.what(), release)
	}
	r.reholdRest(run)
}
