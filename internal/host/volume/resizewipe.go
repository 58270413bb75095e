package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ResizeOptions are options of ResizeVolume.
type ResizeOptions struct {
	Allocate bool // allocate the added space
	Delta    bool // the size is a difference
	Shrink   bool // allow a loss of the data beyond the new end
}

// ResizeVolume changes the capacity of a volume, in bytes.
func (p *Pool) ResizeVolume(ctx context.Context, sc scope.Scope, name string, size uint64, o ResizeOptions) error {
	return p.change(ctx, sc, name, "resize", func(ctx context.Context, j *job, v *Volume, f *os.File) error {
		target, err := o.newSize(v, size)
		if err != nil {
			return err
		}
		if image.InUse(f) != image.Unused {
			return fault.New(fault.Busy, fault.Volume, "a guest has it open; resize the guest's disk instead (virsh blockresize)")
		}
		if c := p.blockBackend(); c != nil {
			release, err := image.LockToWrite(f) // a guest that starts now would see its end move
			if err != nil {
				return err
			}
			defer release()
			return runInWorker(context.WithoutCancel(ctx), p.worker, func() error { return c.resize(p.uninterruptedContext(), v, target) })
		}
		grown := image.Thin
		if o.Allocate {
			grown = image.Falloc
			if view := p.View(); target > v.Virtual && target-v.Virtual > view.Available {
				return fault.New(fault.NoCapacity, fault.Pool, "it takes %d bytes more and the pool has %d", target-v.Virtual, view.Available)
			}
		}
		key, err := p.passphrase(sc, v)
		if err != nil {
			return err
		}
		defer clear(key)
		chain, err := p.pools.openBacking(ctx, sc, v)
		if err != nil {
			return err
		}
		defer chain.Close()
		return p.pools.images.Resize(ctx, f, v.Format, image.Growth{Size: target, Grown: grown, Shrink: o.Shrink, Passphrase: key, Below: chain})
	})
}

// openBacking opens the backing chain of a volume, if it has one.
func (ps *Pools) openBacking(ctx context.Context, sc scope.Scope, v *Volume) (image.Chain, error) {
	if v.Backing == nil {
		return nil, nil
	}
	chain, err := image.OpenChain(ctx, sc, v.Path, v.Format)
	if err != nil {
		return nil, err
	}
	if err := ps.checkBacking(v, chain); err != nil {
		chain.Close()
		return nil, err
	}
	chain[:1].Close()
	return chain[1:], nil
}

// newSize computes the requested capacity.
func (o ResizeOptions) newSize(v *Volume, size uint64) (uint64, error) {
	target := size
	switch {
	case o.Delta && o.Shrink:
		target = v.Virtual - min(size, v.Virtual)
	case o.Delta:
		if size > 1<<63-1-min(v.Virtual, 1<<63-1) {
			return 0, fault.New(fault.Invalid, fault.Volume, "a capacity of %d and %d bytes is more than a disk can have", v.Virtual, size)
		}
		target = v.Virtual + size
	}
	if target < v.Virtual && !o.Shrink {
		return 0, fault.New(fault.Invalid, fault.Volume, "cannot shrink it from %d to %d bytes without the flag for shrinking: the data beyond the new end are lost", v.Virtual, target)
	}
	return target, nil
}

// WipeVolume overwrites all data of a volume with zeros or, with trim, discards its blocks. Afterwards a qcow2
// image is empty; encrypted images and images of formats other than raw and qcow2 are left as zeros.
func (p *Pool) WipeVolume(ctx context.Context, sc scope.Scope, name string, trim bool) error {
	return p.change(ctx, sc, name, "wipe", func(ctx context.Context, j *job, v *Volume, f *os.File) error {
		if err := checkUnused(f); err != nil {
			return err
		}
		if v.Format != image.Qcow2 || v.Kind != File || v.needsPassphrase() {
			return erase(ctx, f, trim, j)
		}
		// Erased data no longer say what the volume was. So a record is written first, and a mark in the file,
		// which survives a power loss together with the data.
		marked := markIncomplete(f)
		if err := f.Sync(); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Volume, "cannot sync volume %q", name)
		}
		d := declaration{Format: v.Format, Inode: v.inode, Marked: marked, Remake: &image.Plan{
			Format: v.Format, Virtual: v.Virtual, Compat: v.Compat, ClusterSize: v.ClusterSize,
			LazyRefcounts: v.LazyRefcounts, ExtendedL2: v.ExtendedL2,
		}}
		if err := p.declare(name, d); err != nil {
			return err
		}
		err := p.recreateEmpty(ctx, f, *d.Remake, func() error { return erase(ctx, f, trim, j) })
		if err != nil && p.pools.life.Err() != nil {
			return err // the next daemon completes it
		}
		// The record is for a daemon that ends. If the wipe fails, its client is told and may store other data
		// before a record would be applied.
		d.Remake, d.Marked = nil, false
		err = errors.Join(err, p.declare(name, d))
		unmarkIncomplete(filepath.Dir(v.Path), name)
		return err
	})
}

