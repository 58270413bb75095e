package volume

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Records: a pool under its UUID, and what was declared of a volume that was
// made here under UUID/NAME.
var (
	poolKind   = store.Kind{Name: "pool", Version: 1}
	volumeKind = store.Kind{Name: "volume", Version: 1}
)

type poolRecord struct {
	Saved     string `json:"saved,omitempty"` // the definition as submitted; "" for a transient pool
	Used      string `json:"used,omitempty"`  // the one it runs with; "" for an inactive pool
	Autostart bool   `json:"autostart,omitempty"`
	Boot      string `json:"boot,omitempty"` // in which it was started
	Home      uint64 `json:"home,omitempty"` // see Pool.home
}

// declaration is what is known of a volume from when it was made.
type declaration struct {
	Format image.Format `json:"format"`
	// Inode is the file that was made: another of the same name is another volume.
	Inode uint64 `json:"inode"`
	// Encryption is how it was encrypted when it was made, and with which secret.
	Encryption *encryption `json:"encryption,omitempty"`
	// Building is set until the volume is complete.
	Building bool `json:"building,omitempty"`
	// Marked says that the file says so too while Building or Remake is set.
	Marked bool `json:"marked,omitempty"`
	// Remake is set while the volume is made anew without its data, as this says.
	Remake *image.Plan `json:"remake,omitempty"`
}

// save writes the pool's record, with its turn taken.
func (p *Pool) save() error {
	return p.pools.store.Put(poolKind, p.uuid, p.record())
}

func (p *Pool) record() poolRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := poolRecord{Saved: p.savedDoc, Used: p.usedDoc, Autostart: p.autostart, Boot: p.pools.boot, Home: p.home}
	if p.due {
		r.Boot = "" // the next daemon goes on with it
	}
	return r
}

// saveStopped is save of a pool that is just being stopped; of a transient one no record stays.
func (p *Pool) saveStopped() error {
	r := p.record()
	if r.Used = ""; r.Saved == "" {
		return p.pools.store.Delete(poolKind, p.uuid)
	}
	return p.pools.store.Put(poolKind, p.uuid, r)
}

// forget removes the pool and all that is kept of it, with its turn taken.
func (p *Pool) forget() error {
	if err := p.pools.store.Delete(poolKind, p.uuid); err != nil {
		return err
	}
	p.vanish()
	return nil
}

// vanish is the rest of that, without its record. Last it goes from the lists: from then on another may have its
// UUID, and volumes that are kept by that.
func (p *Pool) vanish() {
	failpoint.Reach("pool.forgotten")
	p.mu.Lock()
	declared := p.declared
	p.declared = map[string]declaration{}
	p.mu.Unlock()
	for name := range declared {
		p.undeclare(name)
	}
	p.pools.remove(p)
}

// dropIfNothing removes a pool that was made for a request which failed.
func (p *Pool) dropIfNothing() {
	p.mu.Lock()
	nothing := p.saved == nil && p.used == nil
	p.mu.Unlock()
	if nothing {
		p.pools.remove(p)
	}
}

// declare records what a volume is.
func (p *Pool) declare(name string, d declaration) error {
	if err := p.pools.store.Put(volumeKind, p.uuid+"/"+name, d); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.declared[name] = d
	return nil
}

// undeclare forgets a volume. What stays behind when that fails names a file
// that is gone, and is forgotten at the next refresh.
func (p *Pool) undeclare(name string) {
	p.mu.Lock()
	delete(p.declared, name)
	p.mu.Unlock()
	if err := p.pools.store.Delete(volumeKind, p.uuid+"/"+name); err != nil {
		p.pools.log.Warn("cannot forget volume", "pool", p.name, "volume", name, "error", err)
	}
}

