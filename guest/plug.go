package guest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// Attach adds a device, given as libvirt's XML of it.
func (g *Guest) Attach(ctx context.Context, doc string, a Affect) error {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Submitted: true})
	if err != nil {
		return err
	}
	return g.edit(ctx, a, func() (*domain.Definition, error) {
		return g.withDevice(dev)
	}, func(config *following) (work, error) {
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
	if err := def.CheckDevice(dev); err != nil {
		return err
	}
	if dev.Common().BootOrder > 0 {
		with := def.Clone()
		err := with.Add(dev)
		if err == nil {
			_, err = domainxml.CheckBoot(with)
		}
		if err != nil {
			return err
		}
	}
	return qemu.CompleteDevice(def, dev, caps, live)
}

// planPlug plans plugging a device into the running guest. It is read anew, so
// that the running and the stored device share nothing but the MAC address that
// was made up for a NIC.
func (g *Guest) planPlug(ctx context.Context, doc string, config *following, stored device.Device) (work, error) {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Submitted: true})
	if err != nil {
		return nil, err
	}
	if err := g.fenceLive(ctx, dev); err != nil {
		return nil, err
	}
	if n, ok := dev.(*device.NIC); ok {
		n.MAC = stored.(*device.NIC).MAC
		if err := g.reg.Networks.CheckSource(n); err != nil { // which is said before there is a place for it
			return nil, err
		}
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
	first, err := g.planControllers(def, dev, caps)
	if err != nil {
		return nil, err
	}
	if err := completeDevice(def, dev, caps, true); err != nil {
		return nil, err
	}
	r.numberNode(def, dev)
	if err := g.admitAlias(dev.Common().Alias); err != nil {
		return nil, err
	}
	if err := g.admitPlug(ctx, def, dev); err != nil {
		return nil, err
	}
	if err := checkTakesPCI(def, dev); err != nil {
		return nil, err
	}
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
		for _, c := range first {
			if settled, err := g.plugController(ctx, r, p, c); err != nil {
				return settled, err
			}
		}
		held, err := g.plug(ctx, r, p, dev, also)
		if err != nil {
			return func() error { r.notPlugged(held); return nil }, err
		}
		return func() error {
			r.shorten = r.Surplus
			defer r.forgetPlugging()
			if err := g.addPlugged(r, dev, held); err != nil {
				return err
			}
			return config.store()
		}, nil
	}, nil
}

// checkTakesPCI refuses a PCI device that a running guest would never hear of.
func checkTakesPCI(def *domain.Definition, dev device.Device) error {
	if _, isPCI := dev.Common().Address.(device.PCI); !isPCI || qemu.TakesPCI(def) {
		return nil
	}
	return fault.New(fault.Unsupported, fault.Config,
		"cannot plug in %s: a guest of machine type pc takes PCI devices only with <acpi/> among its features; add that to the config, and start it again", deviceName(dev))
}

// planControllers gives the controllers that a device needs and a running guest lacks, complete, and
// adds them to its definition. They are plugged in before the device.
func (g *Guest) planControllers(def *domain.Definition, dev device.Device, caps *qemu.Capabilities) ([]*device.Controller, error) {
	d, is := dev.(*device.Disk)
	if !is || d.Bus != "scsi" && d.Bus != "" {
		return nil, nil
	}
	if err := domainxml.CompleteDevice(dev, def.OS.Machine, completion(caps)); err != nil || d.Bus != "scsi" {
		return nil, err
	}
	missing, err := def.Devices.MissingControllers(d, true)
	for _, c := range missing {
		if err := completeDevice(def, c, caps, true); err != nil {
			return nil, fmt.Errorf("the disk needs a SCSI controller %d, which cannot be plugged in: %w", c.Index, err)
		}
		if err := checkTakesPCI(def, c); err != nil {
			return nil, err
		}
		if err := def.Add(c); err != nil {
			return nil, err
		}
		if err := g.admitAlias(c.Alias); err != nil {
			return nil, err
		}
	}
	return missing, err
}

// plugController plugs in a controller for a device that follows. It stays when that is refused, as
// with libvirt.
func (g *Guest) plugController(ctx context.Context, r *run, p *qemu.Plan, c *device.Controller) (settle, error) {
	held, err := g.plug(ctx, r, p, c, twin{})
	if err == nil {
		err = g.change(ctx, "", func() error {
			defer r.forgetPlugging()
			return g.addPlugged(r, c, held)
		})
	}
	if err != nil {
		return func() error { r.notPlugged(held); return nil }, err
	}
	return nil, nil
}

// notPlugged settles a plug that failed. It runs in the loop.
func (r *run) notPlugged(held *plugged) {
	r.shorten = r.Surplus
	if held.cutOff != nil {
		r.owe(held.cutOff, held.what, held.release)
	}
}

