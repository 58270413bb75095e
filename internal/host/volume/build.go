package volume

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Build says how much of a pool's storage to make.
type Build int

// The ways to build. All but NoBuild make directories; only the last two make a file system on a pool's
// device. All but NoBuild also make volume groups and partition tables, and there MakeTarget means
// KeepExisting.
const (
	NoBuild Build = iota
	MakeTarget
	KeepExisting // refuses a device that holds data
	Overwrite
)

// defaultTargetMode lets guests' processes open their images but not list the folder.
const defaultTargetMode = 0o711

// Build makes the storage of an inactive pool.
func (p *Pool) Build(ctx context.Context, sc scope.Scope, how Build) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	d, err := p.inactiveDefinition("build")
	if err != nil {
		return err
	}
	if err := p.build(ctx, d, how); err != nil {
		return err
	}
	p.emit(event.PoolChange{Change: event.Created})
	return nil
}

func (p *Pool) build(ctx context.Context, d *definition, how Build) error {
	p.setBuilding(true)
	defer p.setBuilding(false)
	if c := d.blockBackend(); c != nil {
		return c.build(context.WithoutCancel(ctx), how)
	}
	if d.kind != FS && (how == KeepExisting || how == Overwrite) {
		return fault.New(fault.WrongState, fault.Pool, "a pool of type %q has no device to make a file system on", d.kind)
	}
	if err := runInWorker(ctx, p.worker, func() error { return makeTarget(d) }); err != nil {
		return err
	}
	failpoint.Reach("pool.built")
	if how == KeepExisting || how == Overwrite {
		return makeFileSystem(ctx, d, how)
	}
	return nil
}

func (p *Pool) setBuilding(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.building = on
	p.publish()
}

// makeTarget makes the directory and its parents. An existing directory only gets the requested permissions.
func makeTarget(d *definition) error {
	dir, made, err := makeDir(d.target, defaultTargetMode)
	if err != nil {
		return err
	}
	defer dir.Close()
	mode := d.perms.mode
	if made && mode < 0 {
		mode = defaultTargetMode
	}
	f, err := reopenDir(dir, d.target, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := setCopyOnWrite(f, d); err != nil {
		return err
	}
	return setPermissions(f, permissions{mode, d.perms.owner, d.perms.group}, fault.Pool)
}

// noCopyOnWrite is the kernel's FS_NOCOW_FL.
const noCopyOnWrite = 0x00800000

// setCopyOnWrite sets whether new files in a folder are copied on write. The flag has this meaning on btrfs
// only.
func setCopyOnWrite(dir *os.File, d *definition) error {
	if d.copyOnWrite == "" {
		return nil
	}
	fd := int(dir.Fd())
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(fd, &fsys); err != nil {
		return fault.Wrap(err, fault.Failed, fault.File, "cannot stat the file system of %s", d.target)
	}
	if fsys.Type != unix.BTRFS_SUPER_MAGIC {
		return fault.New(fault.Failed, fault.File, "cannot set whether %s copies on write: it is not on btrfs; leave <cow> out of the pool's <features>", d.target)
	}
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		if flags |= noCopyOnWrite; d.copyOnWrite == "yes" {
			flags &^= noCopyOnWrite
		}
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags))
	}
	return fault.Wrap(err, fault.Failed, fault.File, "cannot set whether %s copies on write", d.target)
}

// removeTarget removes the directory, which must be empty.
func removeTarget(target string) error {
	above, err := openDir(filepath.Dir(target))
	if err != nil {
		return err
	}
	defer above.Close()
	return unix.Unlinkat(int(above.Fd()), filepath.Base(target), unix.AT_REMOVEDIR)
}

// setPermissions sets an open file's owner and then its mode, because a change of owner clears bits of the
// mode.
func setPermissions(f *os.File, p permissions, s fault.Subject) error {
	if p.owner >= 0 || p.group >= 0 {
		if err := f.Chown(p.owner, p.group); err != nil {
			return fault.Wrap(err, fault.Failed, s, "cannot give %s to %d:%d", f.Name(), p.owner, p.group)
		}
	}
	if p.mode >= 0 {
		if err := unix.Fchmod(int(f.Fd()), uint32(p.mode)); err != nil {
			return fault.Wrap(err, fault.Failed, s, "cannot set mode %04o of %s", p.mode, f.Name())
		}
	}
	return nil
}

// checkOwnerOnly refuses a volume that others than its owner may write, for a client with path limits. Whatever is
// written there, such as a header that names other files, would count as the owner's, and the owner is root.
func (p permissions) checkOwnerOnly(sc scope.Scope) error {
	if p.mode < 0 || p.mode&0o022 == 0 || sc.Folders() == nil {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "mode %04o would let users other than the volume's owner write to it past the daemon, and this client's images have path limits; remove write permission from group and others", p.mode)
}

// makeFileSystem makes a file system on the pool's device.
func makeFileSystem(ctx context.Context, d *definition, how Build) error {
	if d.format == "auto" {
		return fault.New(fault.Invalid, fault.Config, "name a source format to make a file system on %s", d.device)
	}
	tool := "mkfs." + d.format
	if err := blockdev.NeedTool(tool, ""); err != nil {
		return err
	}
	held, err := blockdev.Claim(ctx, d.device, how == Overwrite)
	if err != nil {
		return err
	}
	defer held.Close()
	var force []string
	switch d.format {
	case "ext2", "ext3", "ext4":
		force = []string{"-F"}
	case "xfs":
		force = []string{"-f"}
	}
	_, err = blockdev.Run(ctx, mkfsTime, tool, append(force, d.device)...)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot make a file system on %s", d.device)
}

// Delete removes the storage of an inactive pool: its directory or its volume group, which must be empty.
func (p *Pool) Delete(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if err := p.takeTurn(ctx); err != nil {
		return err
	}
	defer p.releaseTurn()
	d, err := p.inactiveDefinition("delete")
	if err != nil {
		return err
	}
	if c := d.blockBackend(); c != nil {
		if err := c.destroy(context.WithoutCancel(ctx)); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot delete the storage of pool %q", p.name)
		}
		p.emit(event.PoolChange{Change: event.Deleted})
		return nil
	}
	if d.kind != Dir {
		return fault.New(fault.Unsupported, fault.Config, "the storage of a pool of type %q is not deleted", d.kind)
	}
	err = runInWorker(ctx, p.worker, func() error { return removeTarget(d.target) })
	failpoint.Reach("pool.deleted")
	if err != nil {
		kind := fault.Failed
		if fault.Is(err, fault.Timeout) {
			kind = fault.Timeout
		}
		return fault.Wrap(err, kind, fault.File, "cannot remove %s", d.target)
	}
	p.emit(event.PoolChange{Change: event.Deleted})
	return nil
}
