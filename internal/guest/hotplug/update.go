package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// UpdateKind changes a running guest in place, and its stored definition: limits and bindings, a NIC's
// link, a display's password, vCPUs, the balloon, metadata. The record decides. An interrupted update is
// repeated, which is safe for each of its parts.
var UpdateKind = operation.Kind[*machine.Instance]{
	Name: "update", Version: 1, Class: operation.Change,
	Steps: []string{"tell", "define"},
	Bind:  func(r *machine.Instance) operation.Work { return &UpdateOp{R: r} },
}

// UpdateOp is the journalled payload of an update.
type UpdateOp struct {
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

	R                    *machine.Instance `json:"-"`
	op                   *operation.Operation
	ofActive, NextActive *domain.Definition `json:"-"`
	ofConfig, config     *domain.Definition // nil: the stored one is unchanged
	first                bool               // no command was sent yet
	refused              bool
	have                 uint // the number of vCPUs now; 0: unknown
}

// Steps implements operation.Work.
func (u *UpdateOp) Steps() []operation.Step {
	define := operation.Step{Name: "define", Effect: operation.Process, Do: u.define}
	if u.Words != nil {
		define.Decisive = true
		return []operation.Step{define}
	}
	return []operation.Step{{Name: "tell", Effect: operation.Process, Decisive: true, Do: u.apply}, define}
}

// Opened implements operation.Opener.
func (u *UpdateOp) Opened(op *operation.Operation) (err error) {
	u.op = op
	if u.NextActive != nil {
		return nil
	}
	read := func(text string, o domainxml.Options) (d *domain.Definition) {
		if err == nil {
			d, err = domainxml.Parse(text, o)
		}
		return d
	}
	running := domainxml.Options{Active: true}
	u.ofActive, u.NextActive = read(u.OfActive, running), read(u.Active, running)
	if u.Config != "" {
		u.ofConfig, u.config = read(u.OfConfig, domainxml.Options{}), read(u.Config, domainxml.Options{})
	}
	return err
}

// UpdateWith plans a change in place: of the running definition to after, and of the stored one to config. Nil:
// the stored one is unchanged. It runs in the loop.
func UpdateWith(g *machine.Guest, u *UpdateOp, after, config *domain.Definition) (_ machine.Work, err error) {
	r := g.Instance
	u.R, u.first, u.NextActive, u.ofActive, u.OfActive = r, true, after, r.Definition, r.XML
	if u.Active, err = r.FormatForRecord(after); err != nil {
		return nil, err
	}
	if config != nil {
		u.config, u.ofConfig, u.OfConfig = config, g.Inactive, g.Record.XML
		if u.Config, err = domainxml.Format(config, domainxml.Style{Secure: true}); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		if u.Words == nil {
			if _, err := r.Monitor(); err != nil {
				return nil, err
			}
		}
		return nil, r.Perform(ctx, sc, UpdateKind.Name, u, "settings")
	}, nil
}

// apply applies the differences in QEMU and on the host. A change that they refuse is not defined.
func (u *UpdateOp) apply(ctx context.Context) error {
	s, err := u.R.Monitor()
	if err != nil {
		return err
	}
	var before *domain.Definition
	if err := u.R.InLoop(ctx, func(*machine.Guest) error { before = u.R.Definition; return nil }); err != nil {
		return err
	}
	after := before.Clone()
	u.applyTo(after)
	err = u.applyDifferences(ctx, s, before, after)
	u.first = false
	if err == nil || machine.NoAnswer(err) {
		return err
	}
	u.refused = true
	if u.have > 0 { // some of the vCPUs may have been attached
		_ = u.R.InLoop(context.WithoutCancel(ctx), func(g *machine.Guest) error {
			g.SetActive(u.recordVCPUs)
			g.WriteActive()
			return nil
		})
	}
	return operation.Final(err)
}

// applyDifferences applies the differences between two definitions.
func (u *UpdateOp) applyDifferences(ctx context.Context, s *qmp.Session, before, after *domain.Definition) error {
	r := u.R
	if err := applyTuning(ctx, r.Reg, r, before, after); err != nil {
		if !machine.NoAnswer(err) {
			revertTuning(ctx, r, before, after)
		}
		return err
	}
	if dev := after.Devices.ByAlias(u.Alias); u.Alias != "" && dev != nil {
		if err := updateLive(ctx, s, dev); err != nil {
			return err
		}
	}
	if u.Balloon != nil {
		if err := setBalloon(ctx, s, *u.Balloon); err != nil {
			return err
		}
	}
	return u.setVCPUs(ctx, s, after)
}

