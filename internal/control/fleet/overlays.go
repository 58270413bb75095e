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

// endTemplate makes a template a plain guest again, unless thin clones use its disks: it would destroy them once
// it is started.
func (f *Fleet) endTemplate(ctx context.Context, sc scope.Scope, g *guest.Guest, sees func(Member) bool) error {
	return g.EndTemplate(ctx, sc, func(ctx context.Context) error { return f.checkNoOverlays(ctx, g.View().Inactive, sees) })
}

// checkNoOverlays returns an error if other images have the disks of a definition as backing files. It names the
// clones that the client can see, and counts the others.
func (f *Fleet) checkNoOverlays(ctx context.Context, d *domain.Definition, sees func(Member) bool) error {
	var names []string
	more := 0
	for _, name := range f.overlays(ctx, d, sees) {
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
	return fault.New(fault.Busy, fault.Domain, "its disks are the backing files of thin clones, which its writes would destroy: %s; remove them and their volumes first", strings.Join(names, ", "))
}

// overlays names the users of the disks of a definition as backing files, in active pools: guests, and volumes
// without a guest. It omits the names of what the client cannot see.
func (f *Fleet) overlays(ctx context.Context, d *domain.Definition, sees func(Member) bool) []string {
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
		for _, v := range f.pools.Overlays(ctx, below) {
			name := ""
			if sees == nil {
				name = v.Pool + "/" + v.Name
			}
			if i := slices.IndexFunc(all, func(m Member) bool { return f.hasDisk(m.View, v) }); i >= 0 && (sees == nil || sees(all[i])) {
				name = fmt.Sprintf("%q", all[i].View.Name)
			}
			if name == "" || !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// hasDisk says whether a volume is a disk of a guest.
func (f *Fleet) hasDisk(guest *guest.View, v *volume.Volume) bool {
	for _, d := range []*domain.Definition{guest.Active, guest.Inactive} {
		if d != nil && slices.ContainsFunc(d.Devices.Disks, func(disk *device.Disk) bool { return f.pathOf(disk) == v.Path }) {
			return true
		}
	}
	return false
}

// pathOf is the path of a disk's data; empty: unknown.
func (f *Fleet) pathOf(disk *device.Disk) string {
	if disk.Source == nil {
		return ""
	}
	if ref := disk.Source.Volume; ref != nil {
		path, _, _ := f.pools.Resolve(ref.Pool, ref.Volume, "") // unknown while the pool is inactive
		return path
	}
	return disk.Source.Path()
}
