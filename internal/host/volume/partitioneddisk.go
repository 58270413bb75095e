package volume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// partitionedDisk is a block device with a partition table. sfdisk reads and writes the table. partx tells the kernel
// about one partition at a time, because other partitions may be in use.
type partitionedDisk struct{ *definition }

// diskFormats are the supported partition tables.
var diskFormats = []string{"dos", "gpt"}

// readDisk parses the source of a partitioned disk. Format "unknown" means the table that the disk has, and
// dos when one is made.
func (d *definition) readDisk(source *xmltree.Element) error {
	if d.format = attr(source.Child("format"), "type"); d.format == "" {
		d.format = "unknown"
	}
	if d.format != "unknown" && !slices.Contains(diskFormats, d.format) {
		return fault.New(fault.Unsupported, fault.Config, "partition tables of format %q are not built: %s are", d.format, strings.Join(diskFormats, " and "))
	}
	if source != nil && len(source.Elements("device")) > 1 {
		return fault.New(fault.Invalid, fault.XML, "pool %q has more than one source device: a disk is one", d.name)
	}
	var err error
	if d.device, err = cleanPath(attr(source.Child("device"), "path")); err != nil {
		return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable source device", d.name)
	}
	return d.fixTarget("/dev")
}

// read reads the partition table of the pool's disk.
func (d partitionedDisk) read(ctx context.Context) (device string, t *blockdev.Table, err error) {
	if device, err = blockdev.RealPath(ctx, d.device); err != nil {
		return "", nil, err
	}
	if t, err = blockdev.ReadTable(ctx, device, d.device); err != nil {
		return "", nil, err
	}
	switch {
	case !slices.Contains(diskFormats, t.Label):
		return "", nil, fault.New(fault.Unsupported, fault.Config, "%s has a partition table of format %q, which is not built", d.device, t.Label)
	case d.format != "unknown" && d.format != t.Label:
		return "", nil, fault.New(fault.WrongState, fault.Pool, "%s has a partition table of format %s, and the pool is one of %s", d.device, t.Label, d.format)
	}
	return device, t, nil
}

// build writes an empty table. It first removes the partitions from the kernel, which refuses to remove those
// in use.
func (d partitionedDisk) build(ctx context.Context, how Build) error {
	if err := blockdev.NeedSfdisk(); err != nil {
		return err
	}
	device, err := blockdev.RealPath(ctx, d.device)
	if err != nil {
		return err
	}
	held, err := blockdev.Claim(ctx, device, how == Overwrite)
	if err != nil {
		return err
	}
	defer held.Close()
	known, err := filepath.Glob(filepath.Join("/sys/class/block", filepath.Base(device), "*", "partition"))
	if err == nil && len(known) > 0 {
		if _, err := blockdev.Run(ctx, blockdev.ToolTime, "partx", "--delete", device); err != nil {
			_, _ = blockdev.Run(ctx, blockdev.ToolTime, "partx", "--update", device) // restores those that were removed before the failure
			return fault.Wrap(err, fault.Busy, fault.Pool, "a partition of %s is in use", d.device)
		}
	}
	label := d.format
	if label == "unknown" {
		label = "dos"
	}
	err = blockdev.WriteTable(ctx, "label: "+label+"\n", "--wipe", "always", device)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot write a partition table to %s", d.device)
}

func (d partitionedDisk) destroy(context.Context) error {
	return fault.New(fault.Unsupported, fault.Config, "a disk's partition table cannot be deleted; build with overwrite to make a new one")
}

// attach adds the partitions that the kernel does not know.
func (d partitionedDisk) attach(ctx context.Context) (fresh bool, err error) {
	device, t, err := d.read(ctx)
	if err != nil {
		return false, err
	}
	for _, p := range t.Partitions {
		if unix.Access(p.Node, unix.F_OK) != nil {
			_, err := blockdev.Run(ctx, blockdev.ToolTime, "partx", "--update", device)
			return false, fault.Wrap(err, fault.Of(err), fault.Pool, "cannot tell the kernel of the partitions of %s", d.device)
		}
	}
	return false, nil
}

func (d partitionedDisk) detach(context.Context) error { return nil }

