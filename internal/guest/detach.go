package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// detachKind asks a running guest to release a device. The guest decides and may take any time. It may
// release the device while no daemon runs. A cleanup then removes the rest of the device.
var detachKind = operation.Kind[*run]{
	Name: "detach", Version: 1, Class: operation.Unplug,
	Steps: []string{"ask", "gone", "define"},
	Bind:  func(r *run) operation.Work { return &detach{r: r} },
}

// detach is the journalled payload of a detachment.
type detach struct {
	Alias string
	Saved string `json:",omitempty"` // the device that the stored definition loses; empty: none

	r       *run
	op      *operation.Operation
	saved   device.Device
	request qemu.Step
	asked   bool // this daemon has asked
	// refused is closed when the guest refuses to release the device. The loop closes it.
	refused chan struct{}
}

// Steps implements operation.Work.
func (d *detach) Steps() []operation.Step {
	return []operation.Step{
		{Name: "ask", Effect: operation.Process, Do: d.ask},
		{Name: "gone", Effect: operation.Process, Decisive: true, Waits: true, Do: d.gone, Probe: d.probe},
		{Name: "define", Effect: operation.Process, Do: d.define},
	}
}

// Opened implements operation.Opener.
func (d *detach) Opened(op *operation.Operation) (err error) {
	d.op, d.refused = op, make(chan struct{})
	if d.saved == nil && d.Saved != "" {
		d.saved, err = domainxml.ParseDevice(d.Saved, domainxml.Options{Active: true})
	}
	return err
}

func (d *detach) ask(ctx context.Context) error {
	d.asked = true
	return d.r.tell(ctx, []qemu.Step{d.request})
}

// askAgain repeats the request, because the earlier daemon may have died before it. A refusal by QEMU means
// that the request was made.
func (d *detach) askAgain(ctx context.Context) error {
	var dev device.Device
	err := d.r.inLoop(ctx, func(*Guest) error { dev = d.r.def.Devices.ByAlias(d.Alias); return nil })
	if dev == nil || err != nil {
		return err
	}
	if d.request, _, err = qemu.Unplug(dev); err != nil {
		return err
	}
	if err := d.ask(ctx); noAnswer(err) {
		return err
	}
	return nil
}

// gone checks whether the guest has released the device, as far as the loop has heard.
func (d *detach) gone(ctx context.Context) error {
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
	return d.r.inLoop(ctx, func(*Guest) error {
		if d.r.def.Devices.ByAlias(d.Alias) != nil {
			return operation.ErrWaiting
		}
		return nil
	})
}

// probe asks QEMU. The guest may have released the device while no daemon ran, and may still do so.
func (d *detach) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	there, err := d.r.hasDevice(ctx, d.Alias)
	switch {
	case err != nil:
		return operation.Never, err
	case there:
		return operation.NotYet, nil
	}
	return operation.Happened, nil
}

// define removes the device from both definitions.
func (d *detach) define(ctx context.Context) error {
	return d.r.inLoop(ctx, func(g *Guest) error {
		g.deviceGone(d.Alias)
		return d.follow(d.op.Scope(), g)
	})
}

