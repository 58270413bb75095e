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
	worker     *worker
	// turn holds one token; the holder may start, stop, define and so on.
	turn chan struct{}

	// adopting says that the pool is being reactivated after Open.
	adopting atomic.Bool

	reservedStorageID string // see Pools.reserveStorage; guarded by the lock of pools

	// published is replaced as a whole, with mu held.
	published atomic.Pointer[View]

	mu        sync.Mutex  // guards the fields below and is never held during slow work
	saved     *definition // nil for a transient pool
	savedDoc  string      // as submitted
	active    *definition // the definition that an active pool was started with; nil if inactive
	activeDoc string
	building  bool
	stopping  bool // it is being stopped, and no new work on its volumes begins
	// autostart is only for persistent pools.
	autostart    bool
	autostartDue bool // to be started in this boot
	poolContents
	readAt         time.Time
	stale          string
	declared       map[string]declaration // by volume
	declaredFolder uint64                 // the inode of the folder where those were last seen; 0: unknown
	jobs           map[string]*job        // by volume
	gone           bool
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
	d := p.active
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
		Name: p.name, UUID: p.uuid, Type: d.kind, Target: d.target, storageID: d.storageID(),
		Persistent: p.saved != nil, Autostart: p.autostart, Stale: p.stale,
	}
	if p.saved != nil {
		v.nextStorageID = p.saved.storageID()
	}
	switch {
	case p.active != nil:
		v.State = Running
		v.Capacity, v.Allocation, v.Available = p.space.capacity, p.space.allocation, p.space.available
		v.Volumes, v.ReadAt = p.volumes, p.readAt
		if p.stale != "" && !p.readAt.IsZero() {
			v.State = Inaccessible
		}
	case p.building:
		v.State = Building
	}
	p.published.Store(v)
}

// activeDefinition returns the definition that an active pool runs with.
func (p *Pool) activeDefinition() (*definition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == nil {
		return nil, p.inactiveError()
	}
	return p.active, nil
}

// inactiveDefinition returns the saved definition of an inactive pool.
func (p *Pool) inactiveDefinition(doing string) (*definition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active != nil {
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
	d, s := p.active, p.space
	if d == nil || inactive && p.saved != nil {
		d, s = p.saved, space{}
	} else {
		shown := *d
		if p.perms != noPermissions && !p.readAt.IsZero() {
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
	if _, err := p.inactiveDefinition("start"); err != nil {
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
	r, err := runWithin(ctx, p.worker, answerTime, func() (poolContents, error) { return p.resolveIncompleteAndRead(d) }, nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	due := p.autostartDue
	p.active, p.activeDoc, p.autostartDue = d, doc, false
	p.applyContents(r)
	p.mu.Unlock()
	if err = p.saveRecord(); err != nil {
		p.mu.Lock()
		p.active, p.activeDoc, p.autostartDue = nil, "", due
		p.publish()
		p.mu.Unlock()
		return err
	}
	p.undeclareMissing()
	p.emit(event.PoolChange{Change: event.Started})
	return nil
}

// resolveIncompleteAndRead reads the pool, in its worker, after removing the incomplete files of a killed daemon.
func (p *Pool) resolveIncompleteAndRead(d *definition) (poolContents, error) {
	p.mu.Lock()
	declared, home := maps.Clone(p.declared), p.declaredFolder
	p.mu.Unlock()
	if d.blockBackend() == nil && isDeclaredFolder(d.target, home) {
		p.resolveIncomplete(d.target, declared)
	}
	return p.read(d, declared)
}

// isDeclaredFolder says whether a pool's folder may be the one where its declared volumes were last seen.
func isDeclaredFolder(target string, home uint64) bool {
	dir, err := openDir(target)
	if err != nil {
		return false
	}
	defer dir.Close()
	var st unix.Stat_t
	return home == 0 || unix.Fstat(int(dir.Fd()), &st) == nil && st.Ino == home
}

// applyContents takes over the result of a reading, with mu held. Volumes with a job stay as they were: their
// headers may be half written.
func (p *Pool) applyContents(r poolContents) {
	for name, j := range p.jobs {
		if i, ok := indexOf(p.volumes, name); ok && j.exclusive {
			r.volumes = with(r.volumes, p.volumes[i])
		}
	}
	p.poolContents, p.readAt, p.stale = r, time.Now(), ""
	if p.declaredFolder == 0 || len(p.declared) == 0 || slices.ContainsFunc(r.volumes, func(v *Volume) bool {
		d, known := p.declared[v.Name]
		return known && d.Inode == v.inode
	}) {
		p.declaredFolder = r.folder
	}
	p.publish()
}

// Refresh reads the pool's volumes again.
func (p *Pool) Refresh(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	d, err := p.activeDefinition()
	if err != nil {
		return err
	}
	err = runInWorker(ctx, p.worker, func() error {
		p.mu.Lock()
		declared := maps.Clone(p.declared)
		p.mu.Unlock()
		r, err := p.read(d, declared)
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.active != d: // stopped in the meantime
		case err != nil:
			p.stale = err.Error()
			p.publish()
		default:
			p.applyContents(r)
		}
		return err
	})
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.About(err), "cannot refresh pool %q", p.name)
	}
	if len(p.missingVolumes()) > 0 && p.takeTurn(ctx) == nil { // otherwise the next refresh does it
		p.undeclareMissing()
		p.releaseTurn()
	}
	p.emit(event.PoolRefresh{})
	return nil
}

// Fresh updates the sizes of a pool if its file system answers at once, and returns the view.
func (p *Pool) Fresh(ctx context.Context) View {
	d, err := p.activeDefinition()
	if err != nil || p.worker.stuck() > staleAfter {
		return p.View()
	}
	if err := tryInWorker(ctx, p.worker, func() error { return p.refreshSizes(d) }); err != nil {
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
	d, err := p.activeDefinition()
	if err != nil {
		return err
	}
	if err := p.saveRecord(); err != nil { // otherwise the store would still say that it is active
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
	p.active, p.activeDoc, p.poolContents, p.readAt, p.stale, p.stopping = nil, "", poolContents{}, time.Time{}, "", false
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
	if _, err := p.inactiveDefinition("undefine"); err != nil {
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
	if err := p.saveRecord(); err != nil {
		p.mu.Lock()
		p.autostart = before
		p.publish()
		p.mu.Unlock()
		return err
	}
	return nil
}
