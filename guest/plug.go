package guest

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// Affect says which definition a change is for. Neither means the running guest,
// or the definition of one that is shut off.
type Affect struct{ Live, Config bool }

// resolve settles what a change affects, in the loop.
func (g *Guest) resolve(a Affect) (Affect, error) {
	if !a.Live && !a.Config {
		a.Live = g.run != nil
		a.Config = !a.Live
	}
	if a.Live && g.run == nil {
		return a, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if a.Config && g.inactive == nil {
		return a, fault.New(fault.WrongState, fault.Domain, "transient domains do not have any persistent config")
	}
	return a, nil
}

// edit changes the stored definition, the running guest, or both. Stored gives
// the changed definition; where the guest runs too, live plans the change to it,
// and stores that definition (nil when it is not asked for) once it is done.
func (g *Guest) edit(ctx context.Context, a Affect, stored func() (*domain.Definition, error), live func(config *domain.Definition) (work, error)) error {
	return g.perform(ctx, "", domain.JobModify, modifyLimit, func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		var config *domain.Definition
		if a.Config {
			if config, err = stored(); err != nil {
				return nil, err
			}
			g.fence(ctx, config)
		}
		if !a.Live {
			return nil, g.redefine(config)
		}
		return live(config)
	})
}

// Attach adds a device, given as libvirt's XML of it.
func (g *Guest) Attach(ctx context.Context, doc string, a Affect) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{})
	if err != nil {
		return err
	}
	return g.edit(ctx, a, func() (*domain.Definition, error) {
		return g.withDevice(dev)
	}, func(config *domain.Definition) (work, error) {
		return g.planPlug(ctx, doc, config, dev)
	})
}

// withDevice gives the inactive definition with one more device.
func (g *Guest) withDevice(dev device.Device) (*domain.Definition, error) {
	def := g.inactive.Clone()
	if err := checkClash(&def.Devices, dev); err != nil {
		return nil, err
	}
	caps, err := g.reg.Emulators.Known(def.Devices.Emulator)
	if err != nil {
		return nil, err
	}
	if err := completeDevice(def, dev, caps, false); err != nil {
		return nil, err
	}
	return def, def.Add(dev)
}

// completeDevice gives one more device of a definition what it did not say: its
// own defaults, and its place among the others.
func completeDevice(def *domain.Definition, dev device.Device, caps *qemu.Capabilities, live bool) error {
	if err := domainxml.CompleteDevice(dev, def.OS.Machine, completion(caps)); err != nil {
		return err
	}
	return qemu.CompleteDevice(def, dev, caps, live)
}

// planPlug plans plugging a device into the running guest. It is read anew, so
// that the running and the stored device share nothing but the MAC address that
// was made up for a NIC.
func (g *Guest) planPlug(ctx context.Context, doc string, config *domain.Definition, stored device.Device) (work, error) {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{})
	if err != nil {
		return nil, err
	}
	if err := g.fenceLive(ctx, dev); err != nil {
		return nil, err
	}
	if n, ok := dev.(*device.NIC); ok {
		n.MAC = stored.(*device.NIC).MAC
	}
	r := g.run
	def := r.def.Clone()
	if err := checkClash(&def.Devices, dev); err != nil {
		return nil, err
	}
	caps, err := g.reg.Emulators.Known(def.Devices.Emulator)
	if err != nil {
		return nil, err
	}
	if err := completeDevice(def, dev, caps, true); err != nil {
		return nil, err
	}
	r.numberNode(def, dev)
	also, err := g.newTwin(stored, config)
	if err != nil {
		return nil, err
	}
	if g.reg.hasNodes(dev) { // whatever becomes of it, the list of what may be opened is made anew
		r.Surplus = true
		g.keepRun()
	}
	p := &qemu.Plan{Definition: def, Capabilities: caps, Dir: r.ownPath()}
	return func(ctx context.Context) (settle, error) {
		held, err := g.plug(ctx, r, p, dev, also)
		if err != nil {
			return func() error {
				r.shorten = r.Surplus
				if held.cutOff != nil {
					r.owe(held.cutOff, held.release)
				}
				return nil
			}, err
		}
		return func() error {
			r.shorten = r.Surplus
			defer r.forgetPlugging()
			if err := g.addPlugged(r, dev, held); err != nil || config == nil {
				return err
			}
			return g.redefine(config)
		}, nil
	}, nil
}

