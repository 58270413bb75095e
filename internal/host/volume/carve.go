package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
)

// carver makes volumes by cutting up block devices with the host's tools. All
// of it but build, destroy, attach and detach runs in the pool's lane, so that
// no two tools change the same storage at a time. What changes storage gets a
// context that does not end with its caller: a tool is bounded by its own time
// only, because one that is ended half way leaves half a change.
type carver interface {
	// build and destroy make and remove the storage of an inactive pool.
	build(ctx context.Context, how Build) error
	destroy(ctx context.Context) error
	attach(ctx context.Context) (fresh bool, err error)
	detach(ctx context.Context) error
	survey(ctx context.Context) (reading, error)
	add(ctx context.Context, w *wish) error
	resize(ctx context.Context, v *Volume, size uint64) error
	// remove refuses a volume that is open, or that another one needs.
	remove(ctx context.Context, v *Volume, among []*Volume) error
}

// carver gives what cuts up the pool's devices; nil for a pool of files.
func (d *definition) carver() carver {
	switch d.kind {
	case Logical:
		return group{d}
	case Disk:
		return disk{d}
	}
	return nil
}

func (p *Pool) carver() carver {
	d, err := p.active()
	if err != nil {
		return nil
	}
	return d.carver()
}

// extent is a part of a block device, from start up to end, in bytes.
type extent struct {
	device     string
	start, end uint64
}

// steady is the context of tools that change storage in the lane.
func (p *Pool) steady() context.Context { return context.WithoutCancel(p.pools.life) }

// surveyOne looks, in the lane, at a carved pool and takes over all of it, also
// the volume of that name, which somebody works on.
func (p *Pool) surveyOne(c carver, d *definition, name string) error {
	p.lane.beat() // each tool has its own time
	r, err := c.survey(p.pools.life)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used != d {
		return p.inactive()
	}
	p.install(r)
	i, ok := find(r.volumes, name)
	if ok {
		p.volumes = with(p.volumes, r.volumes[i])
	} else {
		p.volumes = without(p.volumes, name)
		err = fault.New(fault.NotFound, fault.Volume, "no volume %q in pool %q", name, p.name)
	}
	p.publish()
	return err
}

// drawCarved drafts a volume of a carved pool, which is raw and has the data
// that were on its blocks before.
func drawCarved(w *wish, o CreateOptions) (*draft, error) {
	switch {
	case o.Metadata:
		return nil, fault.New(fault.Unsupported, fault.Volume, "a volume on a block device has no metadata to lay out")
	case w.capacity == nil && w.backing == nil:
		return nil, fault.New(fault.Invalid, fault.XML, "volume %q has no capacity", w.name)
	case w.capacity != nil && *w.capacity == 0:
		return nil, fault.New(fault.Invalid, fault.XML, "volume %q has a capacity of nothing", w.name)
	case w.encryption != nil:
		return nil, fault.New(fault.Unsupported, fault.Config, "not supported: encryption of a volume on a block device; encrypt in the guest, or use a pool of files")
	case w.compat != "" || w.clusterSize != 0 || w.lazy || w.extended || w.noCOW:
		return nil, fault.New(fault.Unsupported, fault.Config, "a volume on a block device is raw and has no features")
	}
	return &draft{fill: func(context.Context, *os.File) error { return nil }}, nil
}

// copiedLast are the first bytes of a copy, with what tells of partitions, file systems and boot loaders. No
// record and no name tells that a volume of a carved pool is half made.
const copiedLast = 1 << 20

