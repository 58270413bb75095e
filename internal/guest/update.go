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

// updateKind changes a running guest in place, and its stored definition: limits and
// bindings, a NIC's link, a display's password, processors, the balloon, words. The
// record decides. What was cut off is made once more, and each part of it may be.
var updateKind = operation.Kind[*run]{
	Name: "update", Version: 1, Class: operation.Change,
	Steps: []string{"tell", "define"},
	Bind:  func(r *run) operation.Work { return &update{r: r} },
}

// update is the payload.
type update struct {
	OfActive, Active string // the running definition without the change, and with it
	OfConfig, Config string `json:",omitempty"` // the same of the stored one; empty: that stays
	// Alias is the NIC or the display that QEMU is told of; empty: none.
	Alias string `json:",omitempty"`
	// VCPUs is how many processors there were before this changes them; 0: it does not.
	VCPUs uint `json:",omitempty"`
	// Balloon is what the guest is asked to be, in bytes; nil: it is not asked.
	Balloon *uint64 `json:",omitempty"`
	// Words is what clients are told of words; then neither QEMU nor the host has a part in it.
	Words *event.DomainMetadata `json:",omitempty"`

	r                *run
	op               *operation.Operation
	ofActive, active *domain.Definition
	ofConfig, config *domain.Definition // nil: the stored one stays
	first            bool               // nobody was told yet
	refused          bool
	have             uint // processors, now; 0: this is not known
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

// update plans a change in place: of the running definition to after, and of the stored
// one to config; nil: that stays. It runs in the loop.
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

// tell has QEMU and the host do what differs. What they refuse is not defined.
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
	if u.have > 0 { // it may have some of the processors
		_ = u.r.inLoop(context.WithoutCancel(ctx), func(g *Guest) error {
			g.setActive(u.count)
			g.keepActive()
			return nil
		})
	}
	return operation.Final(err)
}

// carryOut puts into effect what differs between two definitions.
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

// plug has the guest have its new number of processors. That it lets some go is asked once.
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

// takenBy has the running definition take the change.
func (u *update) takenBy(d *domain.Definition) {
	takeSettings(d, u.ofActive, u.active)
	if u.VCPUs != 0 { // an answer to what was missed may have changed it
		d.VCPUs.Current = min(u.active.VCPUs.Current, d.VCPUs.Max)
	}
}

// count notes how many processors there are. QEMU might say that it has more than it may.
func (u *update) count(d *domain.Definition) {
	if u.have > 0 {
		d.VCPUs.Current = min(u.have, d.VCPUs.Max)
	}
}

// define has both definitions take the change. What the store does not take is not said
// of the running guest either, unless QEMU has been told.
func (u *update) define(ctx context.Context) error {
	if u.refused {
		return nil
	}
	return u.r.inLoop(ctx, func(g *Guest) error {
		err := u.follow(ctx, u.op.Scope(), g)
		if err == nil || u.Words == nil {
			u.note(g)
		}
		return err
	})
}

// follow has the stored definition take the change. It runs in the loop.
func (u *update) follow(ctx context.Context, sc scope.Scope, g *Guest) error {
	if u.config == nil {
		return nil
	}
	return g.followOnce(ctx, sc, u.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
		takeSettings(config, u.ofConfig, u.config)
		return config, nil
	})
}

// note has the running definition take the change. It runs in the loop.
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

// Update changes a device in place: the medium of a drive, the link of a NIC,
// the password of a display.
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
		if err := g.fenceLive(ctx, sc, dev); err != nil {
			return nil, err
		}
		return g.planUpdate(dev, config, force)
	})
}

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
		drive := after.Clone().Devices.ByAlias(before.Common().Alias).(*device.Disk) // it shares nothing with config
		return g.planMedia(before.(*device.Disk), drive, config, force)
	}
	return g.update(&update{Alias: before.Common().Alias}, after, config)
}

// updateLive tells QEMU how a device is to be.
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