// numberNode gives the block node of a disk a number that no other of this run
// ever had: QEMU may still use that of a disk which the guest has let go.
func (r *run) numberNode(def *domain.Definition, dev device.Device) {
	for _, d := range def.Devices.Disks {
		if d.Source != nil {
			r.LastNode = max(r.LastNode, d.Source.Index)
		}
	}
	if d, ok := dev.(*device.Disk); ok && d.Source != nil {
		r.LastNode = max(r.LastNode+1, d.Source.Index)
		d.Source.Index = r.LastNode
	}
}

// addPlugged makes a plugged device part of the running guest.
func (g *Guest) addPlugged(r *run, dev device.Device, held *plugged) error {
	var err error
	g.setActive(func(d *domain.Definition) { err = d.Add(dev) })
	if err != nil {
		return err
	}
	if held.release != nil {
		r.hold(held.what, held.release)
	}
	if held.nic != nil {
		r.NICs = append(r.NICs, *held.nic)
	}
	g.keepActive()
	failpoint.Reach("plug.kept")
	g.announce(event.DomainDeviceAdded{Alias: dev.Common().Alias})
	return nil
}

// plugged is what the host gave to a plugged device.
type plugged struct {
	what    string
	release func(context.Context) error
	nic     *heldNIC
	// cutOff is the plug, when the monitor was lost in the middle of it.
	cutOff *plugging
}

// plug gives a device what it needs of the host and tells QEMU of it. A failure
// undoes what was done. Also is what follows in the stored definition.
func (g *Guest) plug(ctx context.Context, r *run, p *qemu.Plan, dev device.Device, also twin) (_ *plugged, err error) {
	p.Disks, p.NICs = map[string]device.DiskAttachment{}, map[string]*device.NICAttachment{}
	held := &plugged{}
	defer closePlan(p)
	defer func() {
		if err != nil && held.cutOff == nil {
			if e := r.labels.giveBack(context.WithoutCancel(ctx), ownerOf(dev)); e != nil {
				g.log.Error("what a failed plug labelled may keep its label", "error", e)
			}
		}
		if err != nil && held.release != nil && held.cutOff == nil {
			if e := held.release(context.WithoutCancel(ctx)); e != nil {
				g.log.Error("cannot release what a failed plug held", "what", held.what, "error", e)
			}
		}
	}()
	switch d := dev.(type) {
	case *device.Disk:
		a, present, err := g.reg.findDisk(ctx, r, d)
		if err != nil {
			return held, err
		}
		if present {
			p.Disks[d.Alias] = a
		}
		forget, err := g.reg.giveKey(p, d)
		if err != nil {
			return held, err
		}
		defer forget()
	case *device.NIC:
		a, release, err := g.reg.attachNIC(ctx, p.Definition, d)
		if err != nil {
			return held, err
		}
		if a != nil {
			failpoint.Reach("plug.nic")
			p.NICs[d.Alias], d.Target = a, a.IfName
			held.what, held.release = "interface "+a.IfName, release
			held.nic = &heldNIC{Alias: d.Alias, IfName: a.IfName, Bridge: a.Bridge}
		}
	case *device.HostDevice:
		if err := passable(g.reg.Kernel, d); err != nil {
			return held, err
		}
	case *device.Memory:
		if err := g.reserveMemory(p.Definition, d); err != nil {
			return held, err
		}
		defer func() {
			if err != nil && held.cutOff == nil {
				g.returnMemory(p.Definition, d)
			}
		}()
	}
	if err := g.reg.admit(ctx, r, p, dev); err != nil {
		return held, err
	}
	steps, err := qemu.Plug(p, dev)
	if err != nil {
		return held, err
	}
	return held, g.takeSteps(ctx, r, dev, held, steps, also)
}

// takeSteps has QEMU make a device. A plug that is cut off by the loss of the
// monitor, or by the end of the daemon, can be finished or undone later.
func (g *Guest) takeSteps(ctx context.Context, r *run, dev device.Device, held *plugged, steps []qemu.Step, also twin) error {
	s, err := r.monitor()
	if err != nil {
		return err
	}
	p, err := newPlugging(dev, held.nic, steps, also)
	if err != nil {
		return err
	}
	if err := p.write(r.dir); err != nil {
		return err
	}
	err = runSteps(ctx, s, steps)
	if err == nil {
		failpoint.Reach("plug.made")
		if err = settlePlugged(ctx, s, dev); err != nil && !unanswered(err) {
			undo(ctx, s, steps)
		}
	}
	switch {
	case unanswered(err):
		held.cutOff = p
		s.Close() // a new session asks how far it came
	case err != nil:
		removeFile(g.log, filepath.Join(r.dir, pluggingFile))
	}
	return explainKey(dev, err)
}