// drawCarvedCopy drafts a volume of a carved pool with what a guest would read
// of another volume. The blocks are zeroed first: a copy leaves out zeros.
func (p *Pool) drawCarvedCopy(w *wish, from *Pool, origin *Volume, o CreateOptions, j *job) (*draft, error) {
	switch {
	case o.Reflink:
		return nil, fault.New(fault.Unsupported, fault.Volume, "block devices cannot share blocks; copy without reflink")
	case w.backing != nil:
		return nil, fault.New(fault.Unsupported, fault.Config, "not supported: backingStore of a copy on a block device; leave it out to get a full copy")
	}
	if origin.locked() {
		return nil, fault.New(fault.Invalid, fault.Volume, "volume %q is encrypted and the copy on a block device would not be", origin.Name)
	}
	d, err := drawCarved(w, o)
	if err != nil {
		return nil, err
	}
	d.fill = func(ctx context.Context, f *os.File) error {
		source, err := from.openUnwritten(ctx, origin)
		if err != nil {
			return err
		}
		_ = source.Close() // opened to read
		chain, err := image.OpenChain(ctx, origin.Path, origin.Format)
		if err != nil {
			return err
		}
		defer chain.Close()
		if err := p.pools.believe(origin, chain); err != nil {
			return err
		}
		if err := erase(ctx, f, false, new(job)); err != nil { // and on disk: what follows is not, at first
			return err
		}
		return p.pools.images.Convert(ctx, image.Copy{From: chain, Into: f, Format: image.Raw, Last: copiedLast, Progress: j.progress})
	}
	return d, nil
}

// cutTime is how long a volume's maker waits for the tools. Tests wait for less.
var cutTime = answerTime

