package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/image"
)

// fence notes which folders the disks of a definition are held to: those of the
// client that brings them, and what was noted before for those that stay. A client
// that may write an image could else make it lead elsewhere later. It runs in
// the loop, before the definition is stored.
func (g *Guest) fence(ctx context.Context, def *domain.Definition) {
	folders := image.FenceOf(ctx)
	if folders == nil && len(g.record.Fences) == 0 {
		return
	}
	there := map[string]bool{}
	if g.inactive != nil {
		for _, d := range g.inactive.Devices.Disks {
			there[sourceOf(d)] = true
		}
	}
	fences := map[string][]string{}
	for _, d := range def.Devices.Disks {
		source := sourceOf(d)
		if held, known := g.record.Fences[source]; there[source] && known {
			fences[source] = held
		} else if !there[source] && folders != nil {
			fences[source] = folders
		}
	}
	delete(fences, "")
	g.record.Fences = fences
}

// fenced bounds the opening of a disk by what was noted for it.
func fenced(ctx context.Context, fences map[string][]string, d *device.Disk) context.Context {
	if folders, held := fences[sourceOf(d)]; held {
		return image.WithFence(ctx, folders)
	}
	return ctx
}

// sourceOf names what is behind a disk; empty: nothing.
func sourceOf(d *device.Disk) string {
	switch {
	case d.Source == nil:
		return ""
	case d.Source.Volume != nil:
		return "pool:" + d.Source.Volume.Pool + "/" + d.Source.Volume.Volume
	}
	return d.Source.Path()
}
