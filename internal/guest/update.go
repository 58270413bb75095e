package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// updateKind changes a running guest in place, and its stored definition: limits and bindings, a NIC's
// link, a display's password, vCPUs, the balloon, metadata. The record decides. An interrupted update is
// repeated, which is safe for each of its parts.
var updateKind = operation.Kind[*run]{
	Name: "update", Version: 1, Class: operation.Change,
	Steps: []string{"tell", "define"},
	Bind:  func(r *run) operation.Work { return &update{r: r} },
}

// update is the journalled payload of an update.
type update struct {
	OfActive, Active string // the running definition without the change, and with it
	OfConfig, Config string `json:",omitempty"` // the same for the stored one; empty: unchanged
	// Alias is the NIC or display to change in QEMU. Empty: none.
	Alias string `json:",omitempty"`
	// VCPUs is the number of vCPUs before the change. 0: the update does not change it.
	VCPUs uint `json:",omitempty"`
	// Balloon is the size in bytes that the balloon is set to. Nil: it is not set.
	Balloon *uint64 `json:",omitempty"`
	// Words is the event for a change of metadata. Then neither QEMU nor the host is involved.
	Words *event.DomainMetadata `json:",omitempty"`

	r                *run
	op               *operation.Operation
	ofActive, active *domain.Definition
	ofConfig, config *domain.Definition // nil: the stored one is unchanged
	first            bool               // no command was sent yet
	refused          bool
	have             uint // the number of vCPUs now; 0: unknown
}

// Steps implements operation.Work.
func (u *update) Steps() []operation.Step {
	define := operation.Step{Name: "define", Effect: operation.Process, Do: u.define}
	if u.Words != nil {
		define.Decisive = true
		return []operation.Step{define}
	}
	return []operation.Step{{Name: "tell", Effect: operation.Process, Decisive: true, Do: u.tell}, define}
}

// Opened implements operation.Opener.
func (u *update) Opened(op *operation.Operation) (err error) {
	u.op = op
	if u.active != nil {
		return nil
	}
	read := func(text string, o domainxml.Options) (d *domain.Definition) {
		if err == nil {
			d, err = domainxml.Parse(text, o)
		}
		return d
	}
	running := domainxml.Options{Active: true}
	u.ofActive, u.active = read(u.OfActive, running), read(u.Active, running)
	if u.Config != "" {
		u.ofConfig, u.config = read(u.OfConfig, domainxml.Options{}), read(u.Config, domainxml.Options{})
	}
	return err
}

// update plans a change in place: of the running definition to after, and of the stored one to config. Nil:
// the stored one is unchanged. It runs in the loop.
func (g *Guest) update(u *update, after, config *domain.Definition) (_ work, err error) {
	r := g.run
	u.r, u.first, u.active, u.ofActive, u.OfActive = r, true, after, r.def, r.XML
	if u.Active, err = r.text(after); err != nil {
		return nil, err
	}
	if config != nil {
		u.config, u.ofConfig, u.OfConfig = config, g.inactive, g.record.XML
		if u.Config, err = domainxml.Format(config, domainxml.Style{Secure: true}); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		if u.Words == nil {
			if _, err := r.monitor(); err != nil {
				return nil, err
			}
		}
		return nil, r.perform(ctx, sc, updateKind.Name, u, "settings")
	}, nil
}

// tell applies the differences in QEMU and on the host. A change that they refuse is not defined.
func (u *update) tell(ctx context.Context) error {
	s, err := u.r.monitor()
	if err != nil {
		return err
	}
	var before *domain.Definition
	if err := u.r.inLoop(ctx, func(*Guest) error { before = u.r.def; return nil }); err != nil {
		return err
	}
	after := before.Clone()
	u.takenBy(after)
	err = u.carryOut(ctx, s, before, after)
	u.first = false
	if err == nil || noAnswer(err) {
		return err
	}
	u.refused = true
	if u.have > 0 { // some of the vCPUs may have been attached
		_ = u.r.inLoop(context.WithoutCancel(ctx), func(g *Guest) error {
			g.setActive(u.count)
			g.keepActive()
			return nil
		})
	}
	return operation.Final(err)
}

