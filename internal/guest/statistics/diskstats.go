package statistics

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// BlockStats is the part of QEMU's answer to query-blockstats that Lodge reads.
type BlockStats struct {
	Device string
	QDev   string
	Stats  struct {
		RdOps   uint64 `json:"rd_operations"`
		RdBytes uint64 `json:"rd_bytes"`
		RdTime  int64  `json:"rd_total_time_ns"`
		WrOps   uint64 `json:"wr_operations"`
		WrBytes uint64 `json:"wr_bytes"`
		WrTime  int64  `json:"wr_total_time_ns"`
		FlOps   uint64 `json:"flush_operations"`
		FlTime  int64  `json:"flush_total_time_ns"`
		Highest uint64 `json:"wr_highest_offset"`
	}
	// Parent is the file or device below the image. Its offsets are those on the host.
	Parent  *BlockStats
	Backing *BlockStats
}

// highestOffset returns the highest offset, in bytes, that was written in an image's file or device.
func (c *BlockStats) highestOffset() uint64 {
	if c.Parent != nil {
		return c.Parent.Stats.Highest
	}
	return c.Stats.Highest
}

// sampleDisks reads the traffic of the guest's disks and the sizes of their images. For the sizes QEMU asks
// the file system, which may be slow.
func sampleDisks(ctx context.Context, s *qmp.Session, def *domain.Definition) ([]machine.DiskStats, error) {
	if len(def.Devices.Disks) == 0 {
		return nil, nil
	}
	var counters []BlockStats
	if err := s.Execute(ctx, "query-blockstats", nil, &counters); err != nil {
		return nil, err
	}
	var blocks []QEMUBlock
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	return DisksOf(def, counters, blocks), nil
}

// DisksOf makes the sample of the definition's disks from QEMU's answers, which are not trusted.
func DisksOf(def *domain.Definition, counters []BlockStats, blocks []QEMUBlock) []machine.DiskStats {
	disks := make([]machine.DiskStats, len(def.Devices.Disks))
	for i, d := range def.Devices.Disks {
		st := &disks[i]
		*st = machine.DiskStats{Target: d.Target, Alias: d.Alias, Path: d.Source.Path()}
		if d.Source != nil {
			st.Index = d.Source.Index
		}
		CountDisk(st, counters)
		setPaths(st, d.Images())
		for _, b := range blocks {
			if BelongsTo(b.QDev, d.Alias) && b.Inserted != nil {
				setSizes(st, &b.Inserted.Image)
			}
		}
	}
	return disks
}

// sampleCounters is sampleDisks without the sizes, which stay those of the last sample. QEMU answers it from
// memory.
func sampleCounters(ctx context.Context, s *qmp.Session, st *machine.Stats) error {
	if len(st.Disks) == 0 {
		return nil
	}
	var counters []BlockStats
	if err := s.Execute(ctx, "query-blockstats", nil, &counters); err != nil {
		return err
	}
	st.Disks = slices.Clone(st.Disks)
	for i := range st.Disks {
		CountDisk(&st.Disks[i], counters)
	}
	return nil
}

// CountDisk sets the traffic of one disk.
func CountDisk(d *machine.DiskStats, all []BlockStats) {
	for i := range all {
		if c := &all[i]; BelongsTo(c.QDev, d.Alias) {
			c.copyTo(d)
		}
	}
}

// setSizes sets the sizes of a disk's image and of those below it.
func setSizes(d *machine.DiskStats, image *blockImage) {
	d.Capacity, d.Physical = image.VirtualSize, image.ActualSize
	for i := range d.Backing {
		if image = image.Backing; image == nil {
			return
		}
		below := &d.Backing[i]
		below.Capacity, below.Physical = image.VirtualSize, image.ActualSize
	}
}

// setPaths sets the paths of the images below the top one: QEMU knows only the numbers of the files it was
// passed.
func setPaths(d *machine.DiskStats, images []*device.DiskSource) {
	for i := range d.Backing {
		if i+1 < len(images) {
			d.Backing[i].Path, d.Backing[i].Index = images[i+1].Path(), images[i+1].Index
		}
	}
}

// copyTo copies the counters to st. It keeps the sizes of the layers, and follows at most image.MaxDepth
// layers.
func (c *BlockStats) copyTo(st *machine.DiskStats) {
	s := c.Stats
	st.ReadOps, st.ReadBytes, st.ReadTime = s.RdOps, s.RdBytes, time.Duration(s.RdTime)
	st.WriteOps, st.WriteBytes, st.WriteTime = s.WrOps, s.WrBytes, time.Duration(s.WrTime)
	st.FlushOps, st.FlushTime, st.Allocation = s.FlOps, time.Duration(s.FlTime), c.highestOffset()
	var layers []machine.LayerStats
	for i, below := 0, c.Backing; below != nil && i < image.MaxDepth; i, below = i+1, below.Backing {
		layer := machine.LayerStats{}
		if i < len(st.Backing) {
			layer = st.Backing[i] // with the sizes known so far
		}
		layer.Allocation = below.highestOffset()
		layers = append(layers, layer)
	}
	st.Backing = layers
}