// settlePlugged tells QEMU of a device that it has what cannot be said when it
// is made, as is done for all devices after a start.
func settlePlugged(ctx context.Context, s *qmp.Session, dev device.Device) error {
	switch d := dev.(type) {
	case *device.Disk:
		if d.Tune != nil {
			return execute(ctx, s, qemu.Throttle(d))
		}
	case *device.Memory:
		return findModules(ctx, s, []*device.Memory{d})
	case *device.NIC:
		if d.Link == "down" {
			return s.Execute(ctx, "set_link", map[string]any{"name": d.Alias, "up": false}, nil)
		}
	}
	return nil
}

// runSteps runs steps in order; when QEMU refuses one it undoes those before it.
// One that QEMU does not answer may still be carried out: nothing is undone then, and
// the caller's journal says what is to be.
func runSteps(ctx context.Context, s *qmp.Session, steps []qemu.Step) error {
	for i, step := range steps {
		err := failpoint.Err("plug.step")
		if err == nil {
			err = execute(ctx, s, step)
		}
		if err != nil {
			if !unanswered(err) {
				undo(ctx, s, steps[:i])
			}
			return err
		}
	}
	return nil
}

// unanswered reports whether it is not known what QEMU made of a command.
func unanswered(err error) bool {
	var refused *qmp.Error
	return err != nil && !errors.As(err, &refused)
}

// undo takes steps back, last first, whatever becomes of each.
func undo(ctx context.Context, s *qmp.Session, steps []qemu.Step) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), modifyLimit)
	defer stop()
	for _, step := range slices.Backward(steps) {
		if u := step.Undo; u != nil {
			_ = execute(ctx, s, *u) // QEMU may have lost what is taken back
		}
	}
}

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
	}, func(config *domain.Definition) (work, error) {
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
	wait := &removal{result: make(chan error, 1)}
	r.removals[alias] = wait
	g.beginParting(alias, also)
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
				return g.part(alias)
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
	if err := g.part(alias); err != nil {
		g.log.Error("the definition keeps a device that was unplugged for good", "alias", alias, "error", err)
	}
	r.Leaving = append(r.Leaving, left)
	r.Surplus = r.Surplus || g.reg.hasNodes(dev)
	r.shorten = r.Surplus
	g.returnMemory(r.def, dev)
	g.setActive(func(d *domain.Definition) { d.Remove(d.Devices.ByAlias(alias)) })
	g.dropParting(alias)
	g.keepActive()
	failpoint.Reach("unplug.gone")
	wait := r.removals[alias]
	delete(r.removals, alias)
	go g.clean(r, left, wait)
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
		return &n, r.takeRelease("interface " + n.IfName)
	}
	return nil, nil
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

// keepActive keeps the active definition for the next daemon.
func (g *Guest) keepActive() {
	text, err := domainxml.Format(g.run.def, domainxml.Style{Active: true, Secure: true, ID: g.run.ID})
	if err != nil {
		g.log.Error("cannot write the active definition", "error", err)
		return
	}
	g.run.XML = text
	g.keepRun()
}

// Update changes a device in place: the medium of a drive, the link of a NIC,
// the password of a display.
func (g *Guest) Update(ctx context.Context, doc string, a Affect, force bool) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return err
	}
	return g.edit(ctx, a, func() (*domain.Definition, error) {
		config := g.inactive.Clone()
		return config, updateIn(&config.Devices, dev)
	}, func(config *domain.Definition) (work, error) {
		if err := g.fenceLive(ctx, dev); err != nil {
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
	changed := after.Clone().Devices.ByAlias(before.Common().Alias) // it shares nothing with config
	if drive, is := changed.(*device.Disk); is {
		return g.planMedia(before.(*device.Disk), drive, config, force)
	}
	return g.amend(r, &amending{}, after, config, func(ctx context.Context, _ *qmp.Session) (func(), error) {
		if err := g.updateLive(ctx, r, changed); err != nil {
			return nil, err
		}
		return func() {
			g.setActive(func(d *domain.Definition) {
				if err := updateIn(&d.Devices, changed); err != nil {
					g.log.Error("cannot note an updated device", "error", err)
				}
			})
		}, nil
	}), nil
}

// updateLive does an update to the running guest, beside the loop.
func (g *Guest) updateLive(ctx context.Context, r *run, after device.Device) error {
	s, err := r.monitor()
	if err != nil {
		return err
	}
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