func (d partitionedDisk) readContents(ctx context.Context) (poolContents, error) {
	r := poolContents{perms: noPermissions}
	device, t, err := d.read(ctx)
	if err != nil {
		return r, err
	}
	r.space = space{capacity: t.DeviceSize(), free: t.Free()}
	for _, e := range r.space.free {
		r.space.available += e.End - e.Start
	}
	for _, p := range t.Partitions {
		if p.Extended() && t.Label == "dos" {
			continue // a container; the partitions inside it are shown
		}
		v := d.volume(device, t, p)
		r.space.allocation += v.Allocated
		there, err := v.readNode()
		if err != nil {
			return r, err
		}
		if there {
			r.volumes = append(r.volumes, v)
		}
	}
	sortVolumes(r.volumes)
	return r, nil
}

func (d partitionedDisk) volume(device string, t *blockdev.Table, p blockdev.Partition) *Volume {
	start, size := p.Start*t.SectorSize, p.Size*t.SectorSize
	v := &Volume{Name: filepath.Base(p.Node), Pool: d.name, Path: p.Node, Kind: Block, usage: p.Usage()}
	v.Info = image.Info{Format: image.Raw, Virtual: size, Allocated: size, Physical: size}
	v.extents = []blockdev.Extent{{Device: device, Start: start, End: start + size}}
	return v
}

// add makes a partition. The kernel chooses its name, so the document must name it so.
func (d partitionedDisk) add(ctx context.Context, w *volumeRequest) error {
	device, t, err := d.read(ctx)
	if err != nil {
		return err
	}
	if w.backing != nil {
		return fault.New(fault.Unsupported, fault.Config, "a partition has no backing store")
	}
	n, err := t.NextNumber()
	if err != nil {
		return err
	}
	node := blockdev.PartitionNode(device, n)
	if name := filepath.Base(node); w.name != name {
		return fault.New(fault.Invalid, fault.Volume, "the next partition of %s is %q, and cannot be named %q", d.device, name, w.name)
	}
	usage := string(w.format)
	if w.format == image.Raw {
		usage = "none"
	}
	mark, err := blockdev.UsageType(usage, t.Label)
	if err != nil {
		return err
	}
	if w.allocation != nil && *w.allocation < *w.capacity && *w.allocation != 0 {
		return fault.New(fault.Unsupported, fault.Config, "a partition allocates its whole capacity; omit the allocation")
	}
	at, err := t.Allocate(*w.capacity)
	if err != nil {
		return err
	}
	script := fmt.Sprintf("start=%d, size=%d, type=%s\n", at.Start/t.SectorSize, (at.End-at.Start)/t.SectorSize, mark)
	if err := blockdev.WriteTable(ctx, script, "--append", "--wipe-partitions", "always", device); err != nil {
		return err
	}
	if err := blockdev.UpdatePartition(ctx, "--add", device, n); err != nil {
		return errors.Join(err, blockdev.WriteTable(ctx, "", "--delete", device, strconv.Itoa(n)))
	}
	return nil
}

func (d partitionedDisk) resize(context.Context, *Volume, uint64) error {
	return fault.New(fault.Unsupported, fault.Volume, "partitions cannot be resized; make a larger one and copy")
}

// remove first removes a partition from the kernel, which refuses one that is open.
func (d partitionedDisk) remove(ctx context.Context, v *Volume, _ []*Volume) error {
	device, t, err := d.read(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(t.Partitions, func(p blockdev.Partition) bool { return p.Node == v.Path })
	if i < 0 {
		return nil
	}
	n := t.Partitions[i].Number()
	if t.Label == "dos" && n > blockdev.DOSPrimary {
		return fault.New(fault.Unsupported, fault.Volume, "logical partitions cannot be deleted: those after it would get other names")
	}
	if unix.Access(v.Path, unix.F_OK) == nil {
		if err := blockdev.UpdatePartition(ctx, "--delete", device, n); err != nil {
			return fault.Wrap(err, fault.Busy, fault.Volume, "it is in use")
		}
	}
	if err := blockdev.WriteTable(ctx, "", "--delete", device, strconv.Itoa(n)); err != nil {
		return errors.Join(err, blockdev.UpdatePartition(ctx, "--add", device, n))
	}
	return nil
}
