package guest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// attachKind attaches a device to a running guest. QEMU decides whether it happened: it has a device of
// that alias, or it does not.
var attachKind = operation.Kind[*run]{
	Name: "attach", Version: 1, Class: operation.Change,
	Steps: []string{"hold", "make", "plug", "settle", "define"}, Undo: []string{"hold", "make", "plug"},
	Bind: func(r *run) operation.Work { return &attach{r: r} },
}

// attach is the journalled payload of an attachment.
type attach struct {
	Device string    // its complete XML
	Saved  string    `json:",omitempty"` // the device for the stored definition; empty: none
	NIC    *heldNIC  `json:",omitempty"` // the interface made for it on the host
	Undo   []undoing `json:",omitempty"` // in the order of the steps that they undo

	r     *run
	op    *operation.Operation
	dev   device.Device
	saved device.Device
	plan  *qemu.Plan  // known only to the daemon that began it
	steps []qemu.Step // known only to the daemon that began it

	what    string // names what release gives back
	release func(context.Context) error
	// reserved is what the host's ledger counts for a memory module. Nil: nothing.
	reserved *topology.Reservation
	// defined says that the live definition has the device, and that the run owns its resources.
	defined bool
}

// Steps implements operation.Work.
func (a *attach) Steps() []operation.Step {
	return []operation.Step{
		{Name: "hold", Effect: operation.Boot, Do: a.hold, Undo: a.giveBack},
		{Name: "make", Effect: operation.Process, Do: a.make, Undo: a.takeBack},
		{Name: "plug", Effect: operation.Process, Decisive: true, Do: a.plug, Undo: a.takeBack, Probe: a.probe},
		{Name: "settle", Effect: operation.Process, Do: a.settle},
		{Name: "define", Effect: operation.Process, Do: a.define},
	}
}

// Opened implements operation.Opener.
func (a *attach) Opened(op *operation.Operation) (err error) {
	a.op = op
	if a.dev != nil {
		return nil
	}
	if a.dev, err = domainxml.ParseDevice(a.Device, domainxml.Options{Active: true}); err != nil {
		return err
	}
	if a.Saved != "" {
		a.saved, err = domainxml.ParseDevice(a.Saved, domainxml.Options{Active: true})
	}
	return err
}

// Rehold implements operation.Rehold. QEMU may have the device already: it is asked later.
func (a *attach) Rehold() {
	r := a.r
	r.notesNode(a.dev)
	if r.def.Devices.ByAlias(a.alias()) != nil { // the run owns its resources
		a.defined = true
		return
	}
	r.relayAgain(r.reg.life, a.op.Scope().Noting(r.Fences), a.dev)
	if m, is := a.dev.(*device.Memory); is {
		demand := moduleDemand(r.def, m)
		r.reg.Ledger.Add(r.UUID, demand)
		a.reserved = &demand
	}
	if at := pciFunction(a.dev); at != nil {
		release, err := r.reg.claimDevice(*at, r)
		if err != nil {
			r.log.Error("cannot claim the device of an interrupted attachment", "error", err)
		} else {
			a.what, a.release = claimOf(*at), release
		}
	}
	if nic, is := a.dev.(*device.NIC); is && a.NIC != nil {
		if release, err := r.reg.readopt(r, nic, a.NIC); err == nil { // otherwise the interface ended with its last descriptor
			a.what, a.release = a.NIC.what(), release
		}
	}
}

func (a *attach) alias() string { return a.dev.Common().Alias }

// attachDevice attaches a device, beside the loop. saved is the device for the stored definition. Nil:
// none.
func (g *Guest) attachDevice(ctx context.Context, sc scope.Scope, r *run, p *qemu.Plan, dev, saved device.Device) (err error) {
	if _, err := r.monitor(); err != nil {
		return err
	}
	a := &attach{r: r, dev: dev, saved: saved, plan: p}
	p.Disks, p.NICs = map[string]device.DiskAttachment{}, map[string]*device.NICAttachment{}
	defer closePlan(p)
	objects := []string{"alias/" + a.alias()}
	switch d := dev.(type) {
	case *device.Disk:
		objects = append(objects, "disk/"+d.Target)
		found, present, err := g.reg.findDisk(ctx, sc, r, d)
		if err != nil {
			return err
		}
		if present {
			p.Disks[d.Alias] = found
			r.showChain(d, found)
		}
		forget, err := g.reg.giveKey(p, d)
		if err != nil {
			return err
		}
		defer forget()
	case *device.VSock:
		if p.VSock, err = qemu.ClaimVSock(d); err != nil {
			return err
		}
	}
	if err := a.describe(); err != nil {
		return err
	}
	return explainKey(dev, r.perform(ctx, sc, attachKind.Name, a, objects...))
}

