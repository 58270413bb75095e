package volume

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// volumeGroup is an LVM volume group. LVM's tools read and change it; its metadata are never accessed here.
type volumeGroup struct{ *definition }

// readLogical parses the source of a volume group.
func (d *definition) readLogical(source *xmltree.Element) error {
	if d.format = attr(source.Child("format"), "type"); d.format == "" || d.format == "auto" || d.format == "unknown" {
		d.format = "lvm2"
	}
	if d.format != "lvm2" {
		return fault.New(fault.Invalid, fault.XML, "source format %q is not lvm2", d.format)
	}
	if d.group = source.Child("name").Text(); d.group == "" {
		d.group = d.name
	}
	if err := blockdev.CheckLVMName(fault.Pool, d.group); err != nil {
		return err
	}
	if source != nil {
		for _, e := range source.Elements("device") {
			path, err := cleanPath(e.Attr("path"))
			if err != nil {
				return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable source device", d.name)
			}
			d.devices = append(d.devices, path)
		}
	}
	return d.fixTarget(filepath.Join("/dev", d.group))
}

func (g volumeGroup) run(ctx context.Context, tool string, args ...string) (string, error) {
	return blockdev.RunLVM(ctx, g.group, tool, args...)
}

// build makes the group from its devices. On failure it removes the LVM labels that it wrote.
func (g volumeGroup) build(ctx context.Context, how Build) (err error) {
	if len(g.devices) == 0 {
		return fault.New(fault.Invalid, fault.Config, "name the source devices of volume group %s", g.group)
	}
	if err := blockdev.NeedLVM("vgcreate"); err != nil {
		return err
	}
	for _, device := range g.devices {
		held, err := blockdev.Claim(ctx, device, how == Overwrite)
		if err != nil {
			return err
		}
		defer held.Close()
	}
	var marked []string
	defer func() {
		if err != nil && len(marked) > 0 {
			_, _ = g.run(context.WithoutCancel(ctx), "pvremove", append([]string{"--yes"}, marked...)...) // the first error is reported
		}
	}()
	for _, device := range g.devices {
		if how == Overwrite {
			if _, err := blockdev.Run(ctx, blockdev.ToolTime, "wipefs", "--all", device); err != nil {
				return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot clear %s", device)
			}
		}
		if _, err := g.run(ctx, "pvcreate", "--yes", device); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot prepare %s for LVM", device)
		}
		marked = append(marked, device)
	}
	_, err = g.run(ctx, "vgcreate", append([]string{g.group}, g.devices...)...)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot make volume group %s", g.group)
}

// destroy removes the group, which must be empty, and the LVM labels of its devices.
func (g volumeGroup) destroy(ctx context.Context) error {
	out, err := g.run(ctx, "lvs", "--reportformat", "json", "--all", "--options", "lv_name", g.group)
	if err != nil {
		return err
	}
	left, err := blockdev.ParseReport(out)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fault.New(fault.Exists, fault.Pool, "volume group %s still has %d volumes; delete them first", g.group, len(left))
	}
	members, err := members(ctx, g.group)
	if err != nil {
		return err
	}
	if _, err := g.run(ctx, "vgremove", g.group); err != nil {
		return err
	}
	_, err = g.run(ctx, "pvremove", append([]string{"--yes"}, members...)...)
	return err
}

func (g volumeGroup) attach(ctx context.Context) (fresh bool, err error) {
	nodes, _ := os.ReadDir(g.target) // a group without active volumes has no folder
	_, err = g.run(ctx, "vgchange", "--activate", "y", g.group)
	return err == nil && len(nodes) == 0, fault.Wrap(err, fault.Of(err), fault.About(err), "cannot activate volume group %s", g.group)
}

func (g volumeGroup) detach(ctx context.Context) error {
	_, err := g.run(ctx, "vgchange", "--activate", "n", g.group)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot deactivate volume group %s", g.group)
}

func (g volumeGroup) readContents(ctx context.Context) (poolContents, error) {
	r := poolContents{perms: noPermissions}
	out, err := blockdev.Report(ctx, g.group, "vgs", "vg_name,vg_size,vg_free", g.group)
	if err != nil {
		return r, err
	}
	for _, row := range out {
		r.space.capacity, r.space.available = row.Size("vg_size"), row.Size("vg_free")
		r.space.allocation = r.space.capacity - min(r.space.capacity, r.space.available)
	}
	if out, err = blockdev.Report(ctx, g.group, "lvs", "lv_name,lv_attr,lv_size,origin,origin_size,data_percent,seg_size,vg_extent_size,devices", g.group); err != nil {
		return r, err
	}
	for _, v := range g.volumes(out) {
		there, err := v.readNode()
		if err != nil {
			return r, err
		}
		if there {
			r.volumes = append(r.volumes, v)
		}
	}
	if len(r.volumes) > MaxVolumes {
		return r, fault.New(fault.NoCapacity, fault.Pool, "volume group %s has more than %d volumes", g.group, MaxVolumes)
	}
	sortVolumes(r.volumes)
	return r, nil
}

// Positions in lv_attr (lvs(8)).
const (
	attrType   = 0
	attrActive = 4
	attrsLen   = 6
)

