package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// maxNamed bounds how many clones an error names.
const maxNamed = 10

// release has a guest be a template no more, unless thin clones lie above its disks, which
// it would destroy once it is started.
func (f *Fleet) release(ctx context.Context, sc scope.Scope, g *guest.Guest, sees func(Member) bool) error {
	return g.EndTemplate(ctx, sc, func(ctx context.Context) error { return f.nothingAbove(ctx, g.View().Inactive, sees) })
}

// nothingAbove refuses what lies above the disks of a definition. Of clones that the client does
// not see it is told how many there are.
func (f *Fleet) nothingAbove(ctx context.Context, d *domain.Definition, sees func(Member) bool) error {
	var names []string
	more := 0
	for _, name := range f.above(ctx, d, sees) {
		if name == "" || len(names) == maxNamed {
			more++
			continue
		}
		names = append(names, name)
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	if len(names) == 0 {
		return nil
	}
	return fault.New(fault.Busy, fault.Domain, "thin clones lie above its disks, and would be destroyed if it wrote to them: %s; remove them with their volumes first", strings.Join(names, ", "))
}

// above names what lies above the disks of a definition, in pools that run: guests, and
// volumes that no guest has. What is not seen has no name.
func (f *Fleet) above(ctx context.Context, d *domain.Definition, sees func(Member) bool) []string {
	var names []string
	if d == nil {
		return nil
	}
	all := f.All()
	for _, disk := range d.Devices.Disks {
		below := f.pathOf(disk)
		if below == "" {
			continue
		}
		for _, v := range f.pools.Above(ctx, below) {
			name := ""
			if sees == nil {
				name = v.Pool + "/" + v.Name
			}
			if i := slices.IndexFunc(all, func(m Member) bool { return f.uses(m.View, v) }); i >= 0 && (sees == nil || sees(all[i])) {
				name = fmt.Sprintf("%q", all[i].View.Name)
			}
			if name == "" || !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// uses says whether a volume is a disk of a guest.
func (f *Fleet) uses(guest *guest.View, v *volume.Volume) bool {
	for _, d := range []*domain.Definition{guest.Active, guest.Inactive} {
		if d != nil && slices.ContainsFunc(d.Devices.Disks, func(disk *device.Disk) bool { return f.pathOf(disk) == v.Path }) {
			return true
		}
	}
	return false
}

// pathOf is where the data of a disk lie; empty: nowhere that is known.
func (f *Fleet) pathOf(disk *device.Disk) string {
	if disk.Source == nil {
		return ""
	}
	if ref := disk.Source.Volume; ref != nil {
		path, _, _ := f.pools.Resolve(ref.Pool, ref.Volume, "") // of a pool that does not run it is not known
		return path
	}
	return disk.Source.Path()
}