// forgetMissing forgets volumes whose files are gone or were replaced. One that could
// not be read is neither: what was declared of it is what keeps a guest's bytes from
// being taken for a header. The pool's turn is taken.
func (p *Pool) forgetMissing() {
	for _, name := range p.missing() {
		if _, err := p.begin(context.Background(), scope.Daemon("forgetting an unfinished volume"), name, "forgetting", true); err != nil {
			continue // somebody works on it, or the pool was stopped
		}
		if slices.Contains(p.missing(), name) { // nobody has made it meanwhile
			p.undeclare(name)
		}
		p.end(name, "")
	}
}

// missing gives the declared volumes that the last reading has not found.
func (p *Pool) missing() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil || p.folder != p.home {
		return nil // nothing has been looked at, or another folder: what is mounted there is not yet, perhaps
	}
	for name, d := range p.declared {
		i, ok := find(p.volumes, name)
		if ok && p.volumes[i].inode != d.Inode || !ok && !slices.Contains(p.unread, name) {
			names = append(names, name)
		}
	}
	return names
}

// sweep removes, in the lane, the files that were never completed, and completes
// those that were to lose their data.
func (p *Pool) sweep(target string, declared map[string]declaration) {
	for name, d := range declared {
		if !d.Building && d.Remake == nil || p.isChanging(name) { // by this daemon, whose clients need not wait for a pool that is brought back
			continue
		}
		outdated, err := d.outdated(target, name)
		if err != nil {
			p.pools.log.Warn("cannot look at a volume that may be half made", "pool", p.name, "volume", name, "error", err)
			continue
		}
		if outdated {
			p.pools.log.Warn("a volume is said to be half made and is not: it stays", "pool", p.name, "volume", name)
			d.Building, d.Remake, d.Marked = false, nil, false
			if err := p.declare(name, d); err != nil {
				p.pools.log.Warn("cannot note that a volume is complete", "pool", p.name, "volume", name, "error", err)
			}
			declared[name] = d
			continue
		}
		if d.Remake != nil {
			if err := p.remake(target, name, &d); err != nil {
				p.pools.log.Warn("cannot complete a volume that was being wiped", "pool", p.name, "volume", name, "error", err)
				continue
			}
			p.pools.log.Info("completed a volume that was being wiped", "pool", p.name, "volume", name)
			declared[name] = d
			continue
		}
		if isLent(target, name, d.Inode) {
			p.pools.log.Warn("a half-made volume stays, for a guest has it", "pool", p.name, "volume", name, "error", p.leaveTo(target, name))
			continue
		}
		if err := removeInode(target, name, d.Inode); err != nil {
			p.pools.log.Warn("cannot remove half-made volume", "pool", p.name, "volume", name, "error", err)
			continue
		}
		p.pools.log.Info("removed half-made volume", "pool", p.name, "volume", name)
		delete(declared, name)
		p.undeclare(name)
	}
}

