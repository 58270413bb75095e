package volume

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// CreateOptions are options of CreateVolume.
type CreateOptions struct {
	// Validate refuses elements that no version of the format knows.
	Validate bool
	// Metadata allocates the tables of a qcow2 image in advance, and all of its space if the requested
	// allocation is the capacity.
	Metadata bool
	// Reflink makes a copy share the blocks of its source, or fails.
	Reflink bool
}

// draft is a volume that is about to be made.
type draft struct {
	plan image.Plan
	// space is the space to allocate at once, in bytes.
	space uint64
	// fill writes the new, empty file.
	fill func(ctx context.Context, f *os.File) error
	// copies says that data are copied into it. They are synced before the volume is reported as made, because
	// the source may be removed then.
	copies bool
}

// closeChecked closes a file that was written. If its header now refers to files that ctx may not open, that stays
// recorded.
func closeChecked(ctx context.Context, sc scope.Scope, f *os.File) error {
	again, err := image.Reopen(int(f.Fd()), f.Name(), os.O_RDONLY)
	if err = errors.Join(fault.Wrap(f.Close(), fault.Failed, fault.Volume, "cannot finish writing"), err); again == nil {
		return err
	}
	defer again.Close()
	if err == nil {
		_ = image.RemoveRecordOfCopy(ctx, sc, again)
	}
	return err
}

// fillChecked fills the file. Raw bytes come from outside and could be an image header: a header may not refer to
// files that ctx may not open.
func (d *draft) fillChecked(ctx context.Context, f *os.File) error {
	if !d.plan.Format.IsLayered() {
		if err := image.RecordBeforeWrite(f); err != nil {
			return err
		}
	}
	return d.fill(ctx, f)
}

// CreateVolume makes a volume as a document describes it.
func (p *Pool) CreateVolume(ctx context.Context, sc scope.Scope, doc string, o CreateOptions) (*Volume, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	w, err := parseVolume(doc, o.Validate)
	if err != nil {
		return nil, err
	}
	if o.Reflink {
		return nil, fault.New(fault.Invalid, fault.Volume, "a new volume has no source to share blocks with")
	}
	return p.createVolume(ctx, sc, w, func() {}, func(ctx context.Context, _ *job) (*draft, error) {
		if p.blockBackend() != nil {
			return draftBlockVolume(w, o)
		}
		d, err := p.draftVolume(ctx, sc, w, o)
		if err != nil {
			return nil, err
		}
		d.fill = func(ctx context.Context, f *os.File) error { return p.makeImage(ctx, f, d.plan, w.encryption) }
		return d, nil
	})
}

// draftVolume drafts a volume, and checks the backing store that it names.
func (p *Pool) draftVolume(ctx context.Context, sc scope.Scope, w *volumeRequest, o CreateOptions) (*draft, error) {
	d := &draft{plan: image.Plan{
		Format: w.format, NoCOW: w.noCOW,
		Compat: w.compat, ClusterSize: w.clusterSize, LazyRefcounts: w.lazy, ExtendedL2: w.extended,
	}}
	if w.backing != nil {
		below, err := p.pools.inspectBacking(ctx, sc, w.backing)
		if err != nil {
			return nil, err
		}
		d.plan.Backing = &image.Backing{Name: w.backing.Name, Format: below.Format}
		d.plan.Virtual = below.Virtual
	}
	if w.capacity != nil {
		d.plan.Virtual = *w.capacity
	} else if w.backing == nil {
		return nil, fault.New(fault.Invalid, fault.XML, "volume %q has no capacity", w.name)
	}
	d.allocate(w.allocation, o.Metadata)
	return d, p.pools.withPassphrase(d.plan, w.encryption, func(plan image.Plan) error { return plan.Check() })
}

// allocate decides how much space is allocated at once. A raw volume allocates what its allocation says, and
// everything by default. An image with a format allocates nothing unless asked.
func (d *draft) allocate(allocation *uint64, metadata bool) {
	whole := allocation == nil || *allocation >= d.plan.Virtual
	isRaw := d.plan.Format == image.Raw || d.plan.Format == image.ISO || d.plan.Format == image.LUKS
	switch {
	case isRaw && whole:
		d.plan.Preallocation, d.space = image.Falloc, d.plan.Virtual
	case isRaw:
		d.plan.Reserved, d.space = *allocation, *allocation
	case metadata && whole && allocation != nil:
		d.plan.Preallocation, d.space = image.Falloc, d.plan.Virtual
	case metadata:
		d.plan.Preallocation = image.Metadata
	}
}