// volumes makes volumes from a report of segments. Inactive volumes have no device, and thin pools are no
// disks: both are left out.
func (g volumeGroup) volumes(report []blockdev.Row) []*Volume {
	var out []*Volume
	byName := map[string]*Volume{}
	for _, r := range report {
		name, attrs := r["lv_name"], r["lv_attr"]
		if blockdev.CheckLVMName(fault.Volume, name) != nil || len(attrs) < attrsLen || attrs[attrActive] != 'a' || strings.IndexByte("tep", attrs[attrType]) >= 0 {
			continue
		}
		v := byName[name]
		if v == nil {
			v = g.volume(name, attrs[attrType], r)
			byName[name] = v
			out = append(out, v)
		}
		v.extents = append(v.extents, r.Extents()...)
	}
	return out
}

func (g volumeGroup) volume(name string, kind byte, r blockdev.Row) *Volume {
	size := r.Size("lv_size")
	v := &Volume{Name: name, Pool: g.name, Path: filepath.Join(g.target, name), Kind: Block, extents: []blockdev.Extent{}}
	v.Info = image.Info{Format: image.Raw, Virtual: size, Allocated: size, Physical: size}
	switch kind {
	case 's', 'S': // lv_size is the space for differences
		v.Virtual, v.Physical = r.Size("origin_size"), r.Size("origin_size")
	case 'V':
		share, err := strconv.ParseFloat(r["data_percent"], 64)
		if err == nil && share >= 0 && share <= 100 {
			v.Allocated = uint64(float64(size) * share / 100)
		}
	}
	if origin := r["origin"]; blockdev.CheckLVMName(fault.Volume, origin) == nil {
		path := filepath.Join(g.target, origin)
		v.Backing, v.backingPath = &image.Backing{Name: path}, path
	}
	return v
}

func (g volumeGroup) add(ctx context.Context, w *volumeRequest) error {
	if err := blockdev.CheckLVMName(fault.Volume, w.name); err != nil {
		return err
	}
	if w.format != image.Raw {
		return fault.New(fault.Unsupported, fault.Config, "a logical volume is raw and not %s", w.format)
	}
	args := []string{"--yes", "--name", w.name}
	if w.backing != nil {
		return g.addSnapshot(ctx, w, args)
	}
	if w.allocation != nil && *w.allocation < *w.capacity && *w.allocation != 0 {
		return fault.New(fault.Unsupported, fault.Config, "thin logical volumes are not supported; omit the allocation, or set it to the capacity")
	}
	_, err := g.run(ctx, "lvcreate", append(args, "--size", inBytes(*w.capacity), g.group)...)
	return err
}

// addSnapshot makes a snapshot of a volume of the same group. The allocation is the space for differences; by
// default it is the origin's size.
func (g volumeGroup) addSnapshot(ctx context.Context, w *volumeRequest, args []string) error {
	dir, origin := filepath.Split(w.backing.Name)
	if filepath.Clean(dir) != g.target || blockdev.CheckLVMName(fault.Volume, origin) != nil {
		return fault.New(fault.Unsupported, fault.Config, "a snapshot's origin must be a volume of the same group, and %s is not in %s", w.backing.Name, g.target)
	}
	out, err := blockdev.Report(ctx, g.group, "lvs", "lv_name,lv_size", g.group+"/"+origin)
	if err != nil {
		return err
	}
	var size uint64
	for _, r := range out {
		size = r.Size("lv_size")
	}
	if w.capacity != nil && *w.capacity != size {
		return fault.New(fault.Unsupported, fault.Config, "a snapshot is as large as its origin, which has %d bytes", size)
	}
	if w.allocation != nil && *w.allocation > 0 {
		size = min(size, *w.allocation)
	}
	_, err = g.run(ctx, "lvcreate", append(args, "--size", inBytes(size), "--snapshot", g.group+"/"+origin)...)
	return err
}

func inBytes(n uint64) string { return strconv.FormatUint(n, 10) + "b" }

func (g volumeGroup) resize(ctx context.Context, v *Volume, size uint64) error {
	switch {
	case v.Backing != nil:
		return fault.New(fault.Unsupported, fault.Volume, "a snapshot is as large as its origin")
	case size == v.Virtual:
		return nil
	case size < v.Virtual:
		_, err := g.run(ctx, "lvreduce", "--yes", "--force", "--size", inBytes(size), g.group+"/"+v.Name)
		return err
	}
	_, err := g.run(ctx, "lvextend", "--size", inBytes(size), g.group+"/"+v.Name)
	return err
}

func (g volumeGroup) remove(ctx context.Context, v *Volume, among []*Volume) error {
	for _, other := range among {
		if other.backingPath == v.Path { // LVM would remove it too
			return fault.New(fault.Busy, fault.Volume, "volume %q is a snapshot of it; delete the snapshot first", other.Name)
		}
	}
	_, err := g.run(ctx, "lvremove", "--yes", g.group+"/"+v.Name)
	return err
}

// members returns the devices of a group.
func members(ctx context.Context, name string) ([]string, error) {
	groups, err := blockdev.GroupDevices(ctx)
	return groups[name], err
}
