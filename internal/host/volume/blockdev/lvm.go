package blockdev

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const lvmPackage = "lvm2"

// lvmName matches names that LVM takes for groups and volumes (lvm(8)), and that no tool takes for an option.
var lvmName = regexp.MustCompile(`^[A-Za-z0-9_+.][A-Za-z0-9_+.-]{0,126}$`)

// CheckLVMName refuses a name of a pool or a volume that LVM would refuse.
func CheckLVMName(s fault.Subject, name string) error {
	if !lvmName.MatchString(name) || name == "." || name == ".." {
		return fault.New(fault.Invalid, fault.XML, "%q is no name of a %s for LVM: letters, digits and _ + . - are allowed, and no - at its beginning", name, s)
	}
	return nil
}

// NeedLVM is NeedTool for a tool of LVM.
func NeedLVM(tool string) error { return NeedTool(tool, lvmPackage) }

// RunLVM runs a tool of LVM. It returns fault.NoCapacity if the group has no
// free space left, and fault.Invalid if the host has no such group.
func RunLVM(ctx context.Context, group, tool string, args ...string) (string, error) {
	if err := NeedLVM(tool); err != nil {
		return "", err
	}
	out, err := Run(ctx, ToolTime, tool, args...)
	return out, missingGroup(noSpace(err), group)
}

// noSpace finds the failure for lack of space, which LVM tells only in words.
func noSpace(err error) error {
	if err != nil && strings.Contains(err.Error(), "insufficient free space") {
		return fault.Wrap(err, fault.NoCapacity, fault.Pool, "no free space is left")
	}
	return err
}

// missingGroup finds the failure for a volume group that the host does not have, which LVM tells only in words.
func missingGroup(err error, name string) error {
	if err != nil && strings.Contains(err.Error(), fmt.Sprintf("Volume group %q not found", name)) {
		return fault.New(fault.Invalid, fault.Config, "source/name: this host has no volume group %s; build the pool to make it, or correct the name", name)
	}
	return err
}

// Report runs vgs or lvs on a group, or on GROUP/VOLUME, and returns the rows that it reports. Sizes are in bytes.
func Report(ctx context.Context, group, tool, columns, name string) ([]Row, error) {
	out, err := RunLVM(ctx, group, tool, "--reportformat", "json", "--units", "b", "--nosuffix", "--options", columns, name)
	if err != nil {
		return nil, err
	}
	return ParseReport(out)
}

// Row is a row of a report of LVM: values by column. All values are text.
type Row map[string]string

// Size returns a column in bytes; 0 where LVM leaves it empty because it does not apply.
func (r Row) Size(column string) uint64 {
	n, err := strconv.ParseUint(r[column], 10, 63)
	if err != nil {
		return 0
	}
	return n
}

// ParseReport reads the rows of all tables of a report in JSON (lvmreport(7)).
// LVM names a table by the kind of object in its rows.
func ParseReport(text string) ([]Row, error) {
	var all struct {
		Report []map[string][]Row `json:"report"`
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Pool, "cannot read what LVM reports")
	}
	var out []Row
	for _, tables := range all.Report {
		for _, table := range tables {
			out = append(out, table...)
		}
	}
	return out, nil
}

// Extents reads where a segment lies from the columns devices, seg_size and
// vg_extent_size. The column devices has DEVICE(FIRST) for each stripe,
// separated by commas; FIRST counts extents of the group. A segment may lie on
// other volumes, which have no path: those are left out.
func (r Row) Extents() []Extent {
	stripes := strings.Split(r["devices"], ",")
	unit, length := r.Size("vg_extent_size"), r.Size("seg_size")/uint64(len(stripes))
	var out []Extent
	for _, stripe := range stripes {
		open := strings.LastIndexByte(stripe, '(')
		if !strings.HasPrefix(stripe, "/") || open < 0 || strings.ContainsFunc(stripe, isUnprintable) {
			continue
		}
		first, err := strconv.ParseUint(strings.TrimSuffix(stripe[open+1:], ")"), 10, 40)
		if err != nil || unit == 0 || first > 1<<62/unit {
			continue
		}
		out = append(out, Extent{Device: stripe[:open], Start: first * unit, End: first*unit + length})
	}
	return out
}

// isUnprintable finds what an XML document cannot hold.
func isUnprintable(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }

// GroupDevices returns the devices of all volume groups of the host, by group.
func GroupDevices(ctx context.Context) (map[string][]string, error) {
	if err := NeedLVM("pvs"); err != nil {
		return nil, err
	}
	out, err := Run(ctx, ToolTime, "pvs", "--reportformat", "json", "--options", "pv_name,vg_name")
	if err != nil {
		return nil, err
	}
	devices, err := ParseReport(out)
	groups := map[string][]string{}
	for _, r := range devices {
		if lvmName.MatchString(r["vg_name"]) && !strings.ContainsFunc(r["pv_name"], isUnprintable) {
			groups[r["vg_name"]] = append(groups[r["vg_name"]], r["pv_name"])
		}
	}
	return groups, err
}
