package hotplug

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// AttachKind attaches a device to a running guest. QEMU decides whether it happened: it has a device of
// that alias, or it does not.
var AttachKind = operation.Kind[*machine.Instance]{
	Name: "attach", Version: 1, Class: operation.Change,
	Steps: []string{"hold", "make", "plug", "settle", "define"}, Undo: []string{"hold", "make", "plug"},
	Bind: func(r *machine.Instance) operation.Work { return &AttachOp{R: r} },
}

// AttachOp is the journalled payload of an attachment.
type AttachOp struct {
	Device string           // its complete XML
	Saved  string           `json:",omitempty"` // the device for the stored definition; empty: none
	NIC    *machine.HeldNIC `json:",omitempty"` // the interface made for it on the host
	Undo   []Undoing        `json:",omitempty"` // in the order of the steps that they undo

	R     *machine.Instance `json:"-"`
	op    *operation.Operation
	Dev   device.Device `json:"-"`
	saved device.Device
	Plan  *qemu.Plan  `json:"-"` // known only to the daemon that began it
	steps []qemu.Step // known only to the daemon that began it

	what    string // names what release gives back
	release func(context.Context) error
	// Reserved is the reservation in the host's ledger for a memory module. Nil: there is none.
	Reserved *topology.Reservation `json:"-"`
	// Defined says that the live definition has the device, and that the instance owns its resources.
	Defined bool `json:"-"`
}

// Steps implements operation.Work.
func (a *AttachOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "hold", Effect: operation.Boot, Do: a.hold, Undo: a.giveBack},
		{Name: "make", Effect: operation.Process, Do: a.make, Undo: a.takeBack},
		{Name: "plug", Effect: operation.Process, Decisive: true, Do: a.plug, Undo: a.takeBack, Probe: a.probe},
		{Name: "settle", Effect: operation.Process, Do: a.settle},
		{Name: "define", Effect: operation.Process, Do: a.define},
	}
}

// Opened implements operation.Opener.
func (a *AttachOp) Opened(op *operation.Operation) (err error) {
	a.op = op
	if a.Dev != nil {
		return nil
	}
	if a.Dev, err = domainxml.ParseDevice(a.Device, domainxml.Options{Active: true}); err != nil {
		return err
	}
	if a.Saved != "" {
		a.saved, err = domainxml.ParseDevice(a.Saved, domainxml.Options{Active: true})
	}
	return err
}

// Rehold implements operation.Rehold. QEMU may have the device already: it is asked later.
func (a *AttachOp) Rehold() {
	r := a.R
	notesNode(r, a.Dev)
	if r.Definition.Devices.ByAlias(a.alias()) != nil { // the instance owns its resources
		a.Defined = true
		return
	}
	provision.RelayAgain(r.Reg.Life, r, a.op.Scope().WithNotedFolders(r.Fences), a.Dev)
	if m, is := a.Dev.(*device.Memory); is {
		demand := provision.ModuleDemand(r.Definition, m)
		r.Reg.Ledger.Add(r.UUID, demand)
		a.Reserved = &demand
	}
	if at := PCIFunction(a.Dev); at != nil {
		release, err := claimDevice(r.Reg, *at, r)
		if err != nil {
			r.Log.Error("cannot claim the device of an interrupted attachment", "error", err)
		} else {
			a.what, a.release = claimOf(*at), release
		}
	}
	if nic, is := a.Dev.(*device.NIC); is && a.NIC != nil {
		if release, err := provision.ReadoptNIC(r.Reg, r, nic, a.NIC); err == nil { // otherwise the interface ended with its last descriptor
			a.what, a.release = a.NIC.What(), release
		}
	}
}

func (a *AttachOp) alias() string { return a.Dev.Common().Alias }

// attachDevice attaches a device, beside the loop. saved is the device for the stored definition. Nil:
// none.
func attachDevice(ctx context.Context, g *machine.Guest, sc scope.Scope, r *machine.Instance, p *qemu.Plan, dev, saved device.Device) (err error) {
	if _, err := r.Monitor(); err != nil {
		return err
	}
	a := &AttachOp{R: r, Dev: dev, saved: saved, Plan: p}
	p.Disks, p.NICs = map[string]device.DiskAttachment{}, map[string]*device.NICAttachment{}
	defer provision.ClosePlan(p)
	objects := []string{"alias/" + a.alias()}
	switch d := dev.(type) {
	case *device.Disk:
		objects = append(objects, "disk/"+d.Target)
		found, present, err := provision.FindDisk(ctx, g.Reg, sc, r, d)
		if err != nil {
			return err
		}
		if present {
			p.Disks[d.Alias] = found
			r.ShowChain(d, found)
		}
		forget, err := GiveKey(g.Reg, p, d)
		if err != nil {
			return err
		}
		defer forget()
	case *device.VSock:
		if p.VSock, err = qemu.ClaimVSock(d); err != nil {
			return err
		}
	}
	if err := a.Describe(); err != nil {
		return err
	}
	return ExplainKey(dev, r.Perform(ctx, sc, AttachKind.Name, a, objects...))
}

