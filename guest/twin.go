package guest

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/image"
)

// twin is the device of the stored definition that comes or goes with one of the
// running guest, so that a plug that is cut off between the two is finished in both.
type twin struct {
	Device string   // its XML; empty: the stored definition stays as it is
	Fence  []string // the folders that its image is held to
	Change string   // what the store says when it has followed
}

// newTwin notes a device that config, to be stored later, has more or less than
// what is stored now. It runs in the loop.
func (g *Guest) newTwin(dev device.Device, config *following) (t twin, err error) {
	if config == nil {
		return t, nil
	}
	t.Change = config.change
	if t.Device, err = domainxml.FormatDevice(dev, domainxml.Style{Secure: true}); err != nil {
		return t, err
	}
	if d, is := dev.(*device.Disk); is {
		t.Fence = g.record.Fences[sourceOf(d)]
	}
	return t, nil
}

// follow gives the device where the stored definition has still to follow; nil:
// there is nothing to do.
func (t twin) follow(g *Guest) (device.Device, error) {
	if t.Device == "" || g.inactive == nil || g.hasFollowed(t.Change) {
		return nil, nil
	}
	return domainxml.ParseDevice(t.Device, domainxml.Options{Active: true})
}

// storeTwin adds a device that was plugged in to the stored definition. It runs in
// the loop.
func (g *Guest) storeTwin(t twin) error {
	dev, err := t.follow(g)
	if dev == nil || err != nil {
		return err
	}
	config, err := g.withDevice(dev)
	if err != nil {
		return err // somebody has put another in its place
	}
	ctx := context.Background()
	if t.Fence != nil {
		ctx = image.WithFence(ctx, t.Fence)
	}
	g.fence(ctx, config)
	return g.redefineAfter(t.Change, config)
}

// dropTwin takes a device that was unplugged out of the stored definition. It runs
// in the loop.
func (g *Guest) dropTwin(t twin) error {
	like, err := t.follow(g)
	if like == nil || err != nil {
		return err
	}
	config := g.inactive.Clone()
	dev, err := findLike(&config.Devices, like)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	config.Remove(dev)
	return g.redefineAfter(t.Change, config)
}

// parting is a device that the guest was asked to let go, and what goes with it in the
// stored definition. The run record holds it until the guest has let go, or is known
// to keep the device: it may do so while no daemon listens.
type parting struct {
	Alias string
	Twin  twin
}

// beginParting notes a device before the guest is asked for it. What was noted of it
// before counts no more.
func (g *Guest) beginParting(alias string, t twin) error {
	g.dropParting(alias)
	g.run.Parting = append(g.run.Parting, parting{alias, t})
	err := g.journal()
	if err != nil {
		g.dropParting(alias)
	}
	return err
}

// endParting notes that the guest keeps a device.
func (g *Guest) endParting(alias string) {
	if g.dropParting(alias) {
		g.keepRun()
	}
}

func (g *Guest) dropParting(alias string) (noted bool) {
	before := len(g.run.Parting)
	g.run.Parting = slices.DeleteFunc(g.run.Parting, func(p parting) bool { return p.Alias == alias })
	return len(g.run.Parting) < before
}

// part has the stored definition lose the device that the running guest has lost, or
// was asked for long enough ago. It runs in the loop.
func (g *Guest) part(alias string) error {
	i := slices.IndexFunc(g.run.Parting, func(p parting) bool { return p.Alias == alias })
	if i < 0 {
		return nil
	}
	if err := g.dropTwin(g.run.Parting[i].Twin); err != nil {
		return err
	}
	failpoint.Reach("unplug.parted")
	g.run.Parting[i].Twin = twin{}
	if g.run.def.Devices.ByAlias(alias) == nil { // there is nothing to wait for
		g.dropParting(alias)
	}
	g.keepRun()
	return nil
}

// asked reports whether the guest was asked for a device.
func (r *runRecord) asked(alias string) bool {
	return slices.ContainsFunc(r.Parting, func(p parting) bool { return p.Alias == alias })
}
