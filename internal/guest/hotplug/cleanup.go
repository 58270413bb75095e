package hotplug

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// CleanupKind removes the rest of a device that the guest has released, in QEMU and on the host. It only
// goes forward. While a guest is paused QEMU keeps its images open, so a cleanup may stay open for hours.
var CleanupKind = operation.Kind[*machine.Instance]{
	Name: "cleanup", Version: 1, Class: operation.Cleanup,
	Steps: []string{"objects", "images", "release"},
	Bind:  func(r *machine.Instance) operation.Work { return &CleanupOp{R: r} },
}

// CleanupOp is the journalled payload of a cleanup.
type CleanupOp struct {
	Alias   string              `json:",omitempty"` // the device's alias; empty: only images of a drive
	Objects []UndoCommand       `json:",omitempty"` // the commands that remove its objects
	NIC     *machine.HeldNIC    `json:",omitempty"`
	Images  []uint              `json:",omitempty"` // the numbers of the images that QEMU must close
	Lent    []machine.LentImage `json:",omitempty"` // the images to which QEMU no longer needs write access
	// Device is a PCI device of the host. Nil: none. Taken says that the host's driver gets it back.
	Device *kernel.PCIAddress `json:",omitempty"`
	Taken  bool               `json:",omitempty"`
	// For names the device in the labels and in the AppArmor profile.
	For string `json:",omitempty"`
	// Socket is the path of the socket it listened on. Empty: none.
	Socket string `json:",omitempty"`

	R       *machine.Instance `json:"-"`
	op      *operation.Operation
	Release func(context.Context) error `json:"-"` // of its NIC or PCI device; nil: none
}

// Steps implements operation.Work.
func (c *CleanupOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "objects", Effect: operation.Boot, Decisive: true, Do: c.removeObjects},
		{Name: "images", Effect: operation.Boot, Do: c.closeImages},
		{Name: "release", Effect: operation.Boot, Do: c.GiveBack},
	}
}

// Opened implements operation.Opener.
func (c *CleanupOp) Opened(op *operation.Operation) error {
	c.op = op
	return nil
}

// NewCleanup moves the remaining resources of a device from the instance to a cleanup. It runs in the loop.
func NewCleanup(r *machine.Instance, dev device.Device) *CleanupOp {
	c := &CleanupOp{R: r, Alias: dev.Common().Alias}
	c.NIC, c.Release = r.TakeNIC(c.Alias)
	if at := PCIFunction(dev); at != nil {
		c.Device, c.Release = at, r.TakeRelease(returnName(*at))
		if i := slices.Index(r.Taken, *at); i >= 0 {
			r.Taken, c.Taken = append(r.Taken[:i:i], r.Taken[i+1:]...), true
		}
	}
	if r.Labels != nil {
		c.For = filelabel.OwnerOf(dev)
	}
	if b := provision.BackendOf(dev); b != nil && b.Type == "unix" && b.Mode != "connect" && r.User != nil {
		c.Socket = b.Path
	}
	if d, is := dev.(*device.Disk); is {
		c.Images = d.Nodes()
	}
	_, after, err := qemu.Unplug(dev)
	for i := range after {
		u, e := NewUndoCommand(&after[i])
		if err = errors.Join(err, e); e == nil {
			c.Objects = append(c.Objects, u)
		}
	}
	if err != nil {
		r.Log.Error("cannot clean up after a removed device", "alias", c.Alias, "error", err)
	}
	return c
}

// QEMUObjects returns what blocks a new device of the same alias: removing objects by name would hit the new
// device's. Images need no such entry, because their numbers are unique.
func (c *CleanupOp) QEMUObjects() []string {
	if c.Alias == "" {
		return nil
	}
	return []string{"alias/" + c.Alias}
}

// Rehold implements operation.Reholder.
func (c *CleanupOp) Rehold() {
	r := c.R
	if c.NIC != nil {
		// Its network no longer knows the NIC: only the link may be left.
		if release, err := provision.ReadoptNIC(r.Reg, r, &device.NIC{Type: "ethernet"}, c.NIC); err == nil {
			c.Release = release
		}
	}
	if c.Device == nil {
		return
	}
	if err := ClaimUntilEnd(r.Reg, r, *c.Device); err != nil {
		r.Log.Info("detached device was attached again since", "cause", err)
	} else if c.Taken {
		c.Release = ReturnDevice(r.Reg, r, *c.Device)
	}
}

// removeObjects removes the objects behind the device in QEMU, unless QEMU has ended.
func (c *CleanupOp) removeObjects(ctx context.Context) error {
	if provision.IsOver(c.R) {
		return nil
	}
	s, err := c.R.Monitor()
	if err == nil {
		err = RemoveObjects(ctx, c.R, s, c.Objects)
	}
	if err == nil {
		c.op.Free("alias/" + c.Alias)
	}
	return err
}