// remake makes a volume anew whose wiping was cut off, as it would have become.
func (p *Pool) remake(target, name string, d *declaration) error {
	f, err := openFile(target, name, unix.O_RDWR)
	if fault.Is(err, fault.NotFound) {
		return nil // and is forgotten with the next reading
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != d.Inode {
		return err // another file has its name
	}
	if err := unused(f); err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := p.pools.images.Make(p.steady(), f, *d.Remake); err != nil {
		return err
	}
	d.Remake, d.Marked = nil, false
	if err := p.declare(name, *d); err != nil {
		return err
	}
	unmarkHalf(target, name)
	return nil
}

// keepData forgets that a volume was being wiped, for somebody gives it other data.
func (p *Pool) keepData(name string) error {
	p.mu.Lock()
	d := p.declared[name]
	p.mu.Unlock()
	if d.Remake == nil {
		return nil
	}
	d.Remake, d.Marked = nil, false
	return p.declare(name, d)
}

func (ps *Pools) loadRecords() (map[string]poolRecord, error) {
	records := map[string]poolRecord{}
	err := ps.store.Each(poolKind, func(key string, decode func(any) error) error {
		var r poolRecord
		if err := decode(&r); err != nil {
			ps.log.Error("cannot read the record of a pool", "uuid", key, "error", err)
			return nil
		}
		records[key] = r
		return nil
	})
	return records, err
}

func (ps *Pools) loadDeclarations() (map[string]map[string]declaration, error) {
	declared := map[string]map[string]declaration{}
	err := ps.store.Each(volumeKind, func(key string, decode func(any) error) error {
		pool, name, _ := strings.Cut(key, "/")
		var d declaration
		if err := decode(&d); err != nil {
			ps.log.Error("cannot read the record of a volume", "key", key, "error", err)
			return nil
		}
		if declared[pool] == nil {
			declared[pool] = map[string]declaration{}
		}
		declared[pool][name] = d
		return nil
	})
	return declared, err
}

// forgetDeclared forgets the volumes of a pool that is not there any more.
func (ps *Pools) forgetDeclared(pool string, declared map[string]declaration) {
	for name := range declared {
		if err := ps.store.Delete(volumeKind, pool+"/"+name); err != nil {
			ps.log.Warn("cannot forget a volume of a pool that is gone", "uuid", pool, "volume", name, "error", err)
		}
	}
}

// restore makes a pool of its record; nil of one that ended with an earlier boot.
func (ps *Pools) restore(id string, r poolRecord, declared map[string]declaration) (*Pool, error) {
	if r.Saved == "" && r.Boot != ps.boot {
		return nil, ps.store.Delete(poolKind, id)
	}
	var saved, used *definition
	var err error
	if r.Saved != "" {
		if saved, err = parsePool(r.Saved, id, false); err != nil {
			return nil, err
		}
	}
	if r.Used != "" && r.Boot == ps.boot {
		if used, err = parsePool(r.Used, id, false); err != nil {
			return nil, err
		}
	} else {
		r.Used = ""
	}
	name := saved
	if name == nil {
		name = used
	}
	if name == nil {
		return nil, fault.New(fault.Invalid, fault.Store, "the record holds no definition")
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.insert(name.name, id, declared)
	p.saved, p.savedDoc, p.used, p.usedDoc, p.autostart, p.home = saved, r.Saved, used, r.Used, r.Autostart, r.Home
	if used != nil {
		p.stale = "it has not been read yet"
	}
	p.publish()
	return p, nil
}

// adopt brings an active pool back, or starts one with autostart after a boot,
// beside.
func (ps *Pools) adopt(p *Pool, r poolRecord) {
	if p.used == nil {
		if r.Autostart && r.Boot != ps.boot {
			ps.startWithHost(p)
		}
		return
	}
	p.adopting.Store(true)
	ps.adopted.Go(func() {
		defer p.adopting.Store(false)
		ctx, cancel := context.WithTimeoutCause(ps.life, 2*longTime, fault.New(fault.Timeout, fault.Pool, "pool %q did not start in time", p.name))
		defer cancel()
		if err := p.readopt(ctx); err != nil {
			ps.log.Warn("cannot bring back pool", "pool", p.name, "error", err)
		}
	})
}

// readopt attaches and reads a pool that is active by its record. One whose
// storage is gone becomes inactive; one that does not answer stays, stale.
func (p *Pool) readopt(ctx context.Context) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.release()
	d, err := p.active()
	if err != nil {
		return err
	}
	if _, err = p.attach(ctx, d); err == nil {
		err = tell(ctx, p.lane, func() error {
			r, err := p.readAnew(d)
			if err != nil {
				return err
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.used == d {
				p.install(r)
			}
			return nil
		})
	}
	switch {
	case err == nil:
		p.forgetMissing()
		return nil
	case fault.Is(err, fault.Timeout) || fault.Is(err, fault.Aborted) || p.pools.life.Err() != nil:
		return err
	}
	p.mu.Lock()
	p.used, p.usedDoc, p.stale = nil, "", ""
	transient := p.saved == nil
	p.publish()
	p.mu.Unlock()
	if transient { // also where the store does not say so: nothing is known of it any more
		failed := p.pools.store.Delete(poolKind, p.uuid)
		p.vanish()
		return failed
	}
	if failed := p.save(); failed != nil {
		return failed
	}
	return err
}
