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

// Records: a pool under its UUID, and the declaration of a volume that was made here under UUID/NAME.
var (
	poolKind   = store.Kind{Name: "pool", Version: 1}
	volumeKind = store.Kind{Name: "volume", Version: 1}
)

type poolRecord struct {
	Saved     string `json:"saved,omitempty"` // the definition as submitted; "" for a transient pool
	Used      string `json:"used,omitempty"`  // the active definition; "" for an inactive pool
	Autostart bool   `json:"autostart,omitempty"`
	Boot      string `json:"boot,omitempty"` // the boot when it was started
	Home      uint64 `json:"home,omitempty"` // see Pool.declaredFolder
}

// declaration is the record of a volume from when it was made.
type declaration struct {
	Format image.Format `json:"format"`
	// Inode is that of the file that was made: another file of the same name is another volume.
	Inode uint64 `json:"inode"`
	// Encryption is the volume's encryption, with its secret.
	Encryption *encryption `json:"encryption,omitempty"`
	// Building is set until the volume is complete.
	Building bool `json:"building,omitempty"`
	// Marked says that the file is marked too while Building or Remake is set.
	Marked bool `json:"marked,omitempty"`
	// Remake is set while the volume is wiped: the image to make afterwards.
	Remake *image.Plan `json:"remake,omitempty"`
}

// saveRecord writes the pool's record. The caller has its turn.
func (p *Pool) saveRecord() error {
	return p.pools.store.Put(poolKind, p.uuid, p.record())
}

func (p *Pool) record() poolRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := poolRecord{Saved: p.savedDoc, Used: p.activeDoc, Autostart: p.autostart, Boot: p.pools.boot, Home: p.declaredFolder}
	if p.autostartDue {
		r.Boot = "" // the next daemon continues this
	}
	return r
}

// saveStopped is save for a pool that is being stopped; a transient one keeps no record.
func (p *Pool) saveStopped() error {
	r := p.record()
	if r.Used = ""; r.Saved == "" {
		return p.pools.store.Delete(poolKind, p.uuid)
	}
	return p.pools.store.Put(poolKind, p.uuid, r)
}

// deleteRecords removes the pool and its records. The caller has its turn.
func (p *Pool) deleteRecords() error {
	if err := p.pools.store.Delete(poolKind, p.uuid); err != nil {
		return err
	}
	p.unregister()
	return nil
}

// unregister is the rest of deleteRecords, after the pool's record. It leaves the lists last: from then on a new pool
// may have its UUID, and the records of volumes have the UUID in their keys.
func (p *Pool) unregister() {
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

// dropUnused removes a pool that was made for a failed request.
func (p *Pool) dropUnused() {
	p.mu.Lock()
	nothing := p.saved == nil && p.active == nil
	p.mu.Unlock()
	if nothing {
		p.pools.remove(p)
	}
}

// declare writes the declaration of a volume.
func (p *Pool) declare(name string, d declaration) error {
	if err := p.pools.store.Put(volumeKind, p.uuid+"/"+name, d); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.declared[name] = d
	return nil
}

// undeclare deletes the declaration of a volume. If that fails, the record names a missing file, and the next
// refresh deletes it.
func (p *Pool) undeclare(name string) {
	p.mu.Lock()
	delete(p.declared, name)
	p.mu.Unlock()
	if err := p.pools.store.Delete(volumeKind, p.uuid+"/"+name); err != nil {
		p.pools.log.Warn("volume record not deleted", "pool", p.name, "volume", name, "error", err)
	}
}

// undeclareMissing deletes the declarations of volumes with files that are gone or were replaced. A file that could
// not be read keeps its declaration, which prevents a guest's bytes from being taken for a header. The caller
// has the pool's turn.
func (p *Pool) undeclareMissing() {
	for _, name := range p.missingVolumes() {
		if _, err := p.beginJob(scope.Daemon("forgetting an unfinished volume"), name, "forgetting", true); err != nil {
			continue // a job works on it, or the pool was stopped
		}
		if slices.Contains(p.missingVolumes(), name) { // it was not made again meanwhile
			p.undeclare(name)
		}
		p.endJob(name, "")
	}
}

// missingVolumes returns the declared volumes that the last reading did not find.
func (p *Pool) missingVolumes() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == nil || p.folder != p.declaredFolder {
		return nil // nothing was read, or another folder: perhaps the file system is not mounted yet
	}
	for name, d := range p.declared {
		i, ok := indexOf(p.volumes, name)
		if ok && p.volumes[i].inode != d.Inode || !ok && !slices.Contains(p.unread, name) {
			names = append(names, name)
		}
	}
	return names
}