// setVCPUs attaches or detaches vCPUs. The guest is asked to release vCPUs only once.
func (u *UpdateOp) setVCPUs(ctx context.Context, s *qmp.Session, after *domain.Definition) (err error) {
	if u.VCPUs == 0 || !u.first && u.VCPUs >= after.VCPUs.Current {
		return nil
	}
	u.have, err = plugVCPUs(ctx, s, after.VCPUs.Current)
	if err != nil || u.have <= u.VCPUs {
		return err
	}
	return provision.SettleVCPUs(ctx, u.R.Reg, s, u.R, after)
}

// applyTo applies the change to a running definition.
func (u *UpdateOp) applyTo(d *domain.Definition) {
	machine.MergeSettings(d, u.ofActive, u.NextActive)
	if u.VCPUs != 0 { // a resync may have changed the number
		d.VCPUs.Current = min(u.NextActive.VCPUs.Current, d.VCPUs.Max)
	}
}

// recordVCPUs records how many vCPUs there are. QEMU may report more than the maximum.
func (u *UpdateOp) recordVCPUs(d *domain.Definition) {
	if u.have > 0 {
		d.VCPUs.Current = min(u.have, d.VCPUs.Max)
	}
}

// define applies the change to both definitions. If the store refuses the change, the running definition
// does not change either, unless QEMU has applied it.
func (u *UpdateOp) define(ctx context.Context) error {
	if u.refused {
		return nil
	}
	return u.R.InLoop(ctx, func(g *machine.Guest) error {
		err := u.updateStored(u.op.Scope(), g)
		if err == nil || u.Words == nil {
			u.updateActive(g)
		}
		if u.Balloon != nil {
			keepAsked(g, *u.Balloon)
		}
		return err
	})
}

// updateStored applies the change to the stored definition. It runs in the loop.
func (u *UpdateOp) updateStored(sc scope.Scope, g *machine.Guest) error {
	if u.config == nil {
		return nil
	}
	return provision.FollowOnce(g, sc, u.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
		machine.MergeSettings(config, u.ofConfig, u.config)
		return config, nil
	})
}

// updateActive applies the change to the running definition. It runs in the loop.
func (u *UpdateOp) updateActive(g *machine.Guest) {
	before := g.Instance.Definition
	g.SetActive(func(d *domain.Definition) {
		u.applyTo(d)
		u.recordVCPUs(d)
	})
	g.State.Policy = machine.Policy(g.Instance.Definition)
	g.WriteActive()
	if changed := changedSettings(before, g.Instance.Definition); len(changed) > 0 {
		g.Announce(event.DomainTunable{Settings: changed})
	}
	if u.Words != nil {
		g.Announce(*u.Words)
	}
}

// Update changes a device in place: the medium of a drive, the link of a NIC, the password of a display.
func Update(ctx context.Context, g *machine.Guest, sc scope.Scope, doc string, a machine.Affect, force bool) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	if display, is := dev.(*device.Graphics); is {
		if err := qemu.CheckPassword(display); err != nil {
			return err
		}
	}
	return edit(ctx, g, sc, a, func() (*domain.Definition, error) {
		config := g.Inactive.Clone()
		return config, updateIn(&config.Devices, dev)
	}, func(config *domain.Definition) (machine.Work, error) {
		if err := provision.SetDevicePathLimits(g, sc, dev); err != nil {
			return nil, err
		}
		return planUpdate(g, dev, config, force)
	})
}

// planUpdate plans to change a device of the running guest in place.
func planUpdate(g *machine.Guest, dev device.Device, config *domain.Definition, force bool) (machine.Work, error) {
	r := g.Instance
	before, err := machine.FindMatching(&r.Definition.Devices, dev)
	if err != nil {
		return nil, err
	}
	after := r.Definition.Clone()
	if err := updateIn(&after.Devices, dev); err != nil {
		return nil, err
	}
	if _, is := before.(*device.Disk); is {
		drive := after.Clone().Devices.ByAlias(before.Common().Alias).(*device.Disk) // a copy, which shares nothing with config
		return planMedia(g, before.(*device.Disk), drive, config, force)
	}
	return UpdateWith(g, &UpdateOp{Alias: before.Common().Alias}, after, config)
}

// updateLive sends QEMU the new settings of a device.
func updateLive(ctx context.Context, s *qmp.Session, after device.Device) error {
	switch after := after.(type) {
	case *device.NIC:
		return s.Execute(ctx, "set_link", map[string]any{"name": after.Alias, "up": after.Link != "down"}, nil)
	case *device.Graphics:
		for _, step := range qemu.Passwords(after) {
			if err := machine.Execute(ctx, s, step); err != nil {
				return err
			}
		}
		return nil
	}
	return fault.New(fault.Unsupported, fault.Config, "cannot update a running domain's %s", after.Kind())
}