// inspectBacking inspects a backing store and its whole chain. Its format is the declared one, else that of the volume,
// else raw if the bytes look like no other format.
func (ps *Pools) inspectBacking(ctx context.Context, sc scope.Scope, b *image.Backing) (image.Info, error) {
	format := b.Format
	if format == "" {
		if _, v, err := ps.ByPath(b.Name); err == nil {
			if format, err = v.readFormat("", "<format type='%s'/> in <backingStore>"); err != nil {
				return image.Info{}, err
			}
		}
	}
	chain, err := image.OpenChain(ctx, sc, b.Name, format)
	if err != nil {
		return image.Info{}, fault.Wrap(err, fault.Of(err), fault.About(err), "cannot use backing store %s", b.Name)
	}
	defer chain.Close()
	return chain[0].Info, nil
}

// createVolume makes a volume's file: it reserves the name, fills the file, sets its owner and shows the volume. On
// failure it removes the file again. after is called once, when no work is left.
func (p *Pool) createVolume(ctx context.Context, sc scope.Scope, w *volumeRequest, after func(), draw func(context.Context, *job) (*draft, error)) (*Volume, error) {
	if _, err := p.Volume(w.name); err == nil {
		after()
		return nil, fault.New(fault.Exists, fault.Volume, "volume %q already exists in pool %q", w.name, p.name)
	}
	if err := errors.Join(sc.ReserveVolume(p.name, w.name), w.perms.checkOwnerOnly(sc)); err != nil {
		after()
		return nil, err
	}
	j, err := p.beginJob(sc, w.name, "creation", true)
	if err != nil {
		after()
		return nil, err
	}
	err = p.runJob(ctx, sc, w.name, func(ctx context.Context) error {
		defer after()
		d, err := draw(ctx, j)
		if err != nil {
			return err
		}
		return p.writeDraft(ctx, sc, w, d)
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.About(err), "cannot create volume %q in pool %q", w.name, p.name)
	}
	return p.Volume(w.name)
}

// writeDraft makes the file of a drafted volume.
func (p *Pool) writeDraft(ctx context.Context, sc scope.Scope, w *volumeRequest, d *draft) error {
	used, err := p.activeDefinition()
	if err != nil {
		return err
	}
	if c := used.blockBackend(); c != nil {
		return p.createBlockVolume(ctx, used, c, w, d.fill)
	}
	if view := p.View(); d.space > view.Available {
		return fault.New(fault.NoCapacity, fault.Pool, "it takes %d bytes and the pool has %d; ask for a smaller allocation to make it thin", d.space, view.Available)
	}
	f, inode, err := p.createFile(ctx, w.name, d.plan)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = d.fillChecked(ctx, f); err == nil {
		failpoint.Reach("volume.filled")
		if d.copies {
			err = fault.Wrap(f.Sync(), fault.Failed, fault.Volume, "cannot sync volume %q", w.name)
		}
	}
	if err == nil {
		err = setPermissions(f, w.perms, fault.Volume)
	}
	if err == nil { // a file server may refuse the data as late as now
		err = closeChecked(ctx, sc, f)
	}
	if err == nil {
		err = p.completeVolume(ctx, w.name, declaration{Format: d.plan.Format, Inode: inode, Encryption: w.encryption})
	}
	if err != nil {
		p.discardVolume(w.name, inode)
	}
	return err
}

// createFile makes a volume's file and shows the volume, so that its progress is visible. The file gets its name
// after the record says that it is incomplete.
func (p *Pool) createFile(ctx context.Context, name string, plan image.Plan) (*os.File, uint64, error) {
	type made struct {
		f      *os.File
		inode  uint64
		marked bool
	}
	d, err := p.activeDefinition()
	if err != nil {
		return nil, 0, err
	}
	m, err := runWithin(ctx, p.worker, answerTime, func() (made, error) {
		if err := d.mounted(); err != nil {
			return made{}, err
		}
		f, inode, err := makeFile(d.target, name)
		return made{f, inode, err == nil && markIncomplete(f)}, err
	}, func(m made) {
		_ = m.f.Close() // nothing was written
		_ = removeInode(d.target, name, m.inode)
	})
	if err != nil {
		return nil, 0, err
	}
	failpoint.Reach("volume.made")
	err = p.declare(name, declaration{Format: plan.Format, Inode: m.inode, Building: true, Marked: m.marked})
	if err == nil {
		failpoint.Reach("volume.declared")
		err = runInWorker(ctx, p.worker, func() error { return p.nameVolume(d, name, m.f, m.inode, plan) })
	}
	if err != nil {
		_ = m.f.Close() // nothing was written
		p.discardVolume(name, m.inode)
		return nil, 0, err
	}
	failpoint.Reach("volume.named")
	return m.f, m.inode, nil
}

