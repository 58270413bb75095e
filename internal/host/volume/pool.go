package volume

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Pool is one pool. Its verbs run one at a time; its view and volumes can be read at any time.
type Pool struct {
	pools      *Pools
	name, uuid string
	lane       *lane
	// turn holds one token; the holder may start, stop, define and so on.
	turn chan struct{}

	// adopting says that the pool is being reactivated after Open.
	adopting atomic.Bool

	claimed string // see Pools.reservePlace; guarded by the lock of pools

	// published is replaced as a whole, with mu held.
	published atomic.Pointer[View]

	mu       sync.Mutex  // guards the fields below and is never held during slow work
	saved    *definition // nil for a transient pool
	savedDoc string      // as submitted
	used     *definition // the definition that an active pool was started with; nil if inactive
	usedDoc  string
	building bool
	stopping bool // it is being stopped, and no new work on its volumes begins
	// autostart is only for persistent pools.
	autostart bool
	due       bool // to be started in this boot
	reading
	taken    time.Time
	stale    string
	declared map[string]declaration // by volume
	home     uint64                 // the inode of the folder where those were last seen; 0: unknown
	jobs     map[string]*job        // by volume
	gone     bool
}

// Name gives the pool's name, which never changes.
func (p *Pool) Name() string { return p.name }

// UUID gives the pool's UUID, which never changes.
func (p *Pool) UUID() string { return p.uuid }

// takeTurn waits for the pool's turn and checks that the pool still exists.
func (p *Pool) takeTurn(ctx context.Context) error {
	limit := time.NewTimer(answerTime)
	defer limit.Stop()
	select {
	case <-p.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
		return fault.New(fault.Busy, fault.Pool, "pool %q is still busy with an earlier request", p.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		p.releaseTurn()
		return fault.New(fault.NotFound, fault.Pool, "no storage pool with uuid %s", p.uuid)
	}
	return nil
}

func (p *Pool) releaseTurn() { p.turn <- struct{}{} }

// publish makes the view from the present state, with mu held.
func (p *Pool) publish() {
	d := p.used
	if d == nil {
		d = p.saved
	}
	if d == nil {
		gone := *p.published.Load() // a transient pool that was stopped
		gone.State, gone.Volumes, gone.Stale = Inactive, nil, ""
		p.published.Store(&gone)
		return
	}
	v := &View{
		Name: p.name, UUID: p.uuid, Type: d.kind, Target: d.target, place: d.place(),
		Persistent: p.saved != nil, Autostart: p.autostart, Stale: p.stale,
	}
	if p.saved != nil {
		v.next = p.saved.place()
	}
	switch {
	case p.used != nil:
		v.State = Running
		v.Capacity, v.Allocation, v.Available = p.space.capacity, p.space.allocation, p.space.available
		v.Volumes, v.Taken = p.volumes, p.taken
		if p.stale != "" && !p.taken.IsZero() {
			v.State = Inaccessible
		}
	case p.building:
		v.State = Building
	}
	p.published.Store(v)
}

// active returns the definition that an active pool runs with.
func (p *Pool) active() (*definition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil {
		return nil, p.inactive()
	}
	return p.used, nil
}

// idle returns the saved definition of an inactive pool.
func (p *Pool) idle(doing string) (*definition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used != nil {
		return nil, fault.New(fault.WrongState, fault.Pool, "cannot %s pool %q while it is active; stop it first", doing, p.name)
	}
	return p.saved, nil
}

func (p *Pool) emit(payload event.Payload) {
	p.pools.events.Append(event.Source{Name: p.name, UUID: p.uuid, ID: -1}, payload)
}

// XML returns the document of the pool as it runs. With inactive, or if the pool does not run, it is the saved
// definition.
func (p *Pool) XML(inactive bool) (string, error) {
	p.mu.Lock()
	d, s := p.used, p.space
	if d == nil || inactive && p.saved != nil {
		d, s = p.saved, space{}
	} else {
		shown := *d
		if p.perms != noPermissions && !p.taken.IsZero() {
			shown.perms = p.perms
		}
		d = &shown
	}
	p.mu.Unlock()
	if d == nil {
		return "", fault.New(fault.NotFound, fault.Pool, "no storage pool with uuid %s", p.uuid)
	}
	return xmltree.Format(d.document(s))
}

// Start starts an inactive pool, and makes its storage first if build says so.
func (p *Pool) Start(ctx context.Context, sc scope.Scope, build Build) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	p.mu.Lock()
	d, doc := p.saved, p.savedDoc
	p.mu.Unlock()
	return p.start(ctx, d, doc, build)
}

// start starts the pool with a definition. The caller has its turn.
func (p *Pool) start(ctx context.Context, d *definition, doc string, build Build) (err error) {
	if _, err := p.idle("start"); err != nil {
		return fault.New(fault.WrongState, fault.Pool, "pool %q is already active", p.name)
	}
	if build != NoBuild {
		if err := p.build(ctx, d, build); err != nil {
			return err
		}
	}
	fresh, err := p.attach(ctx, d)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && fresh {
			p.detachBestEffort(d)
		}
	}()
	failpoint.Reach("pool.attached")
	r, err := ask(ctx, p.lane, answerTime, func() (reading, error) { return p.sweepAndRead(d) }, nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	due := p.due
	p.used, p.usedDoc, p.due = d, doc, false
	p.applyReading(r)
	p.mu.Unlock()
	if err = p.save(); err != nil {
		p.mu.Lock()
		p.used, p.usedDoc, p.due = nil, "", due
		p.publish()
		p.mu.Unlock()
		return err
	}
	p.forgetMissing()
	p.emit(event.PoolChange{Change: event.Started})
	return nil
}

