package guest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// cleanupKind removes the rest of a device that the guest has released, in QEMU and on the host. It only
// goes forward. While a guest is paused QEMU keeps its images open, so a cleanup may stay open for hours.
var cleanupKind = operation.Kind[*run]{
	Name: "cleanup", Version: 1, Class: operation.Cleanup,
	Steps: []string{"objects", "images", "release"},
	Bind:  func(r *run) operation.Work { return &cleanup{r: r} },
}

// cleanup is the journalled payload of a cleanup.
type cleanup struct {
	Alias   string    `json:",omitempty"` // the device's alias; empty: only images of a drive
	Objects []undoing `json:",omitempty"` // the commands that remove its objects
	NIC     *heldNIC  `json:",omitempty"`
	Images  []uint    `json:",omitempty"` // the numbers of the images that QEMU must close
	Lent    []written `json:",omitempty"` // the images to which QEMU no longer needs write access
	// Device is a PCI device of the host. Nil: none. Taken says that the host's driver gets it back.
	Device *kernel.PCIAddress `json:",omitempty"`
	Taken  bool               `json:",omitempty"`
	// For names the device in the labels and in the AppArmor profile.
	For string `json:",omitempty"`
	// Socket is the path of the socket it listened on. Empty: none.
	Socket string `json:",omitempty"`

	r       *run
	op      *operation.Operation
	release func(context.Context) error // of its NIC or PCI device; nil: none
}

// Steps implements operation.Work.
func (c *cleanup) Steps() []operation.Step {
	return []operation.Step{
		{Name: "objects", Effect: operation.Boot, Decisive: true, Do: c.removeObjects},
		{Name: "images", Effect: operation.Boot, Do: c.closeImages},
		{Name: "release", Effect: operation.Boot, Do: c.giveBack},
	}
}

// Opened implements operation.Opener.
func (c *cleanup) Opened(op *operation.Operation) error {
	c.op = op
	return nil
}

// newCleanup moves the remaining resources of a device from the run to a cleanup. It runs in the loop.
func (r *run) newCleanup(dev device.Device) *cleanup {
	c := &cleanup{r: r, Alias: dev.Common().Alias}
	c.NIC, c.release = r.takeNIC(c.Alias)
	if at := pciFunction(dev); at != nil {
		c.Device, c.release = at, r.takeRelease(deviceHold(*at))
		if i := slices.Index(r.Taken, *at); i >= 0 {
			r.Taken, c.Taken = append(r.Taken[:i:i], r.Taken[i+1:]...), true
		}
	}
	if r.labels != nil {
		c.For = ownerOf(dev)
	}
	if b := backendOf(dev); b != nil && b.Type == "unix" && b.Mode != "connect" && r.User != nil {
		c.Socket = b.Path
	}
	if d, is := dev.(*device.Disk); is {
		c.Images = d.Nodes()
	}
	_, after, err := qemu.Unplug(dev)
	for i := range after {
		u, e := newUndoing(&after[i])
		if err = errors.Join(err, e); e == nil {
			c.Objects = append(c.Objects, u)
		}
	}
	if err != nil {
		r.log.Error("cannot clean up after a removed device", "alias", c.Alias, "error", err)
	}
	return c
}

// objects returns what blocks a new device of the same alias: removing objects by name would hit the new
// device's. Images need no such entry, because their numbers are unique.
func (c *cleanup) objects() []string {
	if c.Alias == "" {
		return nil
	}
	return []string{"alias/" + c.Alias}
}

// Rehold implements operation.Rehold.
func (c *cleanup) Rehold() {
	r := c.r
	if c.NIC != nil {
		// Its network no longer knows the NIC: only the link may be left.
		if release, err := r.reg.readopt(r, &device.NIC{Type: "ethernet"}, c.NIC); err == nil {
			c.release = release
		}
	}
	if c.Device == nil {
		return
	}
	if err := r.reg.holdClaim(r, *c.Device); err != nil {
		r.log.Info("detached device was attached again since", "cause", err)
	} else if c.Taken {
		c.release = r.reg.returning(r, *c.Device)
	}
}

