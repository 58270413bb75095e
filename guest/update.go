package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// Update changes a device in place: the medium of a drive, the link of a NIC,
// the password of a display.
func (g *Guest) Update(ctx context.Context, doc string, a Affect, force bool) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	if display, is := dev.(*device.Graphics); is {
		if err := qemu.CheckPassword(display); err != nil {
			return err
		}
	}
	return g.edit(ctx, a, func() (*domain.Definition, error) {
		config := g.inactive.Clone()
		return config, updateIn(&config.Devices, dev)
	}, func(config *following) (work, error) {
		if err := g.fenceLive(ctx, dev); err != nil {
			return nil, err
		}
		return g.planUpdate(dev, config, force)
	})
}

func (g *Guest) planUpdate(dev device.Device, config *following, force bool) (work, error) {
	r := g.run
	before, err := findLike(&r.def.Devices, dev)
	if err != nil {
		return nil, err
	}
	after := r.def.Clone()
	if err := updateIn(&after.Devices, dev); err != nil {
		return nil, err
	}
	changed := after.Clone().Devices.ByAlias(before.Common().Alias) // it shares nothing with config
	if drive, is := changed.(*device.Disk); is {
		return g.planMedia(before.(*device.Disk), drive, config, force)
	}
	return g.amend(r, &amending{}, after, config, func(ctx context.Context, _ *qmp.Session) (func(), error) {
		if err := g.updateLive(ctx, r, changed); err != nil {
			return nil, err
		}
		return func() {
			g.setActive(func(d *domain.Definition) {
				if err := updateIn(&d.Devices, changed); err != nil {
					g.log.Error("cannot note an updated device", "error", err)
				}
			})
		}, nil
	}), nil
}

// updateLive does an update to the running guest, beside the loop.
func (g *Guest) updateLive(ctx context.Context, r *run, after device.Device) error {
	s, err := r.monitor()
	if err != nil {
		return err
	}
	switch after := after.(type) {
	case *device.NIC:
		return s.Execute(ctx, "set_link", map[string]any{"name": after.Alias, "up": after.Link != "down"}, nil)
	case *device.Graphics:
		for _, step := range qemu.Passwords(after) {
			if err := execute(ctx, s, step); err != nil {
				return err
			}
		}
		return nil
	}
	return fault.New(fault.Unsupported, fault.Config, "cannot update a running domain's %s", after.Kind())
}
