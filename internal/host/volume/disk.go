package volume

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// disk is a block device with a partition table. The table is read and written
// by sfdisk, and the kernel is told by partx, one partition at a time, because
// others of them may be in use.
type disk struct{ *definition }

const (
	diskPackage = "fdisk"
	// align is what partitions begin and end at, in bytes: large enough for all
	// storage that has blocks of its own.
	align = 1 << 20
	// dosPrimary is how many partitions a dos table itself has.
	dosPrimary = 4
	// dosSectors is where a dos table cannot count any further.
	dosSectors = 1 << 32
)

// diskFormats are the partition tables that are made and read.
var diskFormats = []string{"dos", "gpt"}

// readDisk understands the source of a partitioned disk. A format that is not
// known is the one that the disk has, and dos where one is made.
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

// table is a partition table as sfdisk prints it, in sectors.
type table struct {
	Label      string      `json:"label"`
	FirstLBA   uint64      `json:"firstlba"`
	LastLBA    uint64      `json:"lastlba"`
	SectorSize uint64      `json:"sectorsize"`
	Partitions []partition `json:"partitions"`
	size       uint64      // of the device, in bytes
}

type partition struct {
	Node  string `json:"node"`
	Start uint64 `json:"start"`
	Size  uint64 `json:"size"`
	Type  string `json:"type"`
}

