package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// blockBackend makes volumes by dividing block devices with the host's tools. All methods but build, destroy, attach
// and detach run in the pool's worker, so that no two tools change the same storage at once. Tools that change
// storage get a context that outlives the caller and are bounded only by their own time: a tool that is killed
// half way leaves a half-done change.
type blockBackend interface {
	// build and destroy make and remove the storage of an inactive pool.
	build(ctx context.Context, how Build) error
	destroy(ctx context.Context) error
	attach(ctx context.Context) (fresh bool, err error)
	detach(ctx context.Context) error
	readContents(ctx context.Context) (poolContents, error)
	add(ctx context.Context, w *volumeRequest) error
	resize(ctx context.Context, v *Volume, size uint64) error
	// remove refuses a volume that is open, or that another volume needs.
	remove(ctx context.Context, v *Volume, among []*Volume) error
}

// blockBackend returns the backend of the pool's devices; nil for a pool of files.
func (d *definition) blockBackend() blockBackend {
	switch d.kind {
	case Logical:
		return volumeGroup{d}
	case Disk:
		return partitionedDisk{d}
	}
	return nil
}

func (p *Pool) blockBackend() blockBackend {
	d, err := p.activeDefinition()
	if err != nil {
		return nil
	}
	return d.blockBackend()
}

// uninterruptedContext is the context of tools that change storage in the worker.
func (p *Pool) uninterruptedContext() context.Context { return context.WithoutCancel(p.pools.life) }

// readBlockPool reads a pool of block devices in the worker and installs the result, including the named volume,
// although a job works on it.
func (p *Pool) readBlockPool(c blockBackend, d *definition, name string) error {
	p.worker.progress() // each tool has its own time limit
	r, err := c.readContents(p.pools.life)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active != d {
		return p.inactiveError()
	}
	p.applyContents(r)
	i, ok := indexOf(r.volumes, name)
	if ok {
		p.volumes = with(p.volumes, r.volumes[i])
	} else {
		p.volumes = without(p.volumes, name)
		err = fault.New(fault.NotFound, fault.Volume, "no volume %q in pool %q", name, p.name)
	}
	p.publish()
	return err
}

// draftBlockVolume drafts a volume of a block pool. It is raw and keeps the data that were on its blocks.
func draftBlockVolume(w *volumeRequest, o CreateOptions) (*draft, error) {
	switch {
	case o.Metadata:
		return nil, fault.New(fault.Unsupported, fault.Volume, "a volume on a block device has no metadata to lay out")
	case w.capacity == nil && w.backing == nil:
		return nil, fault.New(fault.Invalid, fault.XML, "volume %q has no capacity", w.name)
	case w.capacity != nil && *w.capacity == 0:
		return nil, fault.New(fault.Invalid, fault.XML, "volume %q has a capacity of 0", w.name)
	case w.encryption != nil:
		return nil, fault.New(fault.Unsupported, fault.Config, "not supported: encryption of a volume on a block device; encrypt in the guest, or use a pool of files")
	case w.compat != "" || w.clusterSize != 0 || w.lazy || w.extended || w.noCOW:
		return nil, fault.New(fault.Unsupported, fault.Config, "a volume on a block device is raw and has no features")
	}
	return &draft{fill: func(context.Context, *os.File) error { return nil }}, nil
}

// copiedLast are the first bytes of a copy, which hold the partition table, file system and boot loader. They
// are written last, because neither a record nor a name marks an incomplete volume of a block pool.
const copiedLast = 1 << 20