// QEMUBlock is the part of QEMU's answer to query-block that Lodge reads.
type QEMUBlock struct {
	QDev     string
	Locked   bool
	TrayOpen bool   `json:"tray_open"`
	IOStatus string `json:"io-status"`
	Inserted *struct {
		File     string
		NodeName string `json:"node-name"`
		Image    blockImage
	}
}

// blockImage is an image that QEMU has open, with the images below it.
type blockImage struct {
	VirtualSize uint64      `json:"virtual-size"`
	ActualSize  uint64      `json:"actual-size"`
	Backing     *blockImage `json:"backing-image"`
}

// BelongsTo reports whether QEMU's id or path of a block device belongs to the device with this alias. Some
// devices show the path of their back end, or of the disk inside them.
func BelongsTo(qdev, alias string) bool {
	if alias == "" {
		return false
	}
	path := "/machine/peripheral/" + alias
	return qdev == alias || qdev == path || strings.HasPrefix(qdev, path+"/")
}

// BlockInfo holds the sizes of one disk, in bytes.
type BlockInfo struct{ Capacity, Allocation, Physical uint64 }

// GetBlockInfo returns the sizes of the disk with that target or path.
func GetBlockInfo(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string) (BlockInfo, error) {
	v := g.View()
	d := FindDiskByName(v.Current(), disk)
	if d == nil {
		return BlockInfo{}, NoDisk(disk)
	}
	if d.Source == nil {
		return BlockInfo{}, fault.New(fault.WrongState, fault.Device, "disk %s has no medium", d.Target)
	}
	info, err := imageSizes(ctx, g.Reg, sc, d)
	if err != nil || v.Active == nil {
		return info, err
	}
	st, err := Stats(ctx, g, time.Second)
	if err != nil {
		return info, nil // the sizes on the host are known even so
	}
	for _, s := range st.Disks {
		if s.Target == d.Target && s.Allocation > 0 && d.Format != "raw" {
			info.Allocation = s.Allocation
		}
	}
	return info, nil
}

// NoDisk refuses a disk that the guest does not have.
func NoDisk(name string) error {
	return fault.New(fault.Invalid, fault.Call, "invalid path '%s' not assigned to domain", name)
}

// FindDiskByName finds a disk by its target or by the path of its source.
func FindDiskByName(def *domain.Definition, name string) *device.Disk {
	if def == nil {
		return nil
	}
	for _, d := range def.Devices.Disks {
		if name != "" && (d.Target == name || d.Source.Path() == name) {
			return d
		}
	}
	return nil
}

// imageSizes reads the sizes from the image itself.
func imageSizes(ctx context.Context, r *machine.Registry, sc scope.Scope, d *device.Disk) (BlockInfo, error) {
	ctx, stop := context.WithTimeout(ctx, machine.QueryLimit)
	defer stop()
	path, format, err := provision.Source(r, d)
	if err != nil {
		return BlockInfo{}, err
	}
	chain, err := image.OpenChain(ctx, sc, path, format)
	if err != nil {
		return BlockInfo{}, err
	}
	defer chain.Close()
	top := chain[0]
	return BlockInfo{Capacity: top.Virtual, Allocation: top.Allocated, Physical: top.Physical}, nil
}

// DiskErrors returns, by target, the disks of a running guest that have failed: "no space" or
// "unspecified".
func DiskErrors(ctx context.Context, g *machine.Guest) (map[string]string, error) {
	r := g.Live.Load()
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, machine.QueryLimit)
	defer stop()
	var blocks []QEMUBlock
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	failed := map[string]string{}
	def := g.View().Active
	if def == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	for _, d := range def.Devices.Disks {
		for _, b := range blocks {
			if !BelongsTo(b.QDev, d.Alias) {
				continue
			}
			switch b.IOStatus {
			case "nospace":
				failed[d.Target] = "no space"
			case "failed":
				failed[d.Target] = "unspecified"
			}
		}
	}
	return failed, nil
}

// DiskByDevice finds a disk by QEMU's name for its device.
func DiskByDevice(r *machine.Instance, qdev string) (path, alias string) {
	for _, d := range r.Definition.Devices.Disks {
		if BelongsTo(qdev, d.Alias) {
			return d.Source.Path(), d.Alias
		}
	}
	return "", ""
}

// DiskByNode finds a disk by the block node that its device uses.
func DiskByNode(r *machine.Instance, node string) (path, alias string) {
	for _, d := range r.Definition.Devices.Disks {
		if d.Source != nil && qemu.TopNode(d) == node {
			return d.Source.Path(), d.Alias
		}
	}
	return "", ""
}