// carryOut applies the differences between two definitions.
func (u *update) carryOut(ctx context.Context, s *qmp.Session, before, after *domain.Definition) error {
	r := u.r
	if err := r.reg.retune(ctx, r, before, after); err != nil {
		if !noAnswer(err) {
			r.retuneBack(ctx, before, after)
		}
		return err
	}
	if dev := after.Devices.ByAlias(u.Alias); u.Alias != "" && dev != nil {
		if err := updateLive(ctx, s, dev); err != nil {
			return err
		}
	}
	if u.Balloon != nil {
		if err := s.Execute(ctx, "balloon", map[string]any{"value": *u.Balloon}, nil); err != nil {
			return err
		}
	}
	return u.plug(ctx, s, after)
}

// plug attaches or detaches vCPUs. The guest is asked to release vCPUs only once.
func (u *update) plug(ctx context.Context, s *qmp.Session, after *domain.Definition) (err error) {
	if u.VCPUs == 0 || !u.first && u.VCPUs >= after.VCPUs.Current {
		return nil
	}
	u.have, err = plugVCPUs(ctx, s, after.VCPUs.Current)
	if err != nil || u.have <= u.VCPUs {
		return err
	}
	return u.r.reg.settleVCPUs(ctx, s, u.r, after)
}

// takenBy applies the change to a running definition.
func (u *update) takenBy(d *domain.Definition) {
	takeSettings(d, u.ofActive, u.active)
	if u.VCPUs != 0 { // a resync may have changed the number
		d.VCPUs.Current = min(u.active.VCPUs.Current, d.VCPUs.Max)
	}
}

// count records how many vCPUs there are. QEMU may report more than the maximum.
func (u *update) count(d *domain.Definition) {
	if u.have > 0 {
		d.VCPUs.Current = min(u.have, d.VCPUs.Max)
	}
}

// define applies the change to both definitions. If the store refuses the change, the running definition
// does not change either, unless QEMU has applied it.
func (u *update) define(ctx context.Context) error {
	if u.refused {
		return nil
	}
	return u.r.inLoop(ctx, func(g *Guest) error {
		err := u.follow(u.op.Scope(), g)
		if err == nil || u.Words == nil {
			u.note(g)
		}
		return err
	})
}

// follow applies the change to the stored definition. It runs in the loop.
func (u *update) follow(sc scope.Scope, g *Guest) error {
	if u.config == nil {
		return nil
	}
	return g.followOnce(sc, u.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
		takeSettings(config, u.ofConfig, u.config)
		return config, nil
	})
}

// note applies the change to the running definition. It runs in the loop.
func (u *update) note(g *Guest) {
	before := g.run.def
	g.setActive(func(d *domain.Definition) {
		u.takenBy(d)
		u.count(d)
	})
	g.state.Policy = policy(g.run.def)
	g.keepActive()
	if changed := settings(before, g.run.def); len(changed) > 0 {
		g.announce(event.DomainTunable{Settings: changed})
	}
	if u.Words != nil {
		g.announce(*u.Words)
	}
}

// Update changes a device in place: the medium of a drive, the link of a NIC, the password of a display.
func (g *Guest) Update(ctx context.Context, sc scope.Scope, doc string, a Affect, force bool) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	if display, is := dev.(*device.Graphics); is {
		if err := qemu.CheckPassword(display); err != nil {
			return err
		}
	}
	return g.edit(ctx, sc, a, func() (*domain.Definition, error) {
		config := g.inactive.Clone()
		return config, updateIn(&config.Devices, dev)
	}, func(config *domain.Definition) (work, error) {
		if err := g.fenceLive(sc, dev); err != nil {
			return nil, err
		}
		return g.planUpdate(dev, config, force)
	})
}

// planUpdate plans to change a device of the running guest in place.
func (g *Guest) planUpdate(dev device.Device, config *domain.Definition, force bool) (work, error) {
	r := g.run
	before, err := findLike(&r.def.Devices, dev)
	if err != nil {
		return nil, err
	}
	after := r.def.Clone()
	if err := updateIn(&after.Devices, dev); err != nil {
		return nil, err
	}
	if _, is := before.(*device.Disk); is {
		drive := after.Clone().Devices.ByAlias(before.Common().Alias).(*device.Disk) // a copy, which shares nothing with config
		return g.planMedia(before.(*device.Disk), drive, config, force)
	}
	return g.update(&update{Alias: before.Common().Alias}, after, config)
}

// updateLive sends QEMU the new settings of a device.
func updateLive(ctx context.Context, s *qmp.Session, after device.Device) error {
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
