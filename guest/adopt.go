package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lifecycle"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// Open makes the registry: it reads the definitions and adopts the guests that
// an earlier daemon left running, all at once. A guest whose monitor does not
// answer delays nobody: it is adopted and shown as stuck.
func Open(c Config) (*Registry, error) {
	r := newRegistry(c)
	for _, dir := range []string{c.RunDir, c.DataDir, r.logDir(), r.saveDir(), r.nvramDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
		}
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	if err := r.adoptAll(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.byUUID {
		r.run(g)
	}
	return r, nil
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

// adoptAll looks into every run directory and adopts what it finds. The loops
// do not run yet, so that each adoption may write its guest.
func (r *Registry) adoptAll() error {
	entries, err := os.ReadDir(r.RunDir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot look for running guests")
	}
	var adopting sync.WaitGroup
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(r.RunDir, e.Name())
		rec, err := readRunRecord(dir)
		switch {
		case err != nil:
			r.log.Error("cannot read a run record; its guest, if it runs, is left alone", "dir", dir, "error", err)
		case rec == nil:
			_ = os.RemoveAll(dir) // a start that had not yet written anything
		default:
			adopting.Go(func() { r.adopt(rec, dir) })
		}
	}
	adopting.Wait()
	return nil
}

// adopt takes over one guest, or finishes what a start or an end under way left.
func (r *Registry) adopt(rec *runRecord, dir string) {
	log := r.log.With("domain", rec.Name, "uuid", rec.UUID)
	def, err := domainxml.Parse(rec.XML, domainxml.Options{Active: true})
	if err != nil {
		log.Error("cannot understand the record of a running guest; it is left alone", "error", err)
		return
	}
	run := newRun(*rec, dir, r.Kernel, log)
	run.def = def
	r.rehold(run)
	process, err := r.findProcess(run)
	if err != nil {
		log.Info("a guest ended while no daemon looked", "cause", err)
	}
	started := rec.State.Phase.Active()
	if process != nil && !started {
		log.Warn("taking back a start that its daemon did not live to complete", "pid", process.PID)
		_ = process.Kill()
		<-process.Exited()
	}
	if process == nil || !started {
		r.bury(run, rec)
		return
	}
	run.process = process
	run.hold("process watch", func(context.Context) error { process.Release(); return nil })
	g := r.adopted(rec)
	g.run, g.state, g.since = run, rec.State, rec.Since
	g.live.Store(run)
	r.setID(g, rec.ID)
	g.reattach(run)
	g.publish()
}

// adopted gives the guest of a run record, making it when it is transient.
func (r *Registry) adopted(rec *runRecord) *Guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.byUUID[rec.UUID]
	if g == nil {
		g = newGuest(r, rec.Name, rec.UUID)
		r.byName[rec.Name], r.byUUID[rec.UUID] = g, g
	}
	return g
}

// findProcess finds the process of a run record again. One that was launched
// but not yet recorded answers on its monitor, and is told to quit.
func (r *Registry) findProcess(run *run) (*qemu.Process, error) {
	if run.PID != 0 {
		return qemu.Adopt(run.PID, run.StartTime)
	}
	ctx, stop := context.WithTimeout(r.life, reattachPatience)
	defer stop()
	s, err := qmp.Dial(ctx, run.monitorPath(), run.log)
	if err != nil {
		return nil, errors.New("it had not been launched")
	}
	defer s.Close()
	_ = s.Execute(ctx, "quit", nil, nil) // its end is what was asked for
	return nil, errors.New("its start was not complete")
}

// bury settles a guest that ended while no daemon looked: what it held is given
// back, and it is shown as what it became.
func (r *Registry) bury(run *run, rec *runRecord) {
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	_ = run.releaseAll(ctx) // each failure has been logged
	if g := r.byUUIDNoWait(rec.UUID); g != nil {
		g.state.Phase = domain.ShutOff
		g.state.Reason = domain.ReasonUnknown
		if rec.State.Phase == domain.ShuttingDown {
			g.state.Reason = domain.ReasonShutdown
		}
		g.publish()
	}
}

func (r *Registry) byUUIDNoWait(uuid string) *Guest {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byUUID[uuid]
}

// rehold rebuilds the releases of an adopted guest from its record, in the order
// in which a start acquires them.
func (r *Registry) rehold(run *run) {
	run.hold("run directory", func(context.Context) error { return os.RemoveAll(run.dir) })
	r.Ledger.Restore(run.UUID, demand(run.def)) // it has it already: nothing can be refused
	run.hold("reservation", func(context.Context) error { r.Ledger.Release(run.UUID); return nil })
	for _, n := range run.NICs {
		release, err := r.readoptNIC(run.def, n)
		if err != nil {
			run.log.Info("an interface of an adopted guest is not there", "interface", n.IfName, "cause", err)
			continue
		}
		run.hold("interface "+n.IfName, release)
	}
	r.reholdRest(run)
}

// reattachPatience bounds the first attempt to reach an adopted guest's monitor;
// a healthy QEMU answers within a millisecond.
const reattachPatience = 500 * time.Millisecond