// RemoveObjects removes objects that are no longer used. It returns an error for an object that is still in
// use, which is removed later.
func RemoveObjects(ctx context.Context, r *machine.Instance, s *qmp.Session, all []UndoCommand) error {
	for _, u := range all {
		switch err := retryWhileInUse(ctx, s, u); {
		case inUse(err) || machine.NoAnswer(err):
			return err
		case err != nil: // it was removed before
			r.Log.Debug("object is gone already", "command", u.Command, "cause", err)
		}
	}
	return nil
}

// closeImages closes a disk's images in QEMU. QEMU refuses while the guest is paused.
func (c *CleanupOp) closeImages(ctx context.Context) error {
	if len(c.Images)+len(c.Lent) == 0 || provision.IsOver(c.R) {
		return nil
	}
	s, err := c.R.Monitor()
	if err != nil {
		return err
	}
	kept := false
	if len(c.Images) > 0 {
		kept, err = CloseImages(ctx, s, c.Images)
	}
	for _, w := range c.Lent {
		if err == nil && !kept {
			kept, err = provision.TakeBackFiles(ctx, s, w.Number)
		}
	}
	if kept {
		return errors.New("QEMU closes the images of a paused guest when it runs")
	}
	if err != nil && !machine.NoAnswer(err) { // a later attempt would fail, too
		c.R.Log.Warn("QEMU does not close the images of a disk", "alias", c.Alias, "error", err)
		return nil
	}
	return err
}

// GiveBack releases the host's resources for the device.
func (c *CleanupOp) GiveBack(ctx context.Context) (err error) {
	provision.StopRelay(&c.R.Relays, c.Alias)
	for _, w := range c.Lent {
		err = errors.Join(err, provision.ForgetNote(ctx, w))
	}
	if c.Socket != "" {
		err = errors.Join(err, provision.RemoveSocket(ctx, c.Socket, qemuprocess.RemoveDeserted))
	}
	if c.For != "" {
		err = errors.Join(err, c.R.Labels.GiveBack(ctx, c.For))
	}
	if c.Release != nil {
		err = errors.Join(err, c.Release(ctx))
	}
	if err == nil {
		c.Release = nil
	}
	return err
}

// Ended implements operation.Ender. It drops the claim on the PCI device only now: until the record is
// gone, the next daemon would return the device to its driver.
func (c *CleanupOp) Ended() {
	if c.Device == nil {
		return
	}
	c.R.Reg.Loops.Go(func() { // fails if the guest is gone or the daemon stops
		_ = c.R.InLoop(c.R.Reg.Life, func(*machine.Guest) error { dropClaimAt(c.R, *c.Device); return nil })
	})
}

// UndoCommand is a command that removes something from QEMU, if QEMU has it.
type UndoCommand struct {
	Command string
	Args    json.RawMessage
}

// NewUndoCommand gives how one step of a plan is undone.
func NewUndoCommand(step *qemu.Step) (UndoCommand, error) {
	args, err := json.Marshal(step.Args)
	return UndoCommand{step.Command, args}, fault.Wrap(err, fault.Internal, fault.Device, "cannot record how to undo a device")
}

// CloseImages closes images in QEMU that it was given and no longer uses. kept says that QEMU still has
// them: a paused QEMU does not close them.
func CloseImages(ctx context.Context, s *qmp.Session, numbers []uint) (kept bool, err error) {
	sets := func() (steps []qemu.Step, err error) {
		held, err := machine.QueryFDSets(ctx, s)
		return qemu.ForgetImages(held, numbers), err
	}
	steps, err := sets()
	if len(steps) == 0 || err != nil {
		return false, err
	}
	for _, step := range steps {
		if err := machine.Execute(ctx, s, step); err != nil {
			return false, err
		}
	}
	steps, err = sets()
	return len(steps) > 0, err
}

// retryWhileInUse repeats a command for at most about a second: QEMU releases the objects behind a device somewhat
// later than the device.
func retryWhileInUse(ctx context.Context, s *qmp.Session, u UndoCommand) error {
	for wait := machine.FirstPoll; ; wait *= 2 {
		err := s.Execute(ctx, u.Command, u.Args, nil)
		if !inUse(err) || wait > time.Second {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// inUse reports whether QEMU refused to remove something that it still uses. QEMU has no error class for
// that, so the text decides.
func inUse(err error) bool {
	var refused *qmp.Error
	return errors.As(err, &refused) && (strings.Contains(refused.Desc, "in use") || strings.Contains(refused.Desc, "busy"))
}