// follow removes the device from the stored definition. It runs in the loop.
func (d *detach) follow(sc scope.Scope, g *Guest) error {
	if d.saved == nil {
		return nil
	}
	return g.followOnce(sc, d.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
		dev, err := findLike(&config.Devices, d.saved)
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
func (g *Guest) Detach(ctx context.Context, sc scope.Scope, doc string, a Affect) error {
	like, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	return g.detach(ctx, sc, a, func(s *device.Set) (device.Device, error) { return findLike(s, like) }, false)
}

// DetachAlias detaches the device of that alias, and does not wait for the guest.
func (g *Guest) DetachAlias(ctx context.Context, sc scope.Scope, alias string, a Affect) error {
	return g.detach(ctx, sc, a, func(s *device.Set) (device.Device, error) {
		if d := s.ByAlias(alias); d != nil {
			return d, nil
		}
		return nil, fault.New(fault.NotFound, fault.Device, "no device found with alias %s", alias)
	}, true)
}

// detach plans the removal of the device that find returns. async means not to wait for the guest.
func (g *Guest) detach(ctx context.Context, sc scope.Scope, a Affect, find func(*device.Set) (device.Device, error), async bool) error {
	var stored device.Device
	return g.edit(ctx, sc, a, func() (_ *domain.Definition, err error) {
		config := g.inactive.Clone()
		if stored, err = find(&config.Devices); err != nil {
			return nil, err
		}
		config.Remove(stored)
		return config, nil
	}, func(config *domain.Definition) (work, error) {
		dev, err := find(&g.run.def.Devices)
		if err != nil {
			return nil, err
		}
		if config == nil {
			stored = nil
		}
		return g.planDetach(dev, stored, async)
	})
}

// detachPatience is how long a detach waits for the guest, as libvirt does. The removal continues after
// that, and an event reports its end.
const detachPatience = 5 * time.Second

// planDetach plans to ask the guest for a device. stored is the device that the stored definition loses:
// when the guest releases the device, or when the wait is over.
func (g *Guest) planDetach(dev, stored device.Device, async bool) (work, error) {
	request, _, err := qemu.Unplug(dev)
	if err != nil {
		return nil, err
	}
	r := g.run
	if _, err := r.monitor(); err != nil {
		return nil, err
	}
	d := &detach{r: r, Alias: dev.Common().Alias, saved: stored, request: request}
	if stored != nil {
		if d.Saved, err = domainxml.FormatDevice(stored, domainxml.Style{Secure: true}); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		object := "alias/" + d.Alias
		if earlier := r.ops.Find(detachKind.Name, object); earlier != nil { // ask the guest once more
			_, _ = earlier.Abort(ctx, fault.New(fault.Aborted, fault.Device, "the detachment of device %s was requested again", d.Alias))
		}
		objects := []string{object}
		if disk, is := dev.(*device.Disk); is {
			objects = append(objects, "disk/"+disk.Target)
		}
		err := r.perform(ctx, sc, detachKind.Name, d, objects...)
		if err != nil || d.op.Status().State == operation.Unanswered {
			return nil, err
		}
		if !async {
			err = r.awaitDetach(ctx, d, detachPatience)
		}
		if err != nil {
			return nil, err
		}
		return func() error { return d.follow(sc, g) }, nil
	}, nil
}

// awaitDetach waits for the guest to release the device, and for the cleanup. It is no error if this takes
// longer than patience.
func (r *run) awaitDetach(ctx context.Context, d *detach, patience time.Duration) error {
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
		rest := r.ops.Find(cleanupKind.Name, "alias/"+d.Alias)
		if rest == nil {
			return nil
		}
		moved = rest.Moved()
	}
	return nil
}

// deviceGone removes a device that the guest has released. A cleanup removes QEMU's other objects and the
// host's resources, beside the loop. It runs in the loop.
func (g *Guest) deviceGone(alias string) {
	r := g.run
	dev := r.def.Devices.ByAlias(alias)
	if dev == nil || r.noticed { // what an ended guest held is released as a whole
		return
	}
	rest := r.newCleanup(dev)
	r.Surplus = r.Surplus || g.reg.hasNodes(dev)
	r.shorten = r.Surplus
	g.returnMemory(r.def, dev)
	follow, err := r.ops.Follow(scope.Daemon("giving back what a device leaves"), cleanupKind.Name, rest, operation.Record{Objects: rest.objects()})
	if err != nil {
		g.log.Error("cannot clean up after a removed device", "alias", alias, "error", err)
	}
	g.setActive(func(d *domain.Definition) { d.Remove(d.Devices.ByAlias(alias)) })
	g.keepActive()
	g.announce(event.DomainDeviceRemoved{Alias: alias})
	if follow != nil {
		r.ops.Wake(follow)
	}
	if asked := r.ops.Find(detachKind.Name, "alias/"+alias); asked != nil {
		r.ops.Wake(asked)
	}
	g.shortenNodes()
}

// detachRefused tells the operation that the guest keeps its device. It runs in the loop.
func (g *Guest) detachRefused(alias string) {
	if asked := g.run.ops.Find(detachKind.Name, "alias/"+alias); asked != nil {
		d := asked.Work().(*detach)
		select {
		case <-d.refused:
		default:
			close(d.refused)
		}
		g.run.ops.Wake(asked)
	}
	g.announce(event.DomainDeviceRemovalFailed{Alias: alias})
}