// reattach connects an adopted guest to its monitor and corrects its state by
// what QEMU says. It runs before the loop does.
func (g *Guest) reattach(r *run) {
	ctx, stop := context.WithTimeout(g.reg.life, reattachPatience)
	defer stop()
	s, err := qmp.Dial(ctx, r.monitorPath(), g.log)
	if err != nil {
		g.loseMonitor()
		return
	}
	found, err := inquire(ctx, s)
	if err != nil {
		s.Close()
		g.loseMonitor()
		return
	}
	r.connect(s)
	if r.Saving != nil && g.state.EndFor == "" {
		r.Saving.giveUp(ctx, s, g.log)
		r.Saving = nil
		if found, err = inquire(ctx, s); err != nil {
			g.log.Warn("cannot ask an adopted guest for its state", "error", err)
			return
		}
	}
	g.meet(found)
	if g.state.EndFor != "" { // its end had begun
		r.end(endNow)
	}
}

// inquiry is what a daemon asks QEMU when it has missed events.
type inquiry struct {
	status   string
	channels map[string]bool // virtio-serial ports by id: open in the guest
	devices  map[string]bool // aliases that QEMU still has
	balloon  uint64
}

func inquire(ctx context.Context, s *qmp.Session) (*inquiry, error) {
	var status struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &status); err != nil {
		return nil, err
	}
	found := &inquiry{status: status.Status}
	var chardevs []struct {
		Label        string
		FrontendOpen bool `json:"frontend-open"`
	}
	if err := s.Execute(ctx, "query-chardev", nil, &chardevs); err != nil {
		return nil, err
	}
	found.channels = map[string]bool{}
	for _, c := range chardevs {
		found.channels[c.Label] = c.FrontendOpen
	}
	var objects []struct{ Name string }
	if err := s.Execute(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &objects); err != nil {
		return nil, err
	}
	found.devices = map[string]bool{}
	for _, o := range objects {
		found.devices[o.Name] = true
	}
	var balloon struct{ Actual uint64 }
	if s.Execute(ctx, "query-balloon", nil, &balloon) == nil { // a guest without one refuses
		found.balloon = balloon.Actual
	}
	return found, nil
}

// meet corrects the guest's state by what QEMU said. It runs in the loop, or
// before it.
func (g *Guest) meet(found *inquiry) {
	g.setActive(func(d *domain.Definition) {
		for _, c := range d.Devices.Channels {
			if c.Name != "" {
				c.State = "disconnected"
				if found.channels["char"+c.Alias] {
					c.State = "connected"
				}
			}
		}
		if found.balloon > 0 {
			d.CurrentMemory = found.balloon
		}
		dropMissing(d, found.devices)
	})
	phase, reason := activePhase(found.status)
	switch {
	case phase == domain.ShuttingDown && g.state.Phase != domain.ShuttingDown:
		g.advance(lifecycle.PoweredDown{}) // it happened while nobody listened
	case phase == domain.ShuttingDown:
		g.run.end(endGracefully)
	case phase != g.state.Phase:
		g.advance(lifecycle.Found{Phase: phase, Reason: reason})
	}
}

// dropMissing takes devices out that the guest has let go while nobody listened:
// those that can be unplugged and are no longer there.
func dropMissing(d *domain.Definition, present map[string]bool) {
	for _, dev := range d.Devices.All() {
		info := dev.Common()
		switch dev.(type) {
		case *device.Disk, *device.NIC, *device.HostDevice:
			if info.Alias != "" && !present[info.Alias] {
				d.Devices.Remove(dev)
			}
		}
	}
}

// Reconnection: soon at first, then patiently.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// loseMonitor notes that the monitor is gone while the process lives, and keeps
// trying to reach it, for as long as the process lives. A lost monitor is not a
// dead guest.
func (g *Guest) loseMonitor() {
	r := g.run
	r.lost.Store(time.Now().UnixNano())
	g.publish()
	go func() {
		for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
			pause := time.NewTimer(wait)
			select {
			case <-pause.C:
			case <-r.process.Exited():
				return
			case <-g.ended:
				return
			}
			if s := r.tryDial(g.reg.life); s != nil {
				r.back <- s // its one place is free: one loss, one return
				return
			}
		}
	}()
}

// tryDial tries once to reach the monitor.
func (r *run) tryDial(ctx context.Context) *qmp.Session {
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	s, err := qmp.Dial(ctx, r.monitorPath(), r.log)
	if err != nil {
		r.log.Debug("the monitor cannot be reached yet", "error", err)
		return nil
	}
	return s
}

// handleReconnect takes a new session in and asks what was missed.
func (g *Guest) handleReconnect(s *qmp.Session) {
	if g.run == nil {
		s.Close()
		return
	}
	g.run.connect(s)
	g.log.Info("the monitor is back")
	g.resync()
}

// resync asks QEMU, beside the loop, for what events would have told.
func (g *Guest) resync() {
	r, s := g.run, g.run.session.Load()
	t := &task{ctx: g.reg.life, kind: domain.JobQuery, limit: modifyLimit, reply: make(chan error, 1), until: time.Now().Add(time.Hour)}
	t.plan = func() (work, error) {
		return func(ctx context.Context) (settle, error) {
			found, err := inquire(ctx, s)
			if err != nil {
				return nil, fmt.Errorf("cannot ask QEMU what was missed: %w", err)
			}
			return func() error {
				if g.run == r {
					g.meet(found)
				}
				return nil
			}, nil
		}, nil
	}
	g.accept(t)
}
