package volume

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// group is an LVM volume group. LVM keeps its names, sizes and changes whole;
// its tools are asked, and its metadata never read or written here.
type group struct{ *definition }

const lvmPackage = "lvm2"

// lvmName is what LVM takes for a group or a volume, and no option of a tool.
var lvmName = regexp.MustCompile(`^[A-Za-z0-9_+.][A-Za-z0-9_+.-]{0,126}$`)

func checkLVMName(s fault.Subject, name string) error {
	if !lvmName.MatchString(name) || name == "." || name == ".." {
		return fault.New(fault.Invalid, fault.XML, "%q is no name of a %s for LVM: letters, digits and _ + . - are allowed, and no - at its beginning", name, s)
	}
	return nil
}

// readLogical understands the source of a volume group.
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
	if err := checkLVMName(fault.Pool, d.group); err != nil {
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

func (g group) run(ctx context.Context, tool string, args ...string) (string, error) {
	if err := needTool(tool, lvmPackage); err != nil {
		return "", err
	}
	out, err := run(ctx, toolTime, tool, args...)
	return out, noGroup(noRoom(err), g.group)
}

// build makes the group of its devices. What fails takes the marks away again
// that it has put on devices.
func (g group) build(ctx context.Context, how Build) (err error) {
	if len(g.devices) == 0 {
		return fault.New(fault.Invalid, fault.Config, "name the source devices to make volume group %s of", g.group)
	}
	if err := needTool("vgcreate", lvmPackage); err != nil {
		return err
	}
	for _, device := range g.devices {
		held, err := blank(ctx, device, how)
		if err != nil {
			return err
		}
		defer held.Close()
	}
	var marked []string
	defer func() {
		if err != nil && len(marked) > 0 {
			_, _ = g.run(context.WithoutCancel(ctx), "pvremove", append([]string{"--yes"}, marked...)...) // the first error is the one to tell
		}
	}()
	for _, device := range g.devices {
		if how == Overwrite {
			if _, err := run(ctx, toolTime, "wipefs", "--all", device); err != nil {
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

// destroy removes the group, which has to be empty, and LVM's marks on its devices.
func (g group) destroy(ctx context.Context) error {
	out, err := g.run(ctx, "lvs", "--reportformat", "json", "--all", "--options", "lv_name", g.group)
	if err != nil {
		return err
	}
	left, err := rows(out)
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

func (g group) attach(ctx context.Context) (fresh bool, err error) {
	nodes, _ := os.ReadDir(g.target) // a group of which no volume is active has none
	_, err = g.run(ctx, "vgchange", "--activate", "y", g.group)
	return err == nil && len(nodes) == 0, fault.Wrap(err, fault.Of(err), fault.About(err), "cannot activate volume group %s", g.group)
}

func (g group) detach(ctx context.Context) error {
	_, err := g.run(ctx, "vgchange", "--activate", "n", g.group)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot deactivate volume group %s", g.group)
}

func (g group) survey(ctx context.Context) (reading, error) {
	r := reading{perms: noPermissions}
	out, err := g.report(ctx, "vgs", "vg_name,vg_size,vg_free", g.group)
	if err != nil {
		return r, err
	}
	for _, row := range out {
		r.space.capacity, r.space.available = row.size("vg_size"), row.size("vg_free")
		r.space.allocation = r.space.capacity - min(r.space.capacity, r.space.available)
	}
	if out, err = g.report(ctx, "lvs", "lv_name,lv_attr,lv_size,origin,origin_size,data_percent,seg_size,vg_extent_size,devices", g.group); err != nil {
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

func (g group) report(ctx context.Context, tool, columns, name string) ([]row, error) {
	out, err := g.run(ctx, tool, "--reportformat", "json", "--units", "b", "--nosuffix", "--options", columns, name)
	if err != nil {
		return nil, err
	}
	return rows(out)
}

// row is a line of a report of LVM's: a value, always text, by column.
type row map[string]string

func (r row) size(column string) uint64 {
	n, err := strconv.ParseUint(r[column], 10, 63)
	if err != nil {
		return 0 // LVM leaves out what does not apply
	}
	return n
}

// rows reads a report. LVM names its tables by what the columns are of.
func rows(text string) ([]row, error) {
	var all struct {
		Report []map[string][]row `json:"report"`
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Pool, "cannot read what LVM reports")
	}
	var out []row
	for _, tables := range all.Report {
		for _, table := range tables {
			out = append(out, table...)
		}
	}
	return out, nil
}

// Places in lv_attr, and what stands there.
const (
	attrType   = 0
	attrActive = 4
	attrsLen   = 6
)

// volumes makes volumes of a report of segments. Volumes that are not active
// have no device, and pools of thin volumes are no disks: both are left out.
func (g group) volumes(report []row) []*Volume {
	var out []*Volume
	byName := map[string]*Volume{}
	for _, r := range report {
		name, attrs := r["lv_name"], r["lv_attr"]
		if checkLVMName(fault.Volume, name) != nil || len(attrs) < attrsLen || attrs[attrActive] != 'a' || strings.IndexByte("tep", attrs[attrType]) >= 0 {
			continue
		}
		v := byName[name]
		if v == nil {
			v = g.volume(name, attrs[attrType], r)
			byName[name] = v
			out = append(out, v)
		}
		v.extents = append(v.extents, extents(r)...)
	}
	return out
}

func (g group) volume(name string, kind byte, r row) *Volume {
	size := r.size("lv_size")
	v := &Volume{Name: name, Pool: g.name, Path: filepath.Join(g.target, name), Kind: Block, extents: []extent{}}
	v.Info = image.Info{Format: image.Raw, Virtual: size, Allocated: size, Physical: size}
	switch kind {
	case 's', 'S': // its size is that of the space for what differs
		v.Virtual, v.Physical = r.size("origin_size"), r.size("origin_size")
	case 'V':
		share, err := strconv.ParseFloat(r["data_percent"], 64)
		if err == nil && share >= 0 && share <= 100 {
			v.Allocated = uint64(float64(size) * share / 100)
		}
	}
	if origin := r["origin"]; lvmName.MatchString(origin) {
		path := filepath.Join(g.target, origin)
		v.Backing, v.backingPath = &image.Backing{Name: path}, path
	}
	return v
}

// extents reads where a segment lies: DEVICE(FIRST) for each stripe, separated
// by commas, in units of the group's extents. Other volumes in their place,
// which have no path, are left out.
func extents(r row) []extent {
	places := strings.Split(r["devices"], ",")
	unit, length := r.size("vg_extent_size"), r.size("seg_size")/uint64(len(places))
	var out []extent
	for _, place := range places {
		open := strings.LastIndexByte(place, '(')
		if !strings.HasPrefix(place, "/") || open < 0 || strings.ContainsFunc(place, isUnprintable) {
			continue
		}
		first, err := strconv.ParseUint(strings.TrimSuffix(place[open+1:], ")"), 10, 40)
		if err != nil || unit == 0 || first > 1<<62/unit {
			continue
		}
		out = append(out, extent{device: place[:open], start: first * unit, end: first*unit + length})
	}
	return out
}

func (g group) add(ctx context.Context, w *wish) error {
	if err := checkLVMName(fault.Volume, w.name); err != nil {
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
		return fault.New(fault.Unsupported, fault.Config, "thin logical volumes are not made; leave out the allocation, or give the capacity")
	}
	_, err := g.run(ctx, "lvcreate", append(args, "--size", inBytes(*w.capacity), g.group)...)
	return err
}

// addSnapshot makes a snapshot of a volume of the same group. The allocation
// is the space for what will differ, all of it where that is not given.
func (g group) addSnapshot(ctx context.Context, w *wish, args []string) error {
	dir, origin := filepath.Split(w.backing.Name)
	if filepath.Clean(dir) != g.target || checkLVMName(fault.Volume, origin) != nil {
		return fault.New(fault.Unsupported, fault.Config, "a logical volume is a snapshot of one of its own group only, and %s is none in %s", w.backing.Name, g.target)
	}
	out, err := g.report(ctx, "lvs", "lv_name,lv_size", g.group+"/"+origin)
	if err != nil {
		return err
	}
	var size uint64
	for _, r := range out {
		size = r.size("lv_size")
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

func (g group) resize(ctx context.Context, v *Volume, size uint64) error {
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

func (g group) remove(ctx context.Context, v *Volume, among []*Volume) error {
	for _, other := range among {
		if other.backingPath == v.Path { // LVM would remove it too
			return fault.New(fault.Busy, fault.Volume, "volume %q is a snapshot of it; delete that first", other.Name)
		}
	}
	_, err := g.run(ctx, "lvremove", "--yes", g.group+"/"+v.Name)
	return err
}

// members gives the devices of a group.
func members(ctx context.Context, name string) ([]string, error) {
	groups, err := groupMembers(ctx)
	return groups[name], err
}

// groupMembers gives the devices of all groups of the host.
func groupMembers(ctx context.Context) (map[string][]string, error) {
	if err := needTool("pvs", lvmPackage); err != nil {
		return nil, err
	}
	out, err := run(ctx, toolTime, "pvs", "--reportformat", "json", "--options", "pv_name,vg_name")
	if err != nil {
		return nil, err
	}
	devices, err := rows(out)
	groups := map[string][]string{}
	for _, r := range devices {
		if lvmName.MatchString(r["vg_name"]) && !strings.ContainsFunc(r["pv_name"], isUnprintable) {
			groups[r["vg_name"]] = append(groups[r["vg_name"]], r["pv_name"])
		}
	}
	return groups, err
}