// resolveIncomplete removes, in the worker, files that were never completed, and completes interrupted wipes.
func (p *Pool) resolveIncomplete(target string, declared map[string]declaration) {
	for name, d := range declared {
		if !d.Building && d.Remake == nil || p.isChanging(name) { // made by this daemon, whose clients need not wait for the pool to be reactivated
			continue
		}
		outdated, err := d.outdated(target, name)
		if err != nil {
			p.pools.log.Warn("cannot read a volume that may be incomplete", "pool", p.name, "volume", name, "error", err)
			continue
		}
		if outdated {
			p.pools.log.Warn("record says incomplete, but file is complete; volume kept", "pool", p.name, "volume", name)
			d.Building, d.Remake, d.Marked = false, nil, false
			if err := p.declare(name, d); err != nil {
				p.pools.log.Warn("completion of a volume not recorded", "pool", p.name, "volume", name, "error", err)
			}
			declared[name] = d
			continue
		}
		if d.Remake != nil {
			if err := p.resumeWipe(target, name, &d); err != nil {
				p.pools.log.Warn("interrupted wipe not completed", "pool", p.name, "volume", name, "error", err)
				continue
			}
			p.pools.log.Info("interrupted wipe completed", "pool", p.name, "volume", name)
			declared[name] = d
			continue
		}
		if isOpenByGuest(target, name, d.Inode) {
			p.pools.log.Warn("incomplete volume kept: a guest has it open", "pool", p.name, "volume", name, "error", p.keepForGuest(target, name))
			continue
		}
		if err := removeInode(target, name, d.Inode); err != nil {
			p.pools.log.Warn("incomplete volume not removed", "pool", p.name, "volume", name, "error", err)
			continue
		}
		p.pools.log.Info("incomplete volume removed", "pool", p.name, "volume", name)
		delete(declared, name)
		p.undeclare(name)
	}
}

// resumeWipe completes an interrupted wipe.
func (p *Pool) resumeWipe(target, name string, d *declaration) error {
	f, err := openFile(target, name, unix.O_RDWR)
	if fault.Is(err, fault.NotFound) {
		return nil // the next reading deletes its record
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != d.Inode {
		return err // another file has its name
	}
	if err := checkUnused(f); err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := p.pools.images.Make(p.uninterruptedContext(), f, *d.Remake); err != nil {
		return err
	}
	d.Remake, d.Marked = nil, false
	if err := p.declare(name, *d); err != nil {
		return err
	}
	unmarkIncomplete(target, name)
	return nil
}

// cancelWipe deletes the record of a wipe, because a client writes other data to the volume.
func (p *Pool) cancelWipe(name string) error {
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
			ps.log.Error("pool record not readable", "uuid", key, "error", err)
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
			ps.log.Error("volume record not readable", "key", key, "error", err)
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

// forgetDeclared deletes the volume records of a pool that no longer exists.
func (ps *Pools) forgetDeclared(pool string, declared map[string]declaration) {
	for name := range declared {
		if err := ps.store.Delete(volumeKind, pool+"/"+name); err != nil {
			ps.log.Warn("volume record of a removed pool not deleted", "uuid", pool, "volume", name, "error", err)
		}
	}
}

// restore makes a pool from its record; nil for a transient pool of an earlier boot.
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
		return nil, fault.New(fault.Invalid, fault.Store, "the record has no definition")
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.add(name.name, id, declared)
	p.saved, p.savedDoc, p.active, p.activeDoc, p.autostart, p.declaredFolder = saved, r.Saved, used, r.Used, r.Autostart, r.Home
	if used != nil {
		p.stale = "it has not been read yet"
	}
	p.publish()
	return p, nil
}

// adopt reactivates an active pool, or starts one with autostart after a boot, in the background.
func (ps *Pools) adopt(p *Pool, r poolRecord) {
	if p.active == nil {
		if r.Autostart && r.Boot != ps.boot {
			ps.autostart(p)
		}
		return
	}
	p.adopting.Store(true)
	ps.adopted.Go(func() {
		defer p.adopting.Store(false)
		ctx, cancel := context.WithTimeoutCause(ps.life, 2*longTime, fault.New(fault.Timeout, fault.Pool, "pool %q did not start in time", p.name))
		defer cancel()
		if err := p.reattach(ctx); err != nil {
			ps.log.Warn("pool not reactivated", "pool", p.name, "error", err)
		}
	})
}

// reattach attaches and reads a pool that is active by its record. If its storage is gone it becomes inactive;
// if it does not answer it stays active and stale.
func (p *Pool) reattach(ctx context.Context) error {
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	d, err := p.activeDefinition()
	if err != nil {
		return err
	}
	if _, err = p.attach(ctx, d); err == nil {
		err = runInWorker(ctx, p.worker, func() error {
			r, err := p.resolveIncompleteAndRead(d)
			if err != nil {
				return err
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.active == d {
				p.applyContents(r)
			}
			return nil
		})
	}
	switch {
	case err == nil:
		p.undeclareMissing()
		return nil
	case fault.Is(err, fault.Timeout) || fault.Is(err, fault.Aborted) || p.pools.life.Err() != nil:
		return err
	}
	p.mu.Lock()
	p.active, p.activeDoc, p.stale = nil, "", ""
	transient := p.saved == nil
	p.publish()
	p.mu.Unlock()
	if transient { // even if the store does not say so: nothing else is known of it
		failed := p.pools.store.Delete(poolKind, p.uuid)
		p.unregister()
		return failed
	}
	if failed := p.saveRecord(); failed != nil {
		return failed
	}
	return err
}
