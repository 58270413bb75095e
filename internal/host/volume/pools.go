package volume

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Options say where pools keep their records and report their changes.
type Options struct {
	Store  *store.Store
	Events *event.Log
	Log    *slog.Logger
	// Secrets decrypt encrypted volumes; nil: none can be made.
	Secrets *secret.Secrets
	// Boot identifies this boot of the host (/proc/sys/kernel/random/boot_id). Active pools stay active while
	// it is the same. After a boot, pools with autostart are started.
	Boot string
	// Isolation is the sandbox of qemu-img; nil: it runs without one.
	Isolation *sandbox.Isolation
}

// Pools are all pools of a daemon.
type Pools struct {
	store   *store.Store
	events  *event.Log
	log     *slog.Logger
	boot    string
	secrets *secret.Secrets
	images  *image.Tool   // nil where there is no qemu-img
	unlock  time.Duration // of encrypted volumes; 0: QEMU's default

	// life ends with Close; jobs and adoptions run below it.
	life    context.Context
	end     context.CancelCauseFunc
	work    sync.WaitGroup
	adopted sync.WaitGroup

	mu     sync.Mutex // guards the maps and is never held during slow work
	byName map[string]*Pool
	byUUID map[string]*Pool
}

var errStopping = errors.New("the daemon is stopping")

// Open reads the records of all pools and starts to reactivate the active ones, in the background and in
// parallel. It does not wait for them; Settle does.
func Open(o Options) (*Pools, error) {
	images, err := image.FindTool(o.Isolation, o.Log)
	if err != nil {
		o.Log.Warn("only raw volumes can be made", "error", err)
	}
	ps := &Pools{
		store: o.Store, events: o.Events, log: o.Log, boot: o.Boot, images: images, secrets: o.Secrets,
		byName: map[string]*Pool{}, byUUID: map[string]*Pool{},
	}
	ps.life, ps.end = context.WithCancelCause(context.Background())
	declared, err := ps.loadDeclarations()
	if err != nil {
		return nil, err
	}
	records, err := ps.loadRecords()
	if err != nil {
		return nil, err
	}
	for id, r := range records {
		p, err := ps.restore(id, r, declared[id])
		if err != nil {
			// The record stays in the store for a lodged that can read it.
			o.Log.Error("cannot restore pool", "uuid", id, "error", err)
			continue
		}
		if p != nil {
			ps.adopt(p, r)
		} else {
			ps.forgetDeclared(id, declared[id])
		}
	}
	for id, volumes := range declared {
		if ps.isForgotten(id) {
			ps.forgetDeclared(id, volumes)
		}
	}
	return ps, nil
}

// isForgotten says whether no pool has that UUID any more. Its record may be one that this daemon cannot read,
// or that the store has lost.
func (ps *Pools) isForgotten(id string) bool {
	var kept any
	return ps.store.Complete() && fault.Is(ps.store.Get(poolKind, id, &kept), fault.NotFound)
}

