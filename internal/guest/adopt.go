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
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Open makes the registry. It reads the stored definitions and adopts, all at once, the guests that an
// earlier daemon left running. A guest without an answering monitor delays no other guest: it is adopted
// and shown as stuck.
func Open(c machine.Config) (*machine.Registry, error) {
	r := newRegistry(c)
	var err error
	if r.Meter, err = hostnet.OpenMeter(); err != nil {
		return nil, err
	}
	for _, dir := range []string{c.RunDir, c.DataDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
		}
	}
	if err := r.MakeDirs(); err != nil {
		return nil, err
	}
	if err := load(r); err != nil {
		return nil, err
	}
	findSaved(r)
	if err := provision.SurveyUsers(r); err != nil {
		return nil, err
	}
	sweepSaved(r)
	launch.SweepPrepared(r)
	if err := savestate.SweepHalf(r); err != nil {
		return nil, err
	}
	if err := savestate.SettleHeaders(r); err != nil {
		return nil, err
	}
	if err := loadDues(r); err != nil {
		return nil, err
	}
	provision.LoadLabels(r)
	if err := adoptAll(r); err != nil {
		return nil, err
	}
	if err := recoverUndefinitions(r); err != nil {
		return nil, err
	}
	if err := r.Store.Settle(); err != nil {
		r.Log.Error("cannot mark the store as settled; the next daemon searches for lost guests again", "error", err)
	}
	provision.SweepLabels(r)
	sweepDropped(r)
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for _, g := range r.GuestsByUUID {
		run(r, g)
	}
	r.Loops.Go(func() { statistics.RunSampler(r.Life, r.Sampler) })
	r.Loops.Go(func() { launch.RunPool(r.Life, r.WarmPool, scope.Daemon("preparing QEMUs for starts")) })
	r.Loops.Go(func() {
		provision.RunSpaceWatch(r.Life, r.SpaceWatch, scope.Daemon("resuming a guest whose disk has room again"))
	})
	r.Loops.Go(func() { console.BoundLogs(r.Life, r) })
	return r, nil
}

// load reads the persistent definitions. A definition that cannot be read is logged and left in the store,
// and the other guests are still served.
func load(r *machine.Registry) error {
	return r.Store.Each(machine.Domains, func(uuid string, decode func(any) error) error {
		var rec machine.Record
		if err := decode(&rec); err != nil {
			r.Log.Error("cannot read a stored domain; record kept", "uuid", uuid, "error", err)
			return nil
		}
		def, err := domainxml.Parse(rec.XML, domainxml.Options{})
		if err != nil {
			r.Log.Error("cannot parse a stored domain; record kept", "domain", rec.Name, "uuid", uuid, "error", err)
			return nil
		}
		g := newGuest(r, rec.Name, uuid)
		g.Record, g.Inactive = rec, def
		g.State.Persistent, g.State.Policy = true, machine.Policy(def)
		g.Publish()
		r.GuestsByName[rec.Name], r.GuestsByUUID[uuid] = g, g
		return nil
	})
}

// sweepSaved removes incomplete managed save images, and images of guests that no longer have a record.
// Such images hold secrets, and a new guest of the same UUID must not find them. While the store may have
// lost records, it keeps images without a record.
func sweepSaved(r *machine.Registry) {
	names, err := filepath.Glob(filepath.Join(r.SaveDir(), "*.save*"))
	if err != nil {
		return // only a malformed pattern fails
	}
	for _, path := range names {
		uuid, rest, _ := strings.Cut(filepath.Base(path), ".")
		var kept any
		if rest == "save.partial" || rest == "save" && r.Store.Sound() && fault.Is(r.Store.Get(machine.Domains, uuid, &kept), fault.NotFound) {
			machine.RemoveFile(r.Log, path)
		}
	}
}

