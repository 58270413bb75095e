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

// detachKind asks a running guest for a device. The guest decides, and may take for
// ever; it may let go while no daemon listens. What stays behind the device is taken
// away by a cleanup.
var detachKind = operation.Kind[*run]{
	Name: "detach", Version: 1, Class: operation.Unplug,
	Steps: []string{"ask", "gone", "define"},
	Bind:  func(r *run) operation.Work { return &detach{r: r} },
}

// detach is the payload.
type detach struct {
	Alias string
	Saved string `json:",omitempty"` // the device that the stored definition loses; empty: none

	r       *run
	op      *operation.Operation
	saved   device.Device
	request qemu.Step
	asked   bool // by this daemon
	// refused says that the guest keeps the device; the loop's word.
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

// askAgain asks in place of a daemon that may not have lived to. That QEMU refuses says
// that it did.
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

// gone looks whether the guest has let go, as far as the loop has heard.
func (d *detach) gone(ctx context.Context) error {
	if !d.asked {
		if err := d.askAgain(ctx); err != nil {
			return err
		}
	}
	select {
	case <-d.refused:
		return fault.New(fault.Failed, fault.Device, "the guest refuses to let device %s go", d.Alias)
	default:
	}
	return d.r.inLoop(ctx, func(*Guest) error {
		if d.r.def.Devices.ByAlias(d.Alias) != nil {
			return operation.ErrWaiting
		}
		return nil
	})
}

// probe asks QEMU: the guest may have let go while nobody listened, and may still.
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

// define has both definitions lose the device.
func (d *detach) define(ctx context.Context) error {
	return d.r.inLoop(ctx, func(g *Guest) error {
		g.deviceGone(d.Alias)
		return d.follow(ctx, d.op.Scope(), g)
	})
}

// follow has the stored definition lose its device. It runs in the loop.
func (d *detach) follow(ctx context.Context, sc scope.Scope, g *Guest) error {
	if d.saved == nil {
		return nil
	}
	return g.followOnce(ctx, sc, d.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
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

// Detach removes the device that the document describes. It returns when QEMU
// has asked the guest; the device is gone when the guest lets it go, which is
// waited for a little.
func (g *Guest) Detach(ctx context.Context, sc scope.Scope, doc string, a Affect) error {
	like, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	return g.detach(ctx, sc, a, func(s *device.Set) (device.Device, error) { return findLike(s, like) }, false)
}

// DetachAlias removes the device of that alias, and waits for nothing.
func (g *Guest) DetachAlias(ctx context.Context, sc scope.Scope, alias string, a Affect) error {
	return g.detach(ctx, sc, a, func(s *device.Set) (device.Device, error) {
		if d := s.ByAlias(alias); d != nil {
			return d, nil
		}
		return nil, fault.New(fault.NotFound, fault.Device, "no device found with alias %s", alias)
	}, true)
}

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

// detachPatience is how long a detach waits for the guest to let go, as libvirt
// does. The removal goes on after that, and its event tells of it.
const detachPatience = 5 * time.Second

// planDetach plans to ask the guest for a device. Stored is what the stored
// definition loses: as soon as the guest lets go, or has been waited for.
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
		if earlier := r.ops.Find(detachKind.Name, object); earlier != nil { // the guest is asked once more
			_, _ = earlier.Abort(ctx, fault.New(fault.Aborted, fault.Device, "the device %s was asked for once more", d.Alias))
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
		return func() error { return d.follow(ctx, sc, g) }, nil
	}, nil
}

// awaitDetach waits for the guest to let go, and for what stays behind the device to
// be taken away. That it takes longer is no failure.
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

// deviceGone takes a device out that the guest has let go: QEMU's other objects
// for it and what the host held for it follow, beside the loop. It runs in the loop.
func (g *Guest) deviceGone(alias string) {
	r := g.run
	dev := r.def.Devices.ByAlias(alias)
	if dev == nil || r.noticed { // what an ended guest held is given back as a whole
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