// Settle waits until every active pool has been read once, has failed, or does not answer: it stops waiting
// for file systems that are silent for silentTime.
func (ps *Pools) Settle(ctx context.Context) error {
	tick := time.NewTicker(settleTick)
	defer tick.Stop()
	for {
		silent, reading := ps.adopting()
		if reading == 0 {
			if silent > 0 {
				return fault.New(fault.Timeout, fault.Pool, "the file systems of %d pools do not answer", silent)
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Bounds of the wait for pools.
const (
	settleTick = 5 * time.Millisecond
	silentTime = 200 * time.Millisecond
)

// adopting counts the pools that are being reactivated: those with file systems that do not answer, and the
// others.
func (ps *Pools) adopting() (silent, reading int) {
	for _, p := range ps.List() {
		switch {
		case !p.adopting.Load():
		case p.worker.stuck() > silentTime:
			silent++
		default:
			reading++
		}
	}
	return silent, reading
}

// closeTime is how long Close waits for work that is stuck in a file system.
const closeTime = 5 * time.Second

// Close ends all jobs. Pools stay mounted and are active again at the next Open.
func (ps *Pools) Close() {
	ps.end(errStopping)
	ended := make(chan struct{})
	go func() { // ends with the work, or with the process
		ps.work.Wait()
		ps.adopted.Wait()
		for _, p := range ps.List() {
			p.worker.stop()
			<-p.worker.done
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeTime):
		ps.log.Warn("storage work left behind: its file system does not answer")
	}
}

// List returns all pools by name.
func (ps *Pools) List() []*Pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := make([]*Pool, 0, len(ps.byUUID))
	for _, p := range ps.byUUID {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Pool) int { return strings.Compare(a.name, b.name) })
	return out
}

// ByName finds a pool.
func (ps *Pools) ByName(name string) (*Pool, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byName[name]; p != nil {
		return p, nil
	}
	return nil, fault.New(fault.NotFound, fault.Pool, "no storage pool with name %q", name)
}

// ByUUID finds a pool by its UUID in lower case.
func (ps *Pools) ByUUID(uuid string) (*Pool, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byUUID[uuid]; p != nil {
		return p, nil
	}
	return nil, fault.New(fault.NotFound, fault.Pool, "no storage pool with uuid %s", uuid)
}

// ByTarget finds the active pool with its volumes in a directory.
func (ps *Pools) ByTarget(path string) (*Pool, error) {
	clean, err := cleanPath(path)
	for _, p := range ps.List() {
		if v := p.View(); err == nil && v.Target == clean && v.Active() {
			return p, nil
		}
	}
	return nil, fault.New(fault.NotFound, fault.Pool, "no active storage pool with target %q", path)
}

// ByPath finds a volume of an active pool by its path, which is also its key.
func (ps *Pools) ByPath(path string) (*Pool, *Volume, error) {
	clean, err := cleanPath(path)
	if err == nil {
		dir, name := filepath.Dir(clean), filepath.Base(clean)
		for _, p := range ps.List() {
			view := p.View()
			if !view.Active() || view.Target != dir {
				continue
			}
			if i, ok := indexOf(view.Volumes, name); ok {
				return p, view.Volumes[i], nil
			}
		}
	}
	return nil, nil, fault.New(fault.NotFound, fault.Volume, "no storage volume with path %q", path)
}

// Overlays returns the volumes of active pools that have an image as their backing file, as they are now.
func (ps *Pools) Overlays(ctx context.Context, path string) (found []*Volume) {
	for _, p := range ps.List() {
		for _, v := range p.View().Volumes {
			if v.Backing == nil || v.backingPath != path {
				continue
			}
			if now, err := p.FreshVolume(ctx, v.Name); err == nil && now.Backing != nil && now.backingPath == path {
				found = append(found, now)
			}
		}
	}
	return found
}

// Resolve returns the path and format of a volume that a guest's definition names. declared is the format in
// that definition, if any. The pool must be active; it is not started for this. A volume that was not made
// here has no declared format. A guest may have written its bytes, so they cannot name backing files. The path
// is returned even then.
func (ps *Pools) Resolve(pool, volume string, declared image.Format) (path string, format image.Format, err error) {
	p, err := ps.ByName(pool)
	if err != nil {
		return "", "", err
	}
	v, err := p.Volume(volume)
	if err != nil {
		return "", "", err
	}
	if v.Kind == Directory {
		return "", "", fault.New(fault.Unsupported, fault.Volume, "volume %q of pool %q is a directory and not a disk", volume, pool)
	}
	format, err = v.readFormat(declared, "<driver type='%s'/> in the disk's definition")
	return v.Path, format, err
}

// readFormat returns the format for reading a volume. say names where the format can be declared. The format is
// detected, unless the bytes alone would name a backing file.
func (v *Volume) readFormat(declared image.Format, say string) (image.Format, error) {
	if declared == "" && v.claimedBacking != "" {
		return "", fault.New(fault.Denied, fault.Volume, "volume %q of pool %q looks like %s above %s, and a guest could have written that header; if it is right, declare it: "+
			say, v.Name, v.Pool, v.Format, v.claimedBacking, v.Format)
	}
	return cmp.Or(declared, v.Format), nil
}

// Define stores a definition. For an active pool it takes effect at the next start.
func (ps *Pools) Define(ctx context.Context, sc scope.Scope, doc string, validate bool) (*Pool, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	d, err := parsePool(doc, "", validate)
	if err != nil {
		return nil, err
	}
	p, release, err := ps.findOrAdd(ctx, d)
	if err != nil {
		return nil, err
	}
	defer release()
	p.mu.Lock()
	old, oldDoc := p.saved, p.savedDoc
	p.saved, p.savedDoc = d, doc
	p.publish()
	p.mu.Unlock()
	if err := p.saveRecord(); err != nil {
		p.mu.Lock()
		p.saved, p.savedDoc = old, oldDoc
		p.publish()
		p.mu.Unlock()
		p.dropUnused()
		return nil, err
	}
	p.emit(event.PoolChange{Change: event.Defined})
	return p, nil
}

// Create starts a pool that is removed when it is stopped, unless it is also defined.
func (ps *Pools) Create(ctx context.Context, sc scope.Scope, doc string, validate bool, build Build) (*Pool, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	d, err := parsePool(doc, "", validate)
	if err != nil {
		return nil, err
	}
	p, release, err := ps.findOrAdd(ctx, d)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.start(ctx, d, doc, build); err != nil {
		p.dropUnused()
		return nil, err
	}
	return p, nil
}

// findOrAdd finds or makes the pool of a definition and takes its turn. release returns the turn.
func (ps *Pools) findOrAdd(ctx context.Context, d *definition) (*Pool, func(), error) {
	for {
		ps.mu.Lock()
		p, fresh, err := ps.findByIdentity(d)
		if fresh {
			p = ps.add(d.name, d.uuid, nil)
			p.published.Store(&View{Name: d.name, UUID: d.uuid, Type: d.kind, Target: d.target, storageID: d.storageID()})
			<-p.turn // no one else can have it yet
		}
		ps.mu.Unlock()
		if err == nil && !fresh {
			err = p.takeTurn(ctx)
		}
		switch {
		case fault.Is(err, fault.NotFound):
			continue // it was removed meanwhile
		case err != nil:
			return nil, nil, err
		}
		if err := ps.reserveStorage(p, d); err != nil {
			p.releaseTurn()
			return nil, nil, err
		}
		return p, func() { ps.releaseStorage(p); p.releaseTurn() }, nil
	}
}

// reserveStorage reserves the storage of a definition until the pool's view has it, or the request failed. Another
// pool may have taken the storage while this one waited for its turn.
func (ps *Pools) reserveStorage(p *Pool, d *definition) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	_, _, err := ps.findByIdentity(d)
	if err == nil {
		p.reservedStorageID = d.storageID()
	}
	return err
}

func (ps *Pools) releaseStorage(p *Pool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.reservedStorageID = ""
}

// maxPools bounds the number of pools: the longest list of libvirt's protocol.
const maxPools = 16384

// findByIdentity finds the pool with a definition's name and UUID. fresh means that there is none and that one can be
// made.
func (ps *Pools) findByIdentity(d *definition) (p *Pool, fresh bool, err error) {
	if ps.life.Err() != nil {
		return nil, false, context.Cause(ps.life)
	}
	named, identified := ps.byName[d.name], ps.byUUID[d.uuid]
	switch {
	case named != nil && named != identified:
		return nil, false, fault.New(fault.Exists, fault.Pool, "pool %q already exists with uuid %s", d.name, named.uuid)
	case identified != nil && named == nil:
		return nil, false, fault.New(fault.Exists, fault.Pool, "another pool has uuid %s", d.uuid)
	case named == nil && len(ps.byUUID) >= maxPools:
		return nil, false, fault.New(fault.NoCapacity, fault.Pool, "there are already %d pools, the maximum; undefine one", maxPools)
	}
	for _, other := range ps.byUUID {
		if other != named && slices.Contains(other.storageIDs(), d.storageID()) {
			// This client may not know the name.
			return nil, false, fault.New(fault.Exists, fault.Pool, "another pool has the target %s", d.storageID())
		}
	}
	return named, named == nil, nil
}

// storageIDs are where a pool has its volumes, where it will have them after its next start, and where it is about
// to have them. The caller holds the map's lock.
func (p *Pool) storageIDs() []string {
	v := p.published.Load()
	return []string{v.storageID, v.nextStorageID, p.reservedStorageID}
}

// add adds a pool. The caller holds the map's lock.
func (ps *Pools) add(name, id string, declared map[string]declaration) *Pool {
	p := &Pool{
		pools: ps, name: name, uuid: id, worker: newWorker(), turn: make(chan struct{}, 1),
		declared: declared, jobs: map[string]*job{},
	}
	if p.declared == nil {
		p.declared = map[string]declaration{}
	}
	p.turn <- struct{}{}
	ps.byName[name], ps.byUUID[id] = p, p
	return p
}

// remove removes a pool from all lists. The caller has its turn.
func (ps *Pools) remove(p *Pool) {
	ps.mu.Lock()
	delete(ps.byName, p.name)
	delete(ps.byUUID, p.uuid)
	ps.mu.Unlock()
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	p.worker.stop()
}