// number is where a partition is in its table, from 1 on; 0 of one whose node
// has no number.
func (p partition) number() int {
	digits := p.Node[len(strings.TrimRight(p.Node, "0123456789")):]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// extended is a container of further partitions in a dos table.
func (p partition) extended() bool {
	return slices.Contains([]string{"5", "f", "85"}, strings.ToLower(p.Type))
}

// parseTable reads what sfdisk prints and checks that it makes sense for a
// device of that size.
func parseTable(text string, size uint64) (*table, error) {
	var doc struct {
		Table *table `json:"partitiontable"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.Table == nil {
		return nil, fault.Wrap(cmp.Or(err, errors.New("no table in it")), fault.Failed, fault.Pool, "cannot read what sfdisk prints")
	}
	t := doc.Table
	t.size = size
	t.SectorSize = cmp.Or(t.SectorSize, 512)
	if t.SectorSize > align || align%t.SectorSize != 0 {
		return nil, fault.New(fault.Failed, fault.Pool, "sectors of %d bytes are none", t.SectorSize)
	}
	sectors := size / t.SectorSize
	if t.FirstLBA > sectors || t.LastLBA > sectors {
		return nil, fault.New(fault.Failed, fault.Pool, "the table is one of a larger disk")
	}
	for _, p := range t.Partitions {
		if p.Start > sectors || p.Size > sectors-p.Start {
			return nil, fault.New(fault.Failed, fault.Pool, "partition %q lies outside of its disk", p.Node)
		}
		if p.number() == 0 || filepath.Dir(p.Node) != "/dev" || checkName(fault.Volume, filepath.Base(p.Node)) != nil {
			return nil, fault.New(fault.Unsupported, fault.Config, "partition %q is no device below /dev", p.Node)
		}
	}
	return t, nil
}

// free gives the room between the partitions, aligned, in bytes.
func (t *table) free() []extent {
	end := t.size
	if t.LastLBA != 0 {
		end = min(end, (t.LastLBA+1)*t.SectorSize)
	} else {
		end = min(end, dosSectors*t.SectorSize)
	}
	at := max(align, t.FirstLBA*t.SectorSize)
	var out []extent
	room := func(from, to uint64) {
		if from, to = (from+align-1)/align*align, to/align*align; from < to {
			out = append(out, extent{start: from, end: to})
		}
	}
	for _, p := range slices.SortedFunc(slices.Values(t.Partitions), func(a, b partition) int { return cmp.Compare(a.Start, b.Start) }) {
		room(at, min(p.Start*t.SectorSize, end))
		at = max(at, (p.Start+p.Size)*t.SectorSize)
	}
	room(at, end)
	return out
}

// place finds the smallest room that a new partition fits into.
func (t *table) place(size uint64) (extent, error) {
	if size > t.size {
		return extent{}, fault.New(fault.NoCapacity, fault.Pool, "%d bytes are more than the whole disk has, %d", size, t.size)
	}
	size = (size + align - 1) / align * align
	var best extent
	for _, e := range t.free() {
		if room := e.end - e.start; room >= size && (best.end == 0 || room < best.end-best.start) {
			best = e
		}
	}
	if best.end == 0 {
		return best, fault.New(fault.NoCapacity, fault.Pool, "no room of %d bytes in one piece is left", size)
	}
	best.end = best.start + size
	return best, nil
}

// next gives the number that the next partition gets: the lowest that is free.
func (t *table) next() (int, error) {
	used := map[int]bool{}
	for _, p := range t.Partitions {
		used[p.number()] = true
	}
	n := 1
	for used[n] {
		n++
	}
	if t.Label == "dos" && n > dosPrimary {
		return 0, fault.New(fault.NoCapacity, fault.Pool, "a dos table has no more than %d partitions; extended ones are not made, so take gpt", dosPrimary)
	}
	return n, nil
}

// nodeOf names a partition as the kernel does.
func nodeOf(device string, n int) string {
	if last := device[len(device)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", device, n)
	}
	return fmt.Sprintf("%s%d", device, n)
}

// usages are what a partition may be marked to be for, with the marks in
// a dos and in a gpt table. The first of a mark is what it is shown as.
var usages = []struct{ name, dos, gpt string }{
	{"linux", "83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"},
	{"none", "83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"},
	{"fat32", "c", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"},
	{"fat16", "6", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"},
	{"linux-swap", "82", "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"},
	{"linux-lvm", "8e", "E6D6D379-F507-44C2-A23C-238F2A3DF928"},
	{"linux-raid", "fd", "A19D880F-05FC-4D3B-A006-743F0F84911E"},
}

func usageNames() []string {
	var out []string
	for _, u := range usages {
		out = append(out, u.name)
	}
	return out
}

// markOf gives the mark of a usage in a table.
func markOf(format image.Format, label string) (string, error) {
	name := string(format)
	if format == image.Raw {
		name = "none"
	}
	for _, u := range usages {
		if u.name != name {
			continue
		}
		if label == "gpt" {
			return u.gpt, nil
		}
		return u.dos, nil
	}
	return "", fault.New(fault.Unsupported, fault.Config, "partitions of format %q are not made: %s are", name, strings.Join(usageNames(), ", "))
}

func usageOf(p partition) string {
	for _, u := range usages {
		if strings.EqualFold(p.Type, u.dos) || strings.EqualFold(p.Type, u.gpt) {
			return u.name
		}
	}
	return "none"
}

// read reads the table of the pool's disk.
func (d disk) read(ctx context.Context) (device string, t *table, err error) {
	if device, err = realDevice(ctx, d.device); err != nil {
		return "", nil, err
	}
	if err := needTool("sfdisk", diskPackage); err != nil {
		return "", nil, err
	}
	size, err := fsguard.Do(ctx, device, func() (uint64, error) { return deviceSize(device) }, nil)
	if err != nil {
		return "", nil, err
	}
	out, err := run(ctx, toolTime, "sfdisk", "--json", device)
	if err != nil {
		return "", nil, fault.Wrap(err, fault.Of(err), fault.Pool, "%s has no partition table that can be read; build the pool to make one", d.device)
	}
	if t, err = parseTable(out, size); err != nil {
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

func deviceSize(device string) (uint64, error) {
	f, err := image.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeType != os.ModeDevice {
		return 0, fault.New(fault.Invalid, fault.Pool, "%s is no block device", device)
	}
	end, err := f.Seek(0, io.SeekEnd)
	return uint64(max(end, 0)), fault.Wrap(err, fault.Failed, fault.Pool, "cannot find the size of %s", device)
}

// build writes an empty table. Partitions that the kernel knows are taken away
// first, which it refuses of those in use.
func (d disk) build(ctx context.Context, how Build) error {
	if err := needTool("sfdisk", diskPackage); err != nil {
		return err
	}
	device, err := realDevice(ctx, d.device)
	if err != nil {
		return err
	}
	held, err := blank(ctx, device, how)
	if err != nil {
		return err
	}
	defer held.Close()
	known, err := filepath.Glob(filepath.Join("/sys/class/block", filepath.Base(device), "*", "partition"))
	if err == nil && len(known) > 0 {
		if _, err := run(ctx, toolTime, "partx", "--delete", device); err != nil {
			_, _ = run(ctx, toolTime, "partx", "--update", device) // brings back those that went before it
			return fault.Wrap(err, fault.Busy, fault.Pool, "a partition of %s is in use", d.device)
		}
	}
	label := d.format
	if label == "unknown" {
		label = "dos"
	}
	err = d.write(ctx, "label: "+label+"\n", "--wipe", "always", device)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot write a partition table to %s", d.device)
}

// write has sfdisk change a table, and tell the kernel nothing.
func (d disk) write(ctx context.Context, script string, args ...string) error {
	args = append([]string{"--quiet", "--lock=yes", "--no-reread", "--no-tell-kernel"}, args...)
	_, err := runOn(ctx, toolTime, script, "sfdisk", args...)
	return err
}

func (d disk) destroy(context.Context) error {
	return fault.New(fault.Unsupported, fault.Config, "the partition table of a disk is not deleted; build with overwrite to make a new one")
}

// attach tells the kernel of partitions that it does not know.
func (d disk) attach(ctx context.Context) (fresh bool, err error) {
	device, t, err := d.read(ctx)
	if err != nil {
		return false, err
	}
	for _, p := range t.Partitions {
		if unix.Access(p.Node, unix.F_OK) != nil {
			_, err := run(ctx, toolTime, "partx", "--update", device)
			return false, fault.Wrap(err, fault.Of(err), fault.Pool, "cannot tell the kernel of the partitions of %s", d.device)
		}
	}
	return false, nil
}

func (d disk) detach(context.Context) error { return nil }

func (d disk) survey(ctx context.Context) (reading, error) {
	r := reading{perms: noPermissions}
	device, t, err := d.read(ctx)
	if err != nil {
		return r, err
	}
	r.space = space{capacity: t.size, free: t.free()}
	for _, e := range r.space.free {
		r.space.available += e.end - e.start
	}
	for _, p := range t.Partitions {
		if p.extended() && t.Label == "dos" {
			continue // a container: those in it are shown
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

func (d disk) volume(device string, t *table, p partition) *Volume {
	start, size := p.Start*t.SectorSize, p.Size*t.SectorSize
	v := &Volume{Name: filepath.Base(p.Node), Pool: d.name, Path: p.Node, Kind: Block, usage: usageOf(p)}
	v.Info = image.Info{Format: image.Raw, Virtual: size, Allocated: size, Physical: size}
	v.extents = []extent{{device: device, start: start, end: start + size}}
	return v
}

// add makes a partition. Its name is the kernel's, so a wish for another one
// cannot be met.
func (d disk) add(ctx context.Context, w *wish) error {
	device, t, err := d.read(ctx)
	if err != nil {
		return err
	}
	if w.backing != nil {
		return fault.New(fault.Unsupported, fault.Config, "a partition has no backing store")
	}
	n, err := t.next()
	if err != nil {
		return err
	}
	node := nodeOf(device, n)
	if name := filepath.Base(node); w.name != name {
		return fault.New(fault.Invalid, fault.Volume, "the next partition of %s is %q, and cannot be named %q", d.device, name, w.name)
	}
	mark, err := markOf(w.format, t.Label)
	if err != nil {
		return err
	}
	if w.allocation != nil && *w.allocation < *w.capacity && *w.allocation != 0 {
		return fault.New(fault.Unsupported, fault.Config, "a partition takes all of its capacity; leave out the allocation")
	}
	at, err := t.place(*w.capacity)
	if err != nil {
		return err
	}
	script := fmt.Sprintf("start=%d, size=%d, type=%s\n", at.start/t.SectorSize, (at.end-at.start)/t.SectorSize, mark)
	if err := d.write(ctx, script, "--append", "--wipe-partitions", "always", device); err != nil {
		return err
	}
	if err := d.tellKernel(ctx, "--add", device, n); err != nil {
		return errors.Join(err, d.write(ctx, "", "--delete", device, strconv.Itoa(n)))
	}
	return nil
}

func (d disk) tellKernel(ctx context.Context, what, device string, n int) error {
	_, err := run(ctx, toolTime, "partx", what, "--nr", strconv.Itoa(n), device)
	return err
}

func (d disk) resize(context.Context, *Volume, uint64) error {
	return fault.New(fault.Unsupported, fault.Volume, "partitions are not resized; make a larger one and copy")
}

// remove takes a partition from the kernel first, which refuses one that
// anybody has open.
func (d disk) remove(ctx context.Context, v *Volume, _ []*Volume) error {
	device, t, err := d.read(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(t.Partitions, func(p partition) bool { return p.Node == v.Path })
	if i < 0 {
		return nil
	}
	n := t.Partitions[i].number()
	if t.Label == "dos" && n > dosPrimary {
		return fault.New(fault.Unsupported, fault.Volume, "logical partitions are not deleted: those behind it would get other names")
	}
	if unix.Access(v.Path, unix.F_OK) == nil {
		if err := d.tellKernel(ctx, "--delete", device, n); err != nil {
			return fault.Wrap(err, fault.Busy, fault.Volume, "somebody has it open")
		}
	}
	if err := d.write(ctx, "", "--delete", device, strconv.Itoa(n)); err != nil {
		return errors.Join(err, d.tellKernel(ctx, "--add", device, n))
	}
	return nil
}
