package hotplug

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
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
		{Name: "ask", Effect: operation.Process, Do: d.ask},
		{Name: "gone", Effect: operation.Process, Decisive: true, Waits: true, Do: d.gone, Probe: d.probe},
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

func (d *DetachOp) ask(ctx context.Context) error {
	d.asked = true
	return Tell(ctx, d.r, []qemu.Step{d.request})
}

// askAgain repeats the request, because the earlier daemon may have died before it. A refusal by QEMU means
// that the request was made.
func (d *DetachOp) askAgain(ctx context.Context) error {
	var dev device.Device
	err := d.r.InLoop(ctx, func(*machine.Guest) error { dev = d.r.Definition.Devices.ByAlias(d.Alias); return nil })
	if dev == nil || err != nil {
		return err
	}
	if d.request, _, err = qemu.Unplug(dev); err != nil {
		return err
	}
	if err := d.ask(ctx); machine.NoAnswer(err) {
		return err
	}
	return nil
}

// gone checks whether the guest has released the device, as far as the loop has heard.
func (d *DetachOp) gone(ctx context.Context) error {
	if !d.asked {
		if err := d.askAgain(ctx); err != nil {
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
		return d.follow(d.op.Scope(), g)
	})
}

// follow removes the device from the stored definition. It runs in the loop.
func (d *DetachOp) follow(sc scope.Scope, g *machine.Guest) error {
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

// Detach detaches the device that the document describes. It returns when the guest has been asked, after a
// wait of at most detachPatience. The device is gone when the guest releases it.
func Detach(ctx context.Context, g *machine.Guest, sc scope.Scope, doc string, a machine.Affect) error {
	like, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	return detach(ctx, g, sc, a, func(s *device.Set) (device.Device, error) { return machine.FindMatching(s, like) }, false)
}

// DetachAlias detaches the device of that alias, and does not wait for the guest.
func DetachAlias(ctx context.Context, g *machine.Guest, sc scope.Scope, alias string, a machine.Affect) error {
	return detach(ctx, g, sc, a, func(s *device.Set) (device.Device, error) {
		if d := s.ByAlias(alias); d != nil {
			return d, nil
		}
		return nil, fault.New(fault.NotFound, fault.Device, "no device found with alias %s", alias)
	}, true)
}

// detach plans the removal of the device that find returns. async means not to wait for the guest.
func detach(ctx context.Context, g *machine.Guest, sc scope.Scope, a machine.Affect, find func(*device.Set) (device.Device, error), async bool) error {
	var stored device.Device
	return edit(ctx, g, sc, a, func() (_ *domain.Definition, err error) {
		config := g.Inactive.Clone()
		if stored, err = find(&config.Devices); err != nil {
			return nil, err
		}
		config.Remove(stored)
		return config, nil
	}, func(config *domain.Definition) (machine.Work, error) {
		dev, err := find(&g.Instance.Definition.Devices)
		if err != nil {
			return nil, err
		}
		if config == nil {
			stored = nil
		}
		return planDetach(g, dev, stored, async)
	})
}

// detachPatience is how long a detach waits for the guest, as libvirt does. The removal continues after
// that, and an event reports its end.
const detachPatience = 5 * time.Second

// planDetach plans to ask the guest for a device. stored is the device that the stored definition loses:
// when the guest releases the device, or when the wait is over.
func planDetach(g *machine.Guest, dev, stored device.Device, async bool) (machine.Work, error) {
	request, _, err := qemu.Unplug(dev)
	if err != nil {
		return nil, err
	}
	r := g.Instance
	if _, err := r.Monitor(); err != nil {
		return nil, err
	}
	d := &DetachOp{r: r, Alias: dev.Common().Alias, saved: stored, request: request}
	if stored != nil {
		if d.Saved, err = domainxml.FormatDevice(stored, domainxml.Style{Secure: true}); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		object := "alias/" + d.Alias
		if earlier := r.Ops.Find(DetachKind.Name, object); earlier != nil { // ask the guest once more
			_, _ = earlier.Abort(ctx, fault.New(fault.Aborted, fault.Device, "the detachment of device %s was requested again", d.Alias))
		}
		objects := []string{object}
		if disk, is := dev.(*device.Disk); is {
			objects = append(objects, "disk/"+disk.Target)
		}
		err := r.Perform(ctx, sc, DetachKind.Name, d, objects...)
		if err != nil || d.op.Status().State == operation.Unanswered {
			return nil, err
		}
		if !async {
			err = awaitDetach(ctx, r, d, detachPatience)
		}
		if err != nil {
			return nil, err
		}
		return func() error { return d.follow(sc, g) }, nil
	}, nil
}

// awaitDetach waits for the guest to release the device, and for the cleanup. It is no error if this takes
// longer than patience.
func awaitDetach(ctx context.Context, r *machine.Instance, d *DetachOp, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	moved := d.op.Moved()
	for range 2 {
		select {
		case <-moved:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := d.op.Err(); err != nil {
			return err
		}
		rest := r.Ops.Find(CleanupKind.Name, "alias/"+d.Alias)
		if rest == nil {
			return nil
		}
		moved = rest.Moved()
	}
	return nil
}

// DeviceGone removes a device that the guest has released. A cleanup removes QEMU's other objects and the
// host's resources, beside the loop. It runs in the loop.
func DeviceGone(g *machine.Guest, alias string) {
	r := g.Instance
	dev := r.Definition.Devices.ByAlias(alias)
	if dev == nil || r.ExitHandled { // what an ended guest held is released as a whole
		return
	}
	rest := NewCleanup(r, dev)
	r.Surplus = r.Surplus || provision.HasNodes(g.Reg, dev)
	r.DropNodes = r.Surplus
	provision.ReturnMemory(g, r.Definition, dev)
	follow, err := r.Ops.Follow(scope.Daemon("giving back what a device leaves"), CleanupKind.Name, rest, operation.Record{Objects: rest.QEMUObjects()})
	if err != nil {
		g.Log.Error("cannot clean up after a removed device", "alias", alias, "error", err)
	}
	g.SetActive(func(d *domain.Definition) { d.Remove(d.Devices.ByAlias(alias)) })
	g.WriteActive()
	g.Announce(event.DomainDeviceRemoved{Alias: alias})
	if follow != nil {
		r.Ops.Wake(follow)
	}
	if asked := r.Ops.Find(DetachKind.Name, "alias/"+alias); asked != nil {
		r.Ops.Wake(asked)
	}
	ShortenNodes(g)
}

// DetachRefused tells the operation that the guest keeps its device. It runs in the loop.
func DetachRefused(g *machine.Guest, alias string) {
	if asked := g.Instance.Ops.Find(DetachKind.Name, "alias/"+alias); asked != nil {
		d := asked.Work().(*DetachOp)
		select {
		case <-d.refused:
		default:
			close(d.refused)
		}
		g.Instance.Ops.Wake(asked)
	}
	g.Announce(event.DomainDeviceRemovalFailed{Alias: alias})
}