// recreateEmpty makes an image again after its data were erased.
func (p *Pool) recreateEmpty(ctx context.Context, f *os.File, plan image.Plan, erase func() error) error {
	if err := erase(); err != nil {
		return err
	}
	failpoint.Reach("volume.wiped")
	if err := f.Truncate(0); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot truncate")
	}
	failpoint.Reach("volume.truncated")
	return p.pools.images.Make(ctx, f, plan)
}

func erase(ctx context.Context, f *os.File, trim bool, j *job) error {
	if err := image.Erase(ctx, f, trim, j.progress); err != nil {
		return err
	}
	return fault.Wrap(f.Sync(), fault.Failed, fault.Volume, "cannot sync")
}

// change marks a volume as worked on by one job, opens its file for writing, runs work, and reads the volume
// again.
func (p *Pool) change(ctx context.Context, sc scope.Scope, name, verb string, work func(context.Context, *job, *Volume, *os.File) error) error {
	v, err := p.Volume(name)
	if err != nil {
		return err
	}
	if v.Kind == Directory {
		return fault.New(fault.Unsupported, fault.Volume, "cannot %s volume %q: it is a directory", verb, name)
	}
	j, err := p.beginJob(sc, name, verb, true)
	if err != nil {
		return err
	}
	err = p.runJob(ctx, sc, name, func(ctx context.Context) error {
		f, v, err := p.open(ctx, name, unix.O_RDWR)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := failpoint.Err("volume.change"); err != nil {
			return err
		}
		if err := work(ctx, j, v, f); err != nil {
			return err
		}
		failpoint.Reach("volume.changed")
		return p.refreshVolume(ctx, name)
	})
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.About(err), "cannot %s volume %q of pool %q", verb, name, p.name)
	}
	return nil
}

// open opens a volume's file for a change, and checks it again.
func (p *Pool) open(ctx context.Context, name string, mode int) (*os.File, *Volume, error) {
	d, err := p.activeDefinition()
	if err != nil {
		return nil, nil, err
	}
	f, err := runWithin(ctx, p.worker, answerTime, func() (*os.File, error) {
		if d.blockBackend() != nil { // the kernel makes these links itself
			return image.OpenAs(filepath.Join(d.target, name), mode)
		}
		if err := p.refreshVolumeInWorker(d, name); err != nil {
			return nil, err
		}
		return openFile(d.target, name, mode)
	}, func(f *os.File) { _ = f.Close() })
	if err != nil {
		return nil, nil, err
	}
	v, err := p.Volume(name)
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, nil, err
	}
	return f, v, nil
}

// DeleteVolume removes a volume.
func (p *Pool) DeleteVolume(ctx context.Context, sc scope.Scope, name string) error {
	d, err := p.activeDefinition()
	if err != nil {
		return err
	}
	v, err := p.Volume(name)
	if err != nil {
		return err
	}
	if _, err := p.beginJob(sc, name, "delete", true); err != nil {
		return err
	}
	err = p.runJob(ctx, sc, name, func(ctx context.Context) error {
		if c := d.blockBackend(); c != nil {
			return p.removeBlockVolume(d, c, v)
		}
		err := runInWorker(ctx, p.worker, func() error {
			if err := removeFile(d.target, name); err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			failpoint.Reach("volume.removed")
			p.hideVolume(d, name)
			return p.refreshSizes(d)
		})
		if err == nil {
			p.undeclare(name)
		}
		return err
	})
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Volume, "cannot delete volume %q of pool %q", name, p.name)
	}
	return nil
}

// FreshVolume returns a volume as it is now if the file system answers at once, else as it was last read.
func (p *Pool) FreshVolume(ctx context.Context, name string) (*Volume, error) {
	if _, err := p.Volume(name); err != nil {
		return nil, err
	}
	d, err := p.activeDefinition()
	if err != nil {
		return nil, err
	}
	if d.blockBackend() != nil || p.worker.stuck() > staleAfter || p.isChanging(name) {
		return p.Volume(name)
	}
	err = tryInWorker(ctx, p.worker, func() error { return p.refreshVolumeInWorker(d, name) })
	if fault.Is(err, fault.NotFound) {
		return nil, err
	}
	return p.Volume(name)
}

func (p *Pool) isChanging(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[name]
	return j != nil && j.exclusive
}
