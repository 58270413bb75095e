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
		return func() error { return d.updateStored(sc, g) }, nil
	}, nil
}

// awaitDetach waits for the guest to release the device, and for the cleanup. It is no error if this takes
// longer than patience.
func awaitDetach(ctx context.Context, r *machine.Instance, d *DetachOp, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	moved := d.op.Stopped()
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
		moved = rest.Stopped()
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
	follow, err := r.Ops.ForceBegin(scope.Daemon("giving back what a device leaves"), CleanupKind.Name, rest, operation.Record{Objects: rest.QEMUObjects()})
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
	ShrinkNodeList(g)
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