// removeObjects removes the objects behind the device in QEMU, unless QEMU has ended.
func (c *cleanup) removeObjects(ctx context.Context) error {
	if c.r.isOver() {
		return nil
	}
	s, err := c.r.monitor()
	if err == nil {
		err = c.r.removeAll(ctx, s, c.Objects)
	}
	if err == nil {
		c.op.Free("alias/" + c.Alias)
	}
	return err
}

// removeAll removes objects that are no longer used. It returns an error for an object that is still in
// use, which is removed later.
func (r *run) removeAll(ctx context.Context, s *qmp.Session, all []undoing) error {
	for _, u := range all {
		switch err := insist(ctx, s, u); {
		case inUse(err) || noAnswer(err):
			return err
		case err != nil: // it was removed before
			r.log.Debug("object is gone already", "command", u.Command, "cause", err)
		}
	}
	return nil
}

// closeImages closes a disk's images in QEMU. QEMU refuses while the guest is paused.
func (c *cleanup) closeImages(ctx context.Context) error {
	if len(c.Images)+len(c.Lent) == 0 || c.r.isOver() {
		return nil
	}
	s, err := c.r.monitor()
	if err != nil {
		return err
	}
	kept := false
	if len(c.Images) > 0 {
		kept, err = forgetImages(ctx, s, c.Images)
	}
	for _, w := range c.Lent {
		if err == nil && !kept {
			kept, err = takeBackFiles(ctx, s, w.Number)
		}
	}
	if kept {
		return errors.New("QEMU closes the images of a paused guest when it runs")
	}
	if err != nil && !noAnswer(err) { // a later attempt would fail, too
		c.r.log.Warn("QEMU does not close the images of a disk", "alias", c.Alias, "error", err)
		return nil
	}
	return err
}

// giveBack releases the host's resources for the device.
func (c *cleanup) giveBack(ctx context.Context) (err error) {
	c.r.relays.stop(c.Alias)
	for _, w := range c.Lent {
		err = errors.Join(err, forgetNote(ctx, w))
	}
	if c.Socket != "" {
		err = errors.Join(err, removeSocket(ctx, c.Socket, qemuprocess.RemoveDeserted))
	}
	if c.For != "" {
		err = errors.Join(err, c.r.labels.giveBack(ctx, c.For))
	}
	if c.release != nil {
		err = errors.Join(err, c.release(ctx))
	}
	if err == nil {
		c.release = nil
	}
	return err
}

// Ended implements operation.Ender. It drops the claim on the PCI device only now: until the record is
// gone, the next daemon would return the device to its driver.
func (c *cleanup) Ended() {
	if c.Device == nil {
		return
	}
	c.r.reg.loops.Go(func() { // fails if the guest is gone or the daemon stops
		_ = c.r.inLoop(c.r.reg.life, func(*Guest) error { c.r.dropClaimAt(*c.Device); return nil })
	})
}

// undoing is a command that removes something from QEMU, if QEMU has it.
type undoing struct {
	Command string
	Args    json.RawMessage
}

func newUndoing(step *qemu.Step) (undoing, error) {
	args, err := json.Marshal(step.Args)
	return undoing{step.Command, args}, fault.Wrap(err, fault.Internal, fault.Device, "cannot record how to undo a device")
}

// forgetImages closes images in QEMU that it was given and no longer uses. kept says that QEMU still has
// them: a paused QEMU does not close them.
func forgetImages(ctx context.Context, s *qmp.Session, numbers []uint) (kept bool, err error) {
	sets := func() (steps []qemu.Step, err error) {
		held, err := fileSets(ctx, s)
		return qemu.ForgetImages(held, numbers), err
	}
	steps, err := sets()
	if len(steps) == 0 || err != nil {
		return false, err
	}
	for _, step := range steps {
		if err := execute(ctx, s, step); err != nil {
			return false, err
		}
	}
	steps, err = sets()
	return len(steps) > 0, err
}

// insist repeats a command for at most about a second: QEMU releases the objects behind a device somewhat
// later than the device.
func insist(ctx context.Context, s *qmp.Session, u undoing) error {
	for wait := firstLook; ; wait *= 2 {
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