// Describe formats the devices into the payload.
func (a *AttachOp) Describe() (err error) {
	if a.Device, err = domainxml.FormatDevice(a.Dev, domainxml.Style{Active: true, Secure: true}); err != nil || a.saved == nil {
		return err
	}
	a.Saved, err = domainxml.FormatDevice(a.saved, domainxml.Style{Secure: true})
	return err
}

// hold takes the host's resources for the device, and plans the QMP steps.
func (a *AttachOp) hold(ctx context.Context) (err error) {
	r := a.R
	switch d := a.Dev.(type) {
	case *device.NIC:
		err = a.Connect(ctx, a.op.Scope(), d)
	case *device.HostDevice:
		if at := PCIFunction(d); at != nil {
			a.what = claimOf(*at)
			a.release, err = claimDevice(r.Reg, *at, r)
		}
		if err == nil {
			err = provision.PlugHostDevice(r.Reg, r.UUID, d)
		}
	case *device.Memory:
		if err = provision.ReserveMemory(r.Guest, a.Plan.Definition, d); err == nil {
			demand := provision.ModuleDemand(a.Plan.Definition, d)
			a.Reserved = &demand
		}
	}
	if err != nil {
		return err
	}
	if err := provision.Admit(ctx, r.Reg, a.op.Scope(), r, a.Plan, a.Dev); err != nil {
		return err
	}
	if a.steps, err = qemu.Plug(a.Plan, a.Dev); err != nil {
		return err
	}
	for _, step := range a.steps {
		if step.Undo == nil {
			continue
		}
		u, err := NewUndoing(step.Undo)
		if err != nil {
			return err
		}
		a.Undo = append(a.Undo, u)
	}
	if err := a.Describe(); err != nil {
		return err
	}
	return a.op.Save()
}

// Connect gives a NIC its interface on the host. If the interface would outlive a killed daemon, its name
// is journalled before it is made.
func (a *AttachOp) Connect(ctx context.Context, sc scope.Scope, n *device.NIC) error {
	r := a.R
	note := func(ifName string) error {
		a.NIC = &machine.HeldNIC{Alias: n.Alias, IfName: ifName}
		return a.op.Save()
	}
	made, release, err := provision.AttachNIC(ctx, r.Reg, sc, a.Plan.Definition, n, note)
	if err != nil {
		return err
	}
	if made == nil {
		if provision.LacksNetwork(r.Reg, r) {
			return serveUserNetwork(ctx, r.Reg, sc, a, n)
		}
		return nil
	}
	a.Plan.NICs[n.Alias], n.Target = made, made.IfName
	a.NIC = &machine.HeldNIC{Alias: n.Alias, IfName: made.IfName, Bridge: made.Bridge}
	a.what, a.release = a.NIC.What(), release
	return nil
}

// giveBack releases the resources that hold took.
func (a *AttachOp) giveBack(ctx context.Context) error {
	if a.Defined {
		return nil
	}
	provision.StopRelay(&a.R.Relays, a.alias())
	err := a.R.Labels.GiveBack(ctx, filelabel.OwnerOf(a.Dev))
	if a.release != nil {
		if e := a.release(ctx); e != nil {
			return errors.Join(err, fmt.Errorf("cannot release the %s: %w", a.what, e))
		}
		a.release = nil
	}
	if a.Reserved != nil {
		a.R.Reg.Ledger.Reduce(a.R.UUID, *a.Reserved)
		a.Reserved = nil
	}
	return err
}

// make makes the objects behind the device in QEMU.
func (a *AttachOp) make(ctx context.Context) error { return Tell(ctx, a.R, a.steps[:a.decides()]) }

// decides returns the index of the step that makes the device itself.
func (a *AttachOp) decides() int {
	for i := len(a.steps) - 1; i > 0; i-- {
		if a.steps[i].Command == "device_add" {
			return i
		}
	}
	return 0
}