// cut makes a volume of a carved pool. What fails half way is removed again.
func (p *Pool) cut(ctx context.Context, d *definition, c carver, w *wish, fill func(context.Context, *os.File) error) error {
	made := &Volume{Name: w.name, Path: filepath.Join(d.target, w.name)}
	// Not with ctx: a caller who goes would leave a volume that nobody fills, as would one whose patience has ended.
	_, err := ask(context.WithoutCancel(ctx), p.lane, cutTime, func() (struct{}, error) {
		if err := c.add(p.steady(), w); err != nil {
			return struct{}{}, err
		}
		err := p.surveyOne(c, d, w.name)
		if err != nil { // what has no node is no use to anybody
			err = errors.Join(err, c.remove(p.steady(), made, nil))
		}
		return struct{}{}, err
	}, func(struct{}) {
		if err := p.takeAway(d, c, made); err != nil {
			p.pools.log.Warn("cannot remove a volume that was made too late", "pool", p.name, "volume", w.name, "error", err)
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
		return p.reread(ctx, w.name)
	}
	if removed := p.uncut(d, c, v); removed != nil {
		p.pools.log.Warn("cannot remove half-made volume", "pool", p.name, "volume", w.name, "error", removed)
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

// uncut removes a volume of a carved pool.
func (p *Pool) uncut(d *definition, c carver, v *Volume) error {
	return tell(context.WithoutCancel(p.pools.life), p.lane, func() error { return p.takeAway(d, c, v) })
}

// takeAway is uncut in the lane.
func (p *Pool) takeAway(d *definition, c carver, v *Volume) error {
	p.mu.Lock()
	among := p.volumes
	p.mu.Unlock()
	if err := unopened(v.Path); err != nil {
		return err
	}
	if err := c.remove(p.steady(), v, among); err != nil {
		return err
	}
	if err := p.surveyOne(c, d, v.Name); !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// unopened refuses a volume that a guest has open. One whose node is gone has
// nobody.
func unopened(path string) error {
	f, err := image.Open(path)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if image.InUse(f) != image.Unused {
		return fault.New(fault.Busy, fault.Volume, "a guest has %s open; stop the guest first", path)
	}
	return nil
}

// readNode reads what there is of a block volume besides its place; false if
// it has no node.
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

// blank refuses a device that must not be taken: one that something on the
// host or a guest has open and, unless told to overwrite, one that holds
// anything at all. Until held is closed no guest begins with it.
func blank(ctx context.Context, device string, how Build) (held io.Closer, err error) {
	if how != Overwrite {
		found, err := contentOf(ctx, device)
		if err != nil {
			return nil, err
		}
		if found != "" {
			return nil, fault.New(fault.Exists, fault.Pool, "%s holds %s already; build with overwrite to lose it", device, found)
		}
	}
	return fsguard.Do(ctx, device, func() (io.Closer, error) {
		f, err := image.Open(device)
		if err == nil {
			if err = unheld(device); err == nil {
				_, err = image.LockToWrite(f)
			}
			if err != nil {
				_ = f.Close() // nothing was written
			}
		}
		return f, err
	}, func(f io.Closer) { _ = f.Close() })
}

// unheld refuses a device that something has open, or a part of it, or the disk that it is a part of.
func unheld(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return fault.New(fault.Busy, fault.Pool, "%s is in use: it or a part of it is mounted, swapped to, or a member of something", device)
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Pool, "cannot open %s", device)
	}
	f := os.NewFile(uintptr(fd), device)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return fault.Wrap(err, fault.Failed, fault.Pool, "cannot stat %s", device)
	case info.Mode()&os.ModeType != os.ModeDevice:
		return fault.New(fault.Invalid, fault.Pool, "%s is no block device", device)
	}
	return unlent(f)
}

// unlent refuses a device that a guest has open, or a part of it, or the disk that it is a part of. The kernel says
// of none of them: a QEMU opens its disk as everybody may.
func unlent(device *os.File) error {
	if image.InUse(device) != image.Unused {
		return fault.New(fault.Busy, fault.Pool, "a guest has %s open; stop the guest first", device.Name())
	}
	for _, node := range kin(device) {
		if err := unopened(node); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot take %s", device.Name())
		}
	}
	return nil
}

// kin are the nodes of a disk's partitions, or of the disk that a partition is of.
func kin(device *os.File) (nodes []string) {
	var st unix.Stat_t
	if unix.Fstat(int(device.Fd()), &st) != nil {
		return nil
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return nil // the kernel lists no such device
	}
	dirs, _ := filepath.Glob(filepath.Join(dir, "*", "partition")) // fails for a pattern that is wrong only
	if unix.Access(filepath.Join(dir, "partition"), unix.F_OK) == nil {
		dirs = append(dirs, dir) // which the disk is above
	}
	for _, part := range dirs {
		node := filepath.Base(filepath.Dir(part))
		nodes = append(nodes, filepath.Join("/dev", strings.ReplaceAll(node, "!", "/")))
	}
	return nodes
}

// toolTime bounds one run of a tool that looks at or changes devices.
const toolTime = answerTime

// realDevice follows links such as those below /dev/disk to the device's node.
func realDevice(ctx context.Context, path string) (string, error) {
	node, err := fsguard.Do(ctx, path, func() (string, error) { return filepath.EvalSymlinks(path) }, nil)
	if fault.Is(err, fault.Timeout) {
		return "", err
	}
	if errors.Is(err, fs.ErrNotExist) { // not found would say that the pool is missing
		return "", fault.New(fault.Invalid, fault.Pool, "source/device/@path: device path %s does not exist on this host; attach the device, or correct the path", path)
	}
	return node, fault.Wrap(err, fault.Failed, fault.Pool, "cannot find the device %s", path)
}

// noRoom tells the want of room, which LVM tells in words only, from other failures.
func noRoom(err error) error {
	if err != nil && strings.Contains(err.Error(), "insufficient free space") {
		return fault.Wrap(err, fault.NoCapacity, fault.Pool, "no room is left")
	}
	return err
}

// noGroup tells a volume group that the host does not have, which LVM tells in words only,
// from other failures.
func noGroup(err error, name string) error {
	if err != nil && strings.Contains(err.Error(), fmt.Sprintf("Volume group %q not found", name)) {
		return fault.New(fault.Invalid, fault.Config, "source/name: this host has no volume group %s; build the pool to make it, or correct the name", name)
	}
	return err
}