// sweepDropped removes the managed save images that were given up: the record of the guest names none, and
// no save is in progress. It runs before the loops start.
func sweepDropped(r *machine.Registry) {
	for _, g := range r.GuestsByUUID {
		writing := g.Instance != nil && g.Instance.Ops.HasClass(operation.Move) || g.Quarantine != ""
		if g.Record.ManagedSave || writing {
			continue
		}
		if _, err := os.Stat(savestate.ManagedSavePath(g)); err == nil {
			machine.RemoveFile(r.Log, savestate.ManagedSavePath(g))
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
	*machine.Registry
	reached  chan struct{}   // receives once for each monitor that answered
	patience context.Context // ends when the remaining monitors are no longer waited for
}

// adoptAll adopts the guest of every run directory, each in a goroutine. The loops do not run yet, so that
// an adoption may change its guest.
func adoptAll(r *machine.Registry) error {
	findOrphans(r)
	entries, err := os.ReadDir(r.RunDir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot look for running guests")
	}
	patience, lose := context.WithCancelCause(r.Life)
	defer lose(nil)
	a := &adopting{Registry: r, reached: make(chan struct{}, len(entries)), patience: patience}
	var all sync.WaitGroup
	for _, e := range entries {
		dir := filepath.Join(r.RunDir, e.Name())
		if !e.IsDir() || dir == launch.PreparedDir(r) {
			continue
		}
		all.Go(func() {
			if err := a.adopt(dir); err != nil {
				setAside(r, dir, err)
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
func findOrphans(r *machine.Registry) {
	for _, name := range r.Cgroups.Guests() {
		dir := r.GuestDir(name)
		if _, err := os.Lstat(dir); uuid.Validate(name) != nil || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		pid, unknown := provision.EmulatorIn(r, dir)
		if unknown == nil && (pid == 0 || launch.EndedWaiting(r, pid, name)) {
			continue
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			r.Log.Error("run directory of a running guest is missing; the guest may be started twice", "uuid", name, "error", err)
		}
	}
}

// adopt takes over one guest, or finishes an interrupted start or stop. An error says why the guest cannot
// be adopted.
func (r *adopting) adopt(dir string) error {
	rec, err := machine.ReadRecord(dir)
	if err != nil {
		return err
	}
	if rec == nil {
		pid, err := provision.EmulatorIn(r.Registry, dir)
		if err != nil {
			return err
		}
		if pid != 0 {
			return errors.New("its run record is missing") // the record is written before QEMU is launched
		}
		return machine.RemoveTree(dir) // the start had not written anything yet
	}
	if rec.User != nil && len(rec.Isolation) == 0 { // an older record names none, and these were set up
		rec.Isolation = []string{"user", "root", "capabilities"}
	}
	run := machine.NewInstance(*rec, dir, r.Kernel, r.Log.With("domain", rec.Name, "uuid", rec.UUID))
	if run.Definition, err = domainxml.Parse(rec.XML, domainxml.Options{Active: true}); err != nil {
		return fmt.Errorf("cannot parse its run record: %w", err)
	}
	process, err := findProcess(r.Registry, run)
	started := rec.State.Phase.Active()
	if started {
		r.HasStarted(rec.UUID)
	}
	if err == nil && process != nil && !started {
		run.Log.Warn("start interrupted by the end of its daemon; undoing it", "pid", process.PID)
		process, err = nil, machine.KillAndWait(process)
	}
	if err != nil {
		return err
	}
	dropHalfWritten(r.Registry, dir)
	records, err := operation.Files{Dir: dir}.Read()
	if err == nil {
		err = r.GiveOperations(run, records)
	}
	if err != nil {
		return err
	}
	rehold(r.Registry, run)
	run.Ops.Rehold()
	rec.State = run.State // open operations may have changed it
	run.DropNodes = run.Surplus
	if process == nil {
		bury(r.Registry, run, rec, started)
		return nil
	}
	r.takeUp(run, rec, process)
	return nil
}

// dropHalfWritten removes the incomplete instance record that a killed daemon left.
func dropHalfWritten(r *machine.Registry, dir string) {
	machine.RemoveFile(r.Log, filepath.Join(dir, machine.RecordFile)+atomicfile.Half)
}

// takeUp makes a running guest this daemon's own.
func (r *adopting) takeUp(run *machine.Instance, rec *machine.InstanceRecord, process *qemuprocess.Process) {
	run.Process = process
	run.Hold("process watch", func(context.Context) error { process.Release(); return nil })
	if err := launch.Seal(run); err != nil { // an older daemon may not have sealed it
		run.Log.Error("cannot seal the run directory; QEMU may still write to it", "error", err)
	}
	g := adopted(r.Registry, rec)
	run.Guest = g
	g.Instance, g.State, g.Since = run, rec.State, rec.Since
	findRunning(g, rec, run.Definition)
	if g.Inactive == nil && rec.State.Persistent { // a later daemon may have the definition again
		run.KeepTPM, run.MadeNVRAM = true, false
	}
	g.State.Persistent = g.Inactive != nil // the store decides
	savestate.SettleManaged(g, run)
	g.Live.Store(run)
	if len(run.NoRoom) > 0 && !r.StayFull {
		provision.WaitForSpace(r.SpaceWatch, g, run.NoRoom)
	}
	r.SetID(g, rec.ID)
	r.reattach(g, run)
	launch.WatchTPM(g, run)
	endAgain(g)
	g.Publish()
}

// adopted returns the guest of an instance record. It makes a guest if none has that UUID, as for a transient
// one.
func adopted(r *machine.Registry, rec *machine.InstanceRecord) *machine.Guest {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	g := r.GuestsByUUID[rec.UUID]
	if g == nil {
		g = newGuest(r, rec.Name, rec.UUID)
		g.Record.Fences = rec.Fences
		r.GuestsByUUID[rec.UUID] = g
		if other := r.GuestsByName[rec.Name]; other == nil {
			r.GuestsByName[rec.Name] = g
		} else { // after the store was restored from a backup, for example
			g.Log.Error("running guest has the name of another guest; find it by UUID", "other", other.Identity)
		}
	}
	return g
}

// findProcess finds the process of an instance record. It returns nil if the process has ended.
func findProcess(r *machine.Registry, run *machine.Instance) (*qemuprocess.Process, error) {
	pid, start := run.PID, run.StartTime
	if pid == 0 { // QEMU may have been launched before its PID was recorded
		var err error
		if pid, err = provision.EmulatorIn(r, run.Dir); pid == 0 || err != nil {
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
		run.Log.Info("guest ended while no daemon ran", "cause", err)
		return nil, nil
	}
	return process, err
}

// bury settles a guest that ended while no daemon ran. It releases what the guest held and publishes the
// guest's final state.
func bury(r *machine.Registry, run *machine.Instance, rec *machine.InstanceRecord, started bool) {
	ctx, stop := context.WithTimeout(r.Life, machine.ReleaseLimit)
	defer stop()
	r.Mu.RLock()
	g := r.GuestsByUUID[rec.UUID]
	r.Mu.RUnlock()
	run.Guest, run.Alone = g, true
	if g != nil && started && rec.Revives(rec.State) {
		noteCrash(r, rec.UUID) // autostart starts it again
	}
	if g == nil && started && rec.State.Persistent { // no other record has its definition any more
		g = lostWith(r, rec, run.Definition)
	}
	if g != nil && started {
		run.Guest = g
		savestate.SettleManaged(g, run) // it may need resources that are released below
	}
	_ = run.ReleaseAll(ctx) // each failure has been logged
	r.GiveBackLater(run)
	if !started {
		sc := scope.Daemon("a start that was cut off")
		if g != nil {
			sc = sc.WithNotedFolders(g.View().Fences)
		}
		launch.DropHalfNVRAM(ctx, sc, run)
	}
	switch {
	case g != nil || !started:
	case rec.State.Persistent: // a later daemon may have the definition again
		recordLeftover(r, rec.UUID, rec.Name, run.Log)
	case r.Store.Sound(): // otherwise its definition may be lost
		launch.DropSecretsOf(r, rec, run.Definition, run.Log)
	}
	if g == nil || !started {
		return
	}
	g.State.Phase, g.State.Reason = domain.ShutOff, cmp.Or(rec.State.EndFor, domain.ReasonUnknown)
	g.Publish()
}

// rehold pushes the releases of an adopted guest again, by its instance record and in the order of a start.
func rehold(r *machine.Registry, run *machine.Instance) {
	hotplug.ReholdClaims(r, run) // released last: only then no later daemon finds a record that names them
	provision.HoldUser(r, run)
	run.Hold("run directory", run.RemoveDir)
	provision.ReholdLabels(r, run)
	r.Ledger.Restore(run.UUID, provision.Demand(run.Definition), statistics.Need(r, run.Definition)) // the guest already has it: this cannot be refused
	run.Hold("reservation", func(context.Context) error { r.Ledger.Release(run.UUID); return nil })
	for _, at := range run.Taken {
		hotplug.HoldDevice(r, run, at)
	}
	for _, n := range run.NICs {
		release, err := provision.ReadoptByAlias(r, run, n)
		if err != nil {
			run.Log.Info("interface of an adopted guest is missing", "interface", n.IfName, "cause", err)
			continue
		}
		run.Hold(n.What(), release)
	}
	provision.ReholdRest(r, run)
}