// plug makes the device in QEMU. If QEMU refuses its limits, the attachment fails.
func (a *AttachOp) plug(ctx context.Context) error {
	defer endTerminals(a.R.Guest, a.R)
	if err := Tell(ctx, a.R, a.steps[a.decides():]); err != nil {
		return err
	}
	return a.tune(ctx)
}

// takeBack undoes the QMP steps of the attachment.
func (a *AttachOp) takeBack(ctx context.Context) error { return takeBack(ctx, a.R, a.Undo) }

// probe asks QEMU whether it has the device.
func (a *AttachOp) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	there, err := hasDevice(ctx, a.R, a.alias())
	if err != nil || !there {
		return operation.Never, err
	}
	return operation.Happened, nil
}

// settle sets the limits that cannot be given when the device is made. After an interrupted attachment the
// guest keeps the device even if QEMU refuses its limits.
func (a *AttachOp) settle(ctx context.Context) error {
	if a.steps != nil { // plug has set them
		return nil
	}
	err := a.tune(ctx)
	if err == nil || machine.NoAnswer(err) {
		return err
	}
	a.R.Log.Warn("QEMU refuses the limits of a device; device attached without them", "alias", a.alias(), "error", err)
	if d, is := a.Dev.(*device.Disk); is {
		d.Tune = nil
	}
	return nil
}

// tune sends QEMU the settings that cannot be part of device_add.
func (a *AttachOp) tune(ctx context.Context) error {
	s, err := a.R.Monitor()
	if err != nil {
		return err
	}
	return settlePlugged(ctx, s, a.Dev)
}

// define adds the device to the live definition and, if asked, to the stored one.
func (a *AttachOp) define(ctx context.Context) error {
	return a.R.InLoop(ctx, func(g *machine.Guest) error {
		if a.R.Definition.Devices.ByAlias(a.alias()) == nil {
			if err := addAttached(g, a); err != nil {
				return operation.Final(err)
			}
		}
		a.Defined = true
		if a.saved == nil {
			return nil
		}
		return provision.FollowOnce(g, a.op.Scope(), a.op.ID(), func(*domain.Definition) (*domain.Definition, error) { return withDevice(g, a.saved) })
	})
}

// addAttached adds a device to the live definition, and its resources to the instance.
func addAttached(g *machine.Guest, a *AttachOp) error {
	var err error
	g.SetActive(func(d *domain.Definition) { err = d.Add(a.Dev) })
	if err != nil {
		return err
	}
	if a.release != nil {
		a.R.Hold(a.what, a.release)
	}
	if a.NIC != nil {
		a.R.NICs = append(a.R.NICs, *a.NIC)
	}
	g.WriteActive()
	g.Announce(event.DomainDeviceAdded{Alias: a.alias()})
	return nil
}

// Tell executes steps in QEMU until one is refused or not answered.
func Tell(ctx context.Context, r *machine.Instance, steps []qemu.Step) error {
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	return provision.ExecuteAll(ctx, s, steps)
}

// takeBack undoes steps in reverse order. If QEMU refuses an undo, it had not carried out the step.
func takeBack(ctx context.Context, r *machine.Instance, steps []Undoing) error {
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	for _, u := range slices.Backward(steps) {
		if err := s.Execute(ctx, u.Command, u.Args, nil); machine.NoAnswer(err) {
			return err
		} else if err != nil {
			r.Log.Debug("no part of the device to undo", "command", u.Command, "error", err)
		}
	}
	return nil
}

// hasDevice asks QEMU whether it has a device of that alias.
func hasDevice(ctx context.Context, r *machine.Instance, alias string) (bool, error) {
	s, err := r.Monitor()
	if err != nil {
		return false, err
	}
	present, err := DevicesOf(ctx, s)
	return present[alias], err
}

// DevicesOf asks QEMU for the aliases of its devices.
func DevicesOf(ctx context.Context, s *qmp.Session) (map[string]bool, error) {
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

// endTerminals is the part of seal that follows the attachment of a device, for which QEMU may have opened
// a terminal.
func endTerminals(g *machine.Guest, r *machine.Instance) {
	if r.User == nil {
		return
	}
	if err := sandbox.RevokeTerminals(r.PID); err != nil {
		g.Log.Warn("cannot close the host's terminals to the guest", "error", err)
	}
}
