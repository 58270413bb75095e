package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
	"github.com/lodge-kvm/lodge/qemu"
)

// Detach removes the device that the document describes. It returns when QEMU
// has asked the guest; the device is gone when the guest lets it go, which is
// waited for a little.
func (g *Guest) Detach(ctx context.Context, doc string, a Affect) error {
	like, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	return g.detach(ctx, a, func(s *device.Set) (device.Device, error) { return findLike(s, like) }, false)
}

// DetachAlias removes the device of that alias, and waits for nothing.
func (g *Guest) DetachAlias(ctx context.Context, alias string, a Affect) error {
	return g.detach(ctx, a, func(s *device.Set) (device.Device, error) {
		if d := s.ByAlias(alias); d != nil {
			return d, nil
		}
		return nil, fault.New(fault.NotFound, fault.Device, "no device found with alias %s", alias)
	}, true)
}

func (g *Guest) detach(ctx context.Context, a Affect, find func(*device.Set) (device.Device, error), async bool) error {
	var stored device.Device
	return g.edit(ctx, a, func() (_ *domain.Definition, err error) {
		config := g.inactive.Clone()
		if stored, err = find(&config.Devices); err != nil {
			return nil, err
		}
		config.Remove(stored)
		return config, nil
	}, func(config *following) (work, error) {
		dev, err := find(&g.run.def.Devices)
		if err != nil {
			return nil, err
		}
		also, err := g.newTwin(stored, config)
		if err != nil {
			return nil, err
		}
		return g.planUnplug(dev, also, async)
	})
}

// unplugPatience is how long a detach waits for the guest to let go, as libvirt
// does. The removal goes on after that, and its event tells of it.
const unplugPatience = 5 * time.Second

// removal is a device that QEMU was asked to remove. The channel gets one answer.
type removal struct{ result chan error }

// planUnplug plans to ask the guest for a device. Also is what goes with it in the
// stored definition: as soon as the guest lets go, or has been waited for.
func (g *Guest) planUnplug(dev device.Device, also twin, async bool) (work, error) {
	request, _, err := qemu.Unplug(dev)
	if err != nil {
		return nil, err
	}
	r, alias := g.run, dev.Common().Alias
	if _, err := r.monitor(); err != nil {
		return nil, err
	}
	if err := g.beginParting(alias, also); err != nil {
		return nil, err
	}
	wait := &removal{result: make(chan error, 1)}
	r.removals[alias] = wait
	return func(ctx context.Context) (settle, error) {
		s, err := r.monitor()
		if err == nil {
			err = execute(ctx, s, request)
		}
		unknown := unanswered(err)
		if err == nil {
			failpoint.Reach("unplug.asked")
			if !async {
				err = wait.within(ctx, unplugPatience)
			}
		}
		return func() error {
			switch {
			case err == nil:
				failed := g.part(alias)
				if failed != nil && r.def.Devices.ByAlias(alias) == nil {
					g.endParting(alias)
				}
				return failed
			case !unknown:
				g.endParting(alias)
			}
			return nil
		}, err
	}, nil
}

// within waits for the guest to let go. That it takes longer is no failure.
func (w *removal) within(ctx context.Context, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case err := <-w.result:
		return err
	case <-late.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deviceGone takes a device out that the guest has let go: QEMU's other objects
// for it and what the host held for it follow, beside the loop.
func (g *Guest) deviceGone(alias string) {
	r := g.run
	dev := r.def.Devices.ByAlias(alias)
	if dev == nil || r.noticed { // what an ended guest held is given back as a whole
		return
	}
	_, after, err := qemu.Unplug(dev)
	if err != nil {
		g.log.Error("cannot clean up after a removed device", "alias", alias, "error", err)
	}
	left, err := r.newLeaving(alias, after)
	if err != nil {
		g.log.Error("cannot clean up after a removed device", "alias", alias, "error", err)
	}
	parted := g.part(alias)
	if parted != nil {
		g.log.Error("the definition keeps a device that was unplugged for good", "alias", alias, "error", parted)
	}
	r.Leaving = append(r.Leaving, left)
	r.Surplus = r.Surplus || g.reg.hasNodes(dev)
	r.shorten = r.Surplus
	g.returnMemory(r.def, dev)
	g.setActive(func(d *domain.Definition) { d.Remove(d.Devices.ByAlias(alias)) })
	if parted == nil { // else whoever waits tries once more, and is told
		g.dropParting(alias)
	}
	g.keepActive()
	failpoint.Reach("unplug.gone")
	wait := r.removals[alias]
	delete(r.removals, alias)
	g.clean(r, left, wait)
	g.announce(event.DomainDeviceRemoved{Alias: alias})
	g.shortenNodes()
}

// removalRefused tells whoever waits that the guest keeps its device.
func (g *Guest) removalRefused(alias string) {
	if wait := g.run.removals[alias]; wait != nil {
		delete(g.run.removals, alias)
		wait.result <- fault.New(fault.Failed, fault.Device, "the guest refuses to let device %s go", alias)
	}
	g.endParting(alias)
	g.announce(event.DomainDeviceRemovalFailed{Alias: alias})
}

// takeNIC gives the release of a NIC's interface to the caller.
func (r *run) takeNIC(alias string) (*heldNIC, func(context.Context) error) {
	for i, n := range r.NICs {
		if n.Alias != alias {
			continue
		}
		r.NICs = append(r.NICs[:i:i], r.NICs[i+1:]...)
		return &n, r.takeRelease(n.what())
	}
	return nil, nil
}

// dropClaim lets others have a PCI device of the host that the guest has not got, or no longer
// has. It runs in the loop.
func (r *run) dropClaim(dev device.Device) {
	if at := pciFunction(dev); at != nil {
		r.dropClaimAt(*at)
	}
}

func (r *run) dropClaimAt(at kernel.PCIAddress) {
	if r.noticed { // the end of the guest drops it
		return
	}
	if drop := r.takeRelease(claimOf(at)); drop != nil {
		_ = drop(context.Background()) // never fails
	}
}

// takeRelease gives a release to the caller, who is to do it.
func (r *run) takeRelease(what string) func(context.Context) error {
	for i, held := range r.releases {
		if held.what == what {
			r.releases = append(r.releases[:i:i], r.releases[i+1:]...)
			return held.do
		}
	}
	return nil
}
