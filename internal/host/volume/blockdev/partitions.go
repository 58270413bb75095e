package blockdev

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
)

const (
	diskPackage = "fdisk"
	// Align is the boundary of partitions, in bytes: a multiple of the block size of all storage.
	Align = 1 << 20
	// DOSPrimary is how many partitions a dos table itself can hold.
	DOSPrimary = 4
	// dosSectors is how many sectors a dos table can address: its fields have 32 bits.
	dosSectors = 1 << 32
)

// NeedSfdisk is NeedTool for sfdisk.
func NeedSfdisk() error { return NeedTool("sfdisk", diskPackage) }

// Table is a partition table as sfdisk prints it, in sectors.
type Table struct {
	Label      string      `json:"label"`
	FirstLBA   uint64      `json:"firstlba"`
	LastLBA    uint64      `json:"lastlba"`
	SectorSize uint64      `json:"sectorsize"`
	Partitions []Partition `json:"partitions"`
	size       uint64      // of the device, in bytes
}

// Partition is an entry of a Table. Start and Size are in sectors.
type Partition struct {
	Node  string `json:"node"`
	Start uint64 `json:"start"`
	Size  uint64 `json:"size"`
	Type  string `json:"type"`
}

// ReadTable reads the partition table of a device and checks it against the
// device's size. Errors call the device by name, the path that a user gave.
func ReadTable(ctx context.Context, device, name string) (*Table, error) {
	if err := NeedSfdisk(); err != nil {
		return nil, err
	}
	size, err := fsguard.Do(ctx, device, func() (uint64, error) { return Size(device) }, nil)
	if err != nil {
		return nil, err
	}
	out, err := Run(ctx, ToolTime, "sfdisk", "--json", device)
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Pool, "%s has no partition table that can be read; build the pool to make one", name)
	}
	return ParseTable(out, size)
}

// WriteTable runs a script of sfdisk and tells the kernel nothing: other
// partitions of the disk may be in use. UpdatePartition tells the kernel.
func WriteTable(ctx context.Context, script string, args ...string) error {
	args = append([]string{"--quiet", "--lock=yes", "--no-reread", "--no-tell-kernel"}, args...)
	_, err := RunInput(ctx, ToolTime, script, "sfdisk", args...)
	return err
}

// UpdatePartition has partx --add or --delete one partition in the kernel.
func UpdatePartition(ctx context.Context, what, device string, n int) error {
	_, err := Run(ctx, ToolTime, "partx", what, "--nr", strconv.Itoa(n), device)
	return err
}