// admitPlug refuses a device with which the running guest has more than its client may give it, or
// no later daemon would read its definition.
func (g *Guest) admitPlug(ctx context.Context, def *domain.Definition, dev device.Device) error {
	with := def.Clone()
	err := with.Add(dev)
	if err == nil {
		err = g.bounded(ctx, with)
	}
	if err == nil {
		_, err = g.run.text(with)
	}
	return err
}

// numberNode gives the block node of a disk a number that no other of this run
// ever had: QEMU may still use that of a disk which the guest has let go.
func (r *run) numberNode(def *domain.Definition, dev device.Device) {
	for _, d := range def.Devices.Disks {
		r.notesNode(d)
	}
	if d, ok := dev.(*device.Disk); ok && d.Source != nil {
		r.LastNode = max(r.LastNode+1, d.Source.Index)
		d.Source.Index = r.LastNode
	}
}

// notesNode keeps the number of a disk that a journal names from being given once more: its daemon may not
// have lived to write down that it had, and QEMU may not let go of the node.
func (r *run) notesNode(dev device.Device) {
	if d, ok := dev.(*device.Disk); ok && d.Source != nil {
		r.LastNode = max(r.LastNode, d.Source.Index)
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
	g.dropParting(dev.Common().Alias) // of one that has gone, and that the store did not let go
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
	noted   bool // in the journal
	// cutOff is the plug, when the monitor was lost in the middle of it.
	cutOff *plugging
}

// takeBackPlug takes back what a plug that failed has taken, last of all that it was begun.
func (g *Guest) takeBackPlug(ctx context.Context, r *run, dev device.Device, held *plugged) {
	ctx = context.WithoutCancel(ctx)
	r.relays.stop(dev.Common().Alias)
	if err := r.labels.giveBack(ctx, ownerOf(dev)); err != nil {
		g.log.Error("what a failed plug labelled may keep its label", "error", err)
	}
	if held.release != nil {
		if err := held.release(ctx); err != nil {
			g.log.Error("cannot release what a failed plug held", "what", held.what, "error", err)
		}
	}
	if held.noted {
		removeFile(g.log, filepath.Join(r.dir, pluggingFile))
	}
}

// plug gives a device what it needs of the host and tells QEMU of it. A failure
// undoes what was done. Also is what follows in the stored definition.
func (g *Guest) plug(ctx context.Context, r *run, p *qemu.Plan, dev device.Device, also twin) (_ *plugged, err error) {
	p.Disks, p.NICs = map[string]device.DiskAttachment{}, map[string]*device.NICAttachment{}
	held := &plugged{}
	defer closePlan(p)
	defer func() {
		if err != nil && held.cutOff == nil {
			g.takeBackPlug(ctx, r, dev, held)
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
		a, release, err := g.reg.attachNIC(r.notingNIC(ctx, d, held, also), p.Definition, d)
		if err != nil {
			return held, err
		}
		if a != nil {
			failpoint.Reach("plug.nic")
			p.NICs[d.Alias], d.Target = a, a.IfName
			held.what, held.release = "interface "+a.IfName, release
			held.nic = &heldNIC{Alias: d.Alias, IfName: a.IfName, Bridge: a.Bridge}
		} else if g.reg.lacksNetwork(r) {
			if err := g.reg.serveUserNetwork(ctx, r, p, d, held, also); err != nil {
				return held, err
			}
		}
	case *device.HostDevice:
		if at := pciFunction(d); at != nil {
			release, err := g.reg.claimDevice(*at, r)
			if err != nil {
				return held, err
			}
			held.what, held.release = claimOf(*at), release
		}
		if err := g.reg.plugHostDevice(r.UUID, d); err != nil {
			return held, err
		}
	case *device.VSock:
		if p.VSock, err = qemu.ClaimVSock(d); err != nil {
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
	defer g.endTerminals(r)
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
	if err := r.begin(pluggingFile, p); err != nil {
		return err
	}
	held.noted = true
	err = runSteps(ctx, s, steps)
	if err == nil {
		failpoint.Reach("plug.made")
		if err = settlePlugged(ctx, s, dev); err != nil && !unanswered(err) {
			undo(ctx, s, steps)
		}
	}
	if unanswered(err) {
		held.cutOff = p
		s.Close() // a new session asks how far it came
	}
	return explainKey(dev, err)
}

// settlePlugged tells QEMU of a device that it has, or asks it, what cannot be said when it
// is made, as is done for all devices after a start.
func settlePlugged(ctx context.Context, s *qmp.Session, dev device.Device) error {
	switch d := dev.(type) {
	case *device.Disk:
		if d.Tune != nil {
			return execute(ctx, s, qemu.Throttle(d))
		}
	case *device.Memory:
		return findModules(ctx, s, []*device.Memory{d})
	case *device.Char:
		if d.Backend.Type == "pty" {
			ptys, err := findPTYs(ctx, s)
			setPTY(d, ptys)
			return err
		}
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