// describe formats the devices into the payload.
func (a *attach) describe() (err error) {
	if a.Device, err = domainxml.FormatDevice(a.dev, domainxml.Style{Active: true, Secure: true}); err != nil || a.saved == nil {
		return err
	}
	a.Saved, err = domainxml.FormatDevice(a.saved, domainxml.Style{Secure: true})
	return err
}

// hold takes the host's resources for the device, and plans the QMP steps.
func (a *attach) hold(ctx context.Context) (err error) {
	r := a.r
	switch d := a.dev.(type) {
	case *device.NIC:
		err = a.connect(ctx, a.op.Scope(), d)
	case *device.HostDevice:
		if at := pciFunction(d); at != nil {
			a.what = claimOf(*at)
			a.release, err = r.reg.claimDevice(*at, r)
		}
		if err == nil {
			err = r.reg.plugHostDevice(r.UUID, d)
		}
	case *device.Memory:
		if err = r.guest.reserveMemory(a.plan.Definition, d); err == nil {
			demand := moduleDemand(a.plan.Definition, d)
			a.reserved = &demand
		}
	}
	if err != nil {
		return err
	}
	if err := r.reg.admit(ctx, a.op.Scope(), r, a.plan, a.dev); err != nil {
		return err
	}
	if a.steps, err = qemu.Plug(a.plan, a.dev); err != nil {
		return err
	}
	for _, step := range a.steps {
		if step.Undo == nil {
			continue
		}
		u, err := newUndoing(step.Undo)
		if err != nil {
			return err
		}
		a.Undo = append(a.Undo, u)
	}
	if err := a.describe(); err != nil {
		return err
	}
	return a.op.Save()
}

// connect gives a NIC its interface on the host. If the interface would outlive a killed daemon, its name
// is journalled before it is made.
func (a *attach) connect(ctx context.Context, sc scope.Scope, n *device.NIC) error {
	r := a.r
	note := func(ifName string) error {
		a.NIC = &heldNIC{Alias: n.Alias, IfName: ifName}
		return a.op.Save()
	}
	made, release, err := r.reg.attachNIC(ctx, sc, a.plan.Definition, n, note)
	if err != nil {
		return err
	}
	if made == nil {
		if r.reg.lacksNetwork(r) {
			return r.reg.serveUserNetwork(ctx, sc, a, n)
		}
		return nil
	}
	a.plan.NICs[n.Alias], n.Target = made, made.IfName
	a.NIC = &heldNIC{Alias: n.Alias, IfName: made.IfName, Bridge: made.Bridge}
	a.what, a.release = a.NIC.what(), release
	return nil
}

// giveBack releases the resources that hold took.
func (a *attach) giveBack(ctx context.Context) error {
	if a.defined {
		return nil
	}
	a.r.relays.stop(a.alias())
	err := a.r.labels.giveBack(ctx, ownerOf(a.dev))
	if a.release != nil {
		if e := a.release(ctx); e != nil {
			return errors.Join(err, fmt.Errorf("cannot release the %s: %w", a.what, e))
		}
		a.release = nil
	}
	if a.reserved != nil {
		a.r.reg.Ledger.Reduce(a.r.UUID, *a.reserved)
		a.reserved = nil
	}
	return err
}

// make makes the objects behind the device in QEMU.
func (a *attach) make(ctx context.Context) error { return a.r.tell(ctx, a.steps[:a.decides()]) }

// decides returns the index of the step that makes the device itself.
func (a *attach) decides() int {
	for i := len(a.steps) - 1; i > 0; i-- {
		if a.steps[i].Command == "device_add" {
			return i
		}
	}
	return 0
}