// Number is the partition's number in its table, from 1 on; 0 if its node has none.
func (p Partition) Number() int {
	digits := p.Node[len(strings.TrimRight(p.Node, "0123456789")):]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// Extended says whether a partition of a dos table holds further partitions.
func (p Partition) Extended() bool {
	return slices.Contains([]string{"5", "f", "85"}, strings.ToLower(p.Type))
}

// ParseTable reads the output of sfdisk --json. It refuses a table that does
// not fit a device of size bytes, and nodes that do not lie in /dev.
func ParseTable(text string, size uint64) (*Table, error) {
	var doc struct {
		Table *Table `json:"partitiontable"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.Table == nil {
		return nil, fault.Wrap(cmp.Or(err, errors.New("no table in it")), fault.Failed, fault.Pool, "cannot read what sfdisk prints")
	}
	t := doc.Table
	t.size = size
	t.SectorSize = cmp.Or(t.SectorSize, 512)
	if t.SectorSize > Align || Align%t.SectorSize != 0 {
		return nil, fault.New(fault.Failed, fault.Pool, "a sector size of %d bytes is not supported", t.SectorSize)
	}
	sectors := size / t.SectorSize
	if t.FirstLBA > sectors || t.LastLBA > sectors {
		return nil, fault.New(fault.Failed, fault.Pool, "the table is one of a larger disk")
	}
	for _, p := range t.Partitions {
		if p.Start > sectors || p.Size > sectors-p.Start {
			return nil, fault.New(fault.Failed, fault.Pool, "partition %q lies outside of its disk", p.Node)
		}
		name := filepath.Base(p.Node)
		if p.Number() == 0 || filepath.Dir(p.Node) != "/dev" || len(name) > maxNode || strings.ContainsFunc(name, unicode.IsControl) {
			return nil, fault.New(fault.Unsupported, fault.Config, "partition %q is no device below /dev", p.Node)
		}
	}
	return t, nil
}

// maxNode bounds the name of a device's node in bytes (NAME_MAX).
const maxNode = 255

// DeviceSize is the size of the table's device in bytes.
func (t *Table) DeviceSize() uint64 { return t.size }

// Free returns the space between the partitions in bytes, aligned to Align.
func (t *Table) Free() []Extent {
	end := t.size
	if t.LastLBA != 0 {
		end = min(end, (t.LastLBA+1)*t.SectorSize)
	} else {
		end = min(end, dosSectors*t.SectorSize)
	}
	at := max(Align, t.FirstLBA*t.SectorSize)
	var out []Extent
	add := func(from, to uint64) {
		if from, to = (from+Align-1)/Align*Align, to/Align*Align; from < to {
			out = append(out, Extent{Start: from, End: to})
		}
	}
	for _, p := range slices.SortedFunc(slices.Values(t.Partitions), func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) }) {
		add(at, min(p.Start*t.SectorSize, end))
		at = max(at, (p.Start+p.Size)*t.SectorSize)
	}
	add(at, end)
	return out
}

// Allocate finds the smallest free extent that a new partition of size bytes
// fits into, and returns the part of it that the partition takes.
func (t *Table) Allocate(size uint64) (Extent, error) {
	if size > t.size {
		return Extent{}, fault.New(fault.NoCapacity, fault.Pool, "%d bytes are more than the whole disk has, %d", size, t.size)
	}
	size = (size + Align - 1) / Align * Align
	var best Extent
	for _, e := range t.Free() {
		if room := e.End - e.Start; room >= size && (best.End == 0 || room < best.End-best.Start) {
			best = e
		}
	}
	if best.End == 0 {
		return best, fault.New(fault.NoCapacity, fault.Pool, "no contiguous free space of %d bytes is left", size)
	}
	best.End = best.Start + size
	return best, nil
}

// NextNumber returns the number that sfdisk gives the next partition: the lowest free one.
func (t *Table) NextNumber() (int, error) {
	used := map[int]bool{}
	for _, p := range t.Partitions {
		used[p.Number()] = true
	}
	n := 1
	for used[n] {
		n++
	}
	if t.Label == "dos" && n > DOSPrimary {
		return 0, fault.New(fault.NoCapacity, fault.Pool, "a dos table has no more than %d partitions; extended ones are not made, so take gpt", DOSPrimary)
	}
	return n, nil
}

// PartitionNode names a partition as the kernel does: sda1, nvme0n1p1.
func PartitionNode(device string, n int) string {
	if last := device[len(device)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", device, n)
	}
	return fmt.Sprintf("%s%d", device, n)
}

// usages are libvirt's names of partition types, with the type in a dos and in
// a gpt table. A type that several usages have is shown as the first of them.
var usages = []struct{ name, dos, gpt string }{
	{"linux", "83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"},
	{"none", "83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"},
	{"fat32", "c", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"},
	{"fat16", "6", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"},
	{"linux-swap", "82", "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"},
	{"linux-lvm", "8e", "E6D6D379-F507-44C2-A23C-238F2A3DF928"},
	{"linux-raid", "fd", "A19D880F-05FC-4D3B-A006-743F0F84911E"},
}

// Usages returns the names of the usages that a partition can be made for.
func Usages() []string {
	var out []string
	for _, u := range usages {
		out = append(out, u.name)
	}
	return out
}

// UsageType returns the partition type of a usage in a table of format label.
func UsageType(usage, label string) (string, error) {
	for _, u := range usages {
		if u.name != usage {
			continue
		}
		if label == "gpt" {
			return u.gpt, nil
		}
		return u.dos, nil
	}
	return "", fault.New(fault.Unsupported, fault.Config, "partitions of format %q are not made: %s are", usage, strings.Join(Usages(), ", "))
}

// Usage names the partition's type; "none" for a type that is not known.
func (p Partition) Usage() string {
	for _, u := range usages {
		if strings.EqualFold(p.Type, u.dos) || strings.EqualFold(p.Type, u.gpt) {
			return u.name
		}
	}
	return "none"
}