// sweepAndRead reads the pool, in its lane, after removing the incomplete files of a killed daemon.
func (p *Pool) sweepAndRead(d *definition) (reading, error) {
	p.mu.Lock()
	declared, home := maps.Clone(p.declared), p.home
	p.mu.Unlock()
	if d.blockBackend() == nil && isHome(d.target, home) {
		p.sweep(d.target, declared)
	}
	return p.read(d, declared)
}

// isHome says whether a pool's folder may be the one where its declared volumes were last seen.
func isHome(target string, home uint64) bool {
	dir, err := openDir(target)
	if err != nil {
		return false
	}
	defer dir.Close()
	var st unix.Stat_t
	return home == 0 || unix.Fstat(int(dir.Fd()), &st) == nil && st.Ino == home
}

// applyReading takes over a reading, with mu held. Volumes with a job stay as they were: their headers may be half
// written.
func (p *Pool) applyReading(r reading) {
	for name, j := range p.jobs {
		if i, ok := find(p.volumes, name); ok && j.exclusive {
			r.volumes = with(r.volumes, p.volumes[i])
		}
	}
	p.reading, p.taken, p.stale = r, time.Now(), ""
	if p.home == 0 || len(p.declared) == 0 || slices.ContainsFunc(r.volumes, func(v *Volume) bool {
		d, known := p.declared[v.Name]
		return known && d.Inode == v.inode
	}) {
		p.home = r.folder
	}
	p.publish()
}

// Refresh reads the pool's volumes again.
func (p *Pool) Refresh(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	d, err := p.active()
	if err != nil {
		return err
	}
	err = runInLane(ctx, p.lane, func() error {
		p.mu.Lock()
		declared := maps.Clone(p.declared)
		p.mu.Unlock()
		r, err := p.read(d, declared)
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.used != d: // stopped in the meantime
		case err != nil:
			p.stale = err.Error()
			p.publish()
		default:
			p.applyReading(r)
		}
		return err
	})
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.About(err), "cannot refresh pool %q", p.name)
	}
	if len(p.missing()) > 0 && p.takeTurn(ctx) == nil { // otherwise the next refresh does it
		p.forgetMissing()
		p.releaseTurn()
	}
	p.emit(event.PoolRefresh{})
	return nil
}

// Fresh updates the sizes of a pool if its file system answers at once, and returns the view.
func (p *Pool) Fresh(ctx context.Context) View {
	d, err := p.active()
	if err != nil || p.lane.stuck() > patience {
		return p.View()
	}
	if err := tryInLane(ctx, p.lane, func() error { return p.refreshSizes(d) }); err != nil {
		p.pools.log.Debug("pool not refreshed", "pool", p.name, "error", err)
	}
	return p.View()
}

// Stop deactivates a pool; a transient one is removed. Data stay.
func (p *Pool) Stop(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	d, err := p.active()
	if err != nil {
		return err
	}
	if err := p.save(); err != nil { // otherwise the store would still say that it is active
		return err
	}
	if err := p.blockNewJobs(); err != nil {
		return err
	}
	err = p.detach(ctx, d)
	if err == nil {
		failpoint.Reach("pool.detached")
		err = p.saveStopped()
	}
	if err != nil {
		// LVM has deactivated all volumes that are not open.
		if _, again := p.attach(context.WithoutCancel(ctx), d); again != nil {
			p.pools.log.Warn("pool not stopped; some of its volumes are missing", "pool", p.name, "error", again)
		}
		p.mu.Lock()
		p.stopping = false
		p.mu.Unlock()
		return err
	}
	p.mu.Lock()
	p.used, p.usedDoc, p.reading, p.taken, p.stale, p.stopping = nil, "", reading{}, time.Time{}, "", false
	transient := p.saved == nil
	p.publish()
	p.mu.Unlock()
	if transient {
		p.unregister()
	}
	p.emit(event.PoolChange{Change: event.Stopped})
	return nil
}

// Undefine removes an inactive pool. Data stay.
func (p *Pool) Undefine(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	if _, err := p.idle("undefine"); err != nil {
		return err
	}
	if err := p.deleteRecords(); err != nil {
		return err
	}
	p.emit(event.PoolChange{Change: event.Undefined})
	return nil
}

// SetAutostart sets whether the pool is started when the host boots.
func (p *Pool) SetAutostart(ctx context.Context, sc scope.Scope, on bool) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	p.mu.Lock()
	if p.saved == nil {
		p.mu.Unlock()
		return fault.New(fault.Invalid, fault.Pool, "pool %q is transient and cannot have autostart; define it first", p.name)
	}
	before := p.autostart
	p.autostart = on
	p.publish()
	p.mu.Unlock()
	if err := p.save(); err != nil {
		p.mu.Lock()
		p.autostart = before
		p.publish()
		p.mu.Unlock()
		return err
	}
	return nil
}