// plug makes the device in QEMU. If QEMU refuses its limits, the attachment fails.
func (a *attach) plug(ctx context.Context) error {
	defer a.r.guest.endTerminals(a.r)
	if err := a.r.tell(ctx, a.steps[a.decides():]); err != nil {
		return err
	}
	return a.tune(ctx)
}

// takeBack undoes the QMP steps of the attachment.
func (a *attach) takeBack(ctx context.Context) error { return a.r.takeBack(ctx, a.Undo) }

// probe asks QEMU whether it has the device.
func (a *attach) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	there, err := a.r.hasDevice(ctx, a.alias())
	if err != nil || !there {
		return operation.Never, err
	}
	return operation.Happened, nil
}

// settle sets the limits that cannot be given when the device is made. After an interrupted attachment the
// guest keeps the device even if QEMU refuses its limits.
func (a *attach) settle(ctx context.Context) error {
	if a.steps != nil { // plug has set them
		return nil
	}
	err := a.tune(ctx)
	if err == nil || noAnswer(err) {
		return err
	}
	a.r.log.Warn("QEMU refuses the limits of a device; device attached without them", "alias", a.alias(), "error", err)
	if d, is := a.dev.(*device.Disk); is {
		d.Tune = nil
	}
	return nil
}

// tune sends QEMU the settings that cannot be part of device_add.
func (a *attach) tune(ctx context.Context) error {
	s, err := a.r.monitor()
	if err != nil {
		return err
	}
	return settlePlugged(ctx, s, a.dev)
}

// define adds the device to the live definition and, if asked, to the stored one.
func (a *attach) define(ctx context.Context) error {
	return a.r.inLoop(ctx, func(g *Guest) error {
		if a.r.def.Devices.ByAlias(a.alias()) == nil {
			if err := g.addAttached(a); err != nil {
				return operation.Final(err)
			}
		}
		a.defined = true
		if a.saved == nil {
			return nil
		}
		return g.followOnce(a.op.Scope(), a.op.ID(), func(*domain.Definition) (*domain.Definition, error) { return g.withDevice(a.saved) })
	})
}

// addAttached adds a device to the live definition, and its resources to the run.
func (g *Guest) addAttached(a *attach) error {
	var err error
	g.setActive(func(d *domain.Definition) { err = d.Add(a.dev) })
	if err != nil {
		return err
	}
	if a.release != nil {
		a.r.hold(a.what, a.release)
	}
	if a.NIC != nil {
		a.r.NICs = append(a.r.NICs, *a.NIC)
	}
	g.keepActive()
	g.announce(event.DomainDeviceAdded{Alias: a.alias()})
	return nil
}

// tell executes steps in QEMU until one is refused or not answered.
func (r *run) tell(ctx context.Context, steps []qemu.Step) error {
	s, err := r.monitor()
	if err != nil {
		return err
	}
	return executeAll(ctx, s, steps)
}

// takeBack undoes steps in reverse order. If QEMU refuses an undo, it had not carried out the step.
func (r *run) takeBack(ctx context.Context, steps []undoing) error {
	s, err := r.monitor()
	if err != nil {
		return err
	}
	for _, u := range slices.Backward(steps) {
		if err := s.Execute(ctx, u.Command, u.Args, nil); noAnswer(err) {
			return err
		} else if err != nil {
			r.log.Debug("no part of the device to undo", "command", u.Command, "error", err)
		}
	}
	return nil
}

// hasDevice asks QEMU whether it has a device of that alias.
func (r *run) hasDevice(ctx context.Context, alias string) (bool, error) {
	s, err := r.monitor()
	if err != nil {
		return false, err
	}
	present, err := devicesOf(ctx, s)
	return present[alias], err
}

// devicesOf asks QEMU for the aliases of its devices.
func devicesOf(ctx context.Context, s *qmp.Session) (map[string]bool, error) {
	var objects []struct{ Name string }
	if err := s.Execute(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &objects); err != nil {
		return nil, err
	}
	present := map[string]bool{}
	for _, o := range objects {
		present[o.Name] = true
	}
	return present, nil
}
