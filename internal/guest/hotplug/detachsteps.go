package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DetachKind asks a running guest to release a device. The guest decides and may take any time. It may
// release the device while no daemon runs. A cleanup then removes the rest of the device.
var DetachKind = operation.Kind[*machine.Instance]{
	Name: "detach", Version: 1, Class: operation.Unplug,
	Steps: []string{"ask", "gone", "define"},
	Bind:  func(r *machine.Instance) operation.Work { return &DetachOp{r: r} },
}

// DetachOp is the journalled payload of a detachment.
type DetachOp struct {
	Alias string
	Saved string `json:",omitempty"` // the device that the stored definition loses; empty: none

	r       *machine.Instance
	op      *operation.Operation
	saved   device.Device
	request qemu.Step
	asked   bool // this daemon has asked
	// refused is closed when the guest refuses to release the device. The loop closes it.
	refused chan struct{}
}

// Steps implements operation.Work.
func (d *DetachOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "ask", Effect: operation.Process, Do: d.requestUnplug},
		{Name: "gone", Effect: operation.Process, Decisive: true, Waits: true, Do: d.checkReleased, Probe: d.probe},
		{Name: "define", Effect: operation.Process, Do: d.define},
	}
}

// Opened implements operation.Opener.
func (d *DetachOp) Opened(op *operation.Operation) (err error) {
	d.op, d.refused = op, make(chan struct{})
	if d.saved == nil && d.Saved != "" {
		d.saved, err = domainxml.ParseDevice(d.Saved, domainxml.Options{Active: true})
	}
	return err
}

func (d *DetachOp) requestUnplug(ctx context.Context) error {
	d.asked = true
	return ExecuteSteps(ctx, d.r, []qemu.Step{d.request})
}

// repeatUnplug repeats the request, because the earlier daemon may have died before it. A refusal by QEMU means
// that the request was made.
func (d *DetachOp) repeatUnplug(ctx context.Context) error {
	var dev device.Device
	err := d.r.InLoop(ctx, func(*machine.Guest) error { dev = d.r.Definition.Devices.ByAlias(d.Alias); return nil })
	if dev == nil || err != nil {
		return err
	}
	if d.request, _, err = qemu.Unplug(dev); err != nil {
		return err
	}
	if err := d.requestUnplug(ctx); machine.NoAnswer(err) {
		return err
	}
	return nil
}

// checkReleased checks whether the guest has released the device, as far as the loop has heard.
func (d *DetachOp) checkReleased(ctx context.Context) error {
	if !d.asked {
		if err := d.repeatUnplug(ctx); err != nil {
			return err
		}
	}
	select {
	case <-d.refused:
		return fault.New(fault.Failed, fault.Device, "the guest refuses to release device %s", d.Alias)
	default:
	}
	return d.r.InLoop(ctx, func(*machine.Guest) error {
		if d.r.Definition.Devices.ByAlias(d.Alias) != nil {
			return operation.ErrWaiting
		}
		return nil
	})
}

// probe asks QEMU. The guest may have released the device while no daemon ran, and may still do so.
func (d *DetachOp) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	there, err := hasDevice(ctx, d.r, d.Alias)
	switch {
	case err != nil:
		return operation.Never, err
	case there:
		return operation.NotYet, nil
	}
	return operation.Happened, nil
}

// define removes the device from both definitions.
func (d *DetachOp) define(ctx context.Context) error {
	return d.r.InLoop(ctx, func(g *machine.Guest) error {
		DeviceGone(g, d.Alias)
		return d.updateStored(d.op.Scope(), g)
	})
}

// updateStored removes the device from the stored definition. It runs in the loop.
func (d *DetachOp) updateStored(sc scope.Scope, g *machine.Guest) error {
	if d.saved == nil {
		return nil
	}
	return provision.FollowOnce(g, sc, d.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
		dev, err := machine.FindMatching(&config.Devices, d.saved)
		if fault.Is(err, fault.NotFound) {
			return config, nil
		}
		if err == nil {
			config.Remove(dev)
		}
		return config, err
	})
}