// draftBlockCopy drafts a volume of a block pool with the data that a guest would read from another volume.
// The blocks are zeroed first, because a copy leaves out zeros.
func (p *Pool) draftBlockCopy(sc scope.Scope, w *volumeRequest, from *Pool, origin *Volume, o CreateOptions, j *job) (*draft, error) {
	switch {
	case o.Reflink:
		return nil, fault.New(fault.Unsupported, fault.Volume, "block devices cannot share blocks; copy without reflink")
	case w.backing != nil:
		return nil, fault.New(fault.Unsupported, fault.Config, "not supported: backingStore of a copy on a block device; omit it to get a full copy")
	}
	if origin.needsPassphrase() {
		return nil, fault.New(fault.Invalid, fault.Volume, "volume %q is encrypted and the copy on a block device would not be", origin.Name)
	}
	d, err := draftBlockVolume(w, o)
	if err != nil {
		return nil, err
	}
	d.fill = func(ctx context.Context, f *os.File) error {
		source, err := from.openUnwritten(ctx, sc, origin)
		if err != nil {
			return err
		}
		_ = source.Close() // opened to read
		chain, err := image.OpenChain(ctx, sc, origin.Path, origin.Format)
		if err != nil {
			return err
		}
		defer chain.Close()
		if err := p.pools.checkBacking(origin, chain); err != nil {
			return err
		}
		if err := erase(ctx, f, false, new(job)); err != nil { // and synced: the data that follow are not, at first
			return err
		}
		return p.pools.images.Convert(ctx, image.Copy{From: chain, Into: f, Format: image.Raw, Last: copiedLast, Progress: j.progress})
	}
	return d, nil
}

// createTime is how long the maker of a volume waits for the tools. Tests use less.
var createTime = answerTime

// createBlockVolume makes a volume of a block pool, and removes it again on failure.
func (p *Pool) createBlockVolume(ctx context.Context, d *definition, c blockBackend, w *volumeRequest, fill func(context.Context, *os.File) error) error {
	made := &Volume{Name: w.name, Path: filepath.Join(d.target, w.name)}
	// The context does not end with the caller's, since a volume that is made too late would never be filled.
	_, err := runWithin(context.WithoutCancel(ctx), p.worker, createTime, func() (struct{}, error) {
		if err := c.add(p.uninterruptedContext(), w); err != nil {
			return struct{}{}, err
		}
		err := p.readBlockPool(c, d, w.name)
		if err != nil { // a volume without a node is useless
			err = errors.Join(err, c.remove(p.uninterruptedContext(), made, nil))
		}
		return struct{}{}, err
	}, func(struct{}) {
		if err := p.removeBlockVolumeInWorker(d, c, made); err != nil {
			p.pools.log.Warn("volume made after its request ended; not removed", "pool", p.name, "volume", w.name, "error", err)
		}
	})
	if err != nil {
		return err
	}
	v, err := p.Volume(w.name)
	if err != nil {
		return err
	}
	if err = fillNode(ctx, v.Path, w.perms, fill); err == nil {
		return p.refreshVolume(ctx, w.name)
	}
	if removed := p.removeBlockVolume(d, c, v); removed != nil {
		p.pools.log.Warn("incomplete volume not removed", "pool", p.name, "volume", w.name, "error", removed)
	}
	return err
}

func fillNode(ctx context.Context, path string, perms permissions, fill func(context.Context, *os.File) error) error {
	f, err := image.OpenAs(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := fill(ctx, f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot sync %s", path)
	}
	return setPermissions(f, perms, fault.Volume)
}

// removeBlockVolume removes a volume of a block pool.
func (p *Pool) removeBlockVolume(d *definition, c blockBackend, v *Volume) error {
	return runInWorker(context.WithoutCancel(p.pools.life), p.worker, func() error { return p.removeBlockVolumeInWorker(d, c, v) })
}

// removeBlockVolumeInWorker is removeBlockVolume, in the worker.
func (p *Pool) removeBlockVolumeInWorker(d *definition, c blockBackend, v *Volume) error {
	p.mu.Lock()
	among := p.volumes
	p.mu.Unlock()
	if err := blockdev.CheckClosed(v.Path); err != nil {
		return err
	}
	if err := c.remove(p.uninterruptedContext(), v, among); err != nil {
		return err
	}
	if err := p.readBlockPool(c, d, v.Name); !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// readNode reads the attributes of a block volume's node; false if it has no node.
func (v *Volume) readNode() (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, v.Path, 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fault.Wrap(err, fault.Failed, fault.Volume, "cannot stat %s", v.Path)
	case st.Mode&unix.S_IFMT != unix.S_IFBLK:
		return false, nil
	}
	v.perms = permissions{int(st.Mode & 0o777), int(st.Uid), int(st.Gid)}
	v.atime, v.mtime, v.ctime, v.btime, v.inode = st.Atime, st.Mtime, st.Ctime, st.Btime, st.Ino
	return true, nil
}