// nameVolume names a volume's file, in the worker, and shows the volume.
func (p *Pool) nameVolume(d *definition, name string, f *os.File, inode uint64, plan image.Plan) error {
	if err := nameFile(f, d.target, name); err != nil {
		return err
	}
	v, err := readVolumeIn(p.name, d.target, name, declaration{Format: image.Raw, Inode: inode})
	if err == nil && v != nil {
		v.Format, v.Virtual = plan.Format, plan.Virtual
		p.showVolume(d, v)
	}
	return nil
}

// completeVolume records that a volume is complete and reads it.
func (p *Pool) completeVolume(ctx context.Context, name string, d declaration) error {
	if err := p.declare(name, d); err != nil {
		return err
	}
	used, err := p.activeDefinition()
	if err != nil {
		return err
	}
	return runInWorker(ctx, p.worker, func() error {
		unmarkIncomplete(used.target, name)
		return p.refreshVolumeInWorker(used, name)
	})
}

// discardVolume removes an incomplete volume.
func (p *Pool) discardVolume(name string, inode uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.pools.life), closeTime)
	defer cancel()
	d, err := p.activeDefinition()
	if err == nil {
		err = runInWorker(ctx, p.worker, func() error {
			if isOpenByGuest(d.target, name, inode) {
				return errors.Join(fault.New(fault.Busy, fault.Volume, "a guest has it open"), p.keepForGuest(d.target, name), p.refreshVolumeInWorker(d, name))
			}
			p.hideVolume(d, name)
			return removeInode(d.target, name, inode)
		})
	}
	if fault.Is(err, fault.Busy) {
		p.pools.log.Warn("incomplete volume kept: a guest has it open", "pool", p.name, "volume", name, "error", err)
		return
	}
	if err != nil {
		// Its record says that it is incomplete, so the next start of the pool removes it.
		p.pools.log.Warn("incomplete volume not removed", "pool", p.name, "volume", name, "error", err)
		return
	}
	p.undeclare(name)
}

// isOpenByGuest says whether a guest has opened a file that is being made.
func isOpenByGuest(target, name string, inode uint64) bool {
	f, err := openFile(target, name, unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Ino == inode && image.InUse(f) != image.Unused
}

// keepForGuest keeps such a file for the guest: the mark that it is incomplete is removed, whatever its record says.
func (p *Pool) keepForGuest(target, name string) error {
	unmarkIncomplete(target, name)
	p.mu.Lock()
	d := p.declared[name]
	p.mu.Unlock()
	d.Building = false
	return p.declare(name, d)
}

// showVolume and hideVolume change one volume of a pool's view, if the pool still has the same definition.
func (p *Pool) showVolume(d *definition, v *Volume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == d {
		p.volumes = with(p.volumes, v)
		p.publish()
	}
}

func (p *Pool) hideVolume(d *definition, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == d {
		p.volumes = without(p.volumes, name)
		p.publish()
	}
}

// refreshVolume reads one volume and the pool's sizes again.
func (p *Pool) refreshVolume(ctx context.Context, name string) error {
	d, err := p.activeDefinition()
	if err != nil {
		return err
	}
	return runInWorker(ctx, p.worker, func() error { return p.refreshVolumeInWorker(d, name) })
}

// refreshVolumeInWorker is refreshVolume, in the worker.
func (p *Pool) refreshVolumeInWorker(d *definition, name string) error {
	if c := d.blockBackend(); c != nil {
		return p.readBlockPool(c, d, name)
	}
	p.mu.Lock()
	declared := p.declared[name]
	p.mu.Unlock()
	v, err := readVolumeIn(p.name, d.target, name, declared)
	if err != nil {
		return err
	}
	if v == nil {
		p.hideVolume(d, name)
		return fault.New(fault.NotFound, fault.Volume, "no volume %q in pool %q", name, p.name)
	}
	p.showVolume(d, v)
	return p.refreshSizes(d)
}

// refreshSizes reads the sizes of the pool's file system, in the worker. Those of block devices change only with
// their volumes.
func (p *Pool) refreshSizes(d *definition) error {
	if d.blockBackend() != nil {
		return nil
	}
	if err := d.mounted(); err != nil {
		return err
	}
	dir, err := openDir(d.target)
	if err != nil {
		return err
	}
	defer dir.Close()
	s, perms, err := readSizes(dir)
	if err != nil {
		return wrapDirError(err, d.target)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == d {
		p.space, p.perms = s, perms
		p.publish()
	}
	return nil
}
