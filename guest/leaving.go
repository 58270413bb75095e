package guest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// leaving is what stays of a device that the guest has let go until it is
// cleaned up: in QEMU, and on the host. The run record holds it meanwhile.
type leaving struct {
	Alias string `json:",omitempty"` // earlier daemons did not say
	Steps []undoing
	NIC   *heldNIC
	Image uint // the number of the images that QEMU is to let go; 0: none
	// Device is a PCI device of the host; nil: it was none. Taken says that the host's
	// driver gets it back.
	Device *kernel.PCIAddress `json:",omitempty"`
	Taken  bool               `json:",omitempty"`
	// For names what was labelled, or allowed, for it.
	For string `json:",omitempty"`

	giveBack func(context.Context) error // may be called by several; nil: there is nothing
	// cleaning says that somebody is at it, and again that he is to look once more; the loop's.
	cleaning, again bool
	told            atomic.Bool // that QEMU cannot let go of it yet
}

// once lets a release be called from several places.
func once(release func(context.Context) error) func(context.Context) error {
	if release == nil {
		return nil
	}
	var first sync.Once
	return func(ctx context.Context) (err error) {
		first.Do(func() { err = release(ctx) })
		return err
	}
}

// undoing is a command that takes something away which QEMU may have.
type undoing struct {
	Command string
	Args    json.RawMessage
}

// alsoSocket has the release of a device remove the socket that it listened on, and end its relay.
func alsoSocket(r *run, alias string, release func(context.Context) error) func(context.Context) error {
	dev := r.def.Devices.ByAlias(alias)
	if dev == nil {
		return release
	}
	b := backendOf(dev)
	if b == nil || b.Type != "unix" || r.User == nil {
		return release
	}
	return func(ctx context.Context) (err error) {
		if b.Mode == "connect" {
			r.relays.stop(alias)
		} else {
			err = removeSocket(ctx, b.Path, qemu.RemoveDeserted)
		}
		if release != nil {
			err = errors.Join(err, release(ctx))
		}
		return err
	}
}

func newUndoing(step *qemu.Step) (undoing, error) {
	args, err := json.Marshal(step.Args)
	return undoing{step.Command, args}, fault.Wrap(err, fault.Internal, fault.Device, "cannot note how a device is undone")
}

// newLeaving takes what is left of a device out of the running guest.
func (r *run) newLeaving(alias string, after []qemu.Step) (*leaving, error) {
	l := &leaving{Alias: alias}
	nic, release := r.takeNIC(alias)
	if at := pciFunction(r.def.Devices.ByAlias(alias)); at != nil {
		l.Device, release = at, r.takeRelease(deviceHold(*at))
		if i := slices.Index(r.Taken, *at); i >= 0 {
			r.Taken, l.Taken = append(r.Taken[:i:i], r.Taken[i+1:]...), true
		}
	}
	if dev := r.def.Devices.ByAlias(alias); dev != nil && r.labels != nil {
		l.For = ownerOf(dev)
	}
	l.NIC, l.giveBack = nic, once(alsoLabels(r, l.For, alsoSocket(r, alias, release)))
	if d, ok := r.def.Devices.ByAlias(alias).(*device.Disk); ok && d.Source != nil {
		l.Image = d.Source.Index
	}
	for i := range after {
		u, err := newUndoing(&after[i])
		if err != nil {
			return l, err
		}
		l.Steps = append(l.Steps, u)
	}
	return l, nil
}

// cleanUp ends what is left. It runs beside the loop, and may be repeated. Done
// false says that QEMU still uses something, or cannot be asked.
func (l *leaving) cleanUp(ctx context.Context, s *qmp.Session, log *slog.Logger) (done bool) {
	done = true
	for _, u := range l.Steps {
		failpoint.Reach("unplug.clean")
		switch err := insist(ctx, s, u); {
		case inUse(err) || s.Err() != nil || ctx.Err() != nil:
			if !l.told.Swap(true) {
				log.Info("QEMU cannot let go yet of what was behind a device", "command", u.Command, "cause", err)
			}
			done = false
		case err != nil: // it went before
			log.Debug("nothing is left behind a device", "command", u.Command, "cause", err)
		}
	}
	if done && l.Image != 0 {
		kept, err := forgetImages(ctx, s, l.Image)
		if kept {
			err = errors.New("it closes them when its guest runs")
		}
		if err != nil && !l.told.Swap(true) {
			log.Info("QEMU cannot let go yet of the images of a disk", "cause", err)
		}
		done = !kept && s.Err() == nil && ctx.Err() == nil
	}
	if done && l.giveBack != nil {
		if err := l.giveBack(ctx); err != nil {
			log.Error("cannot release what a removed device held", "error", err)
		}
	}
	return done
}

// forgetImages has QEMU let go of images that were handed to it and that nothing in
// it uses any more. Kept says that it has not: one that is paused does not close them.
func forgetImages(ctx context.Context, s *qmp.Session, index uint) (kept bool, err error) {
	sets := func() (steps []qemu.Step, err error) {
		var held []qemu.FileSet
		err = s.Execute(ctx, "query-fdsets", nil, &held)
		return qemu.ForgetImages(held, index), err
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

// insist repeats a command for a little while: QEMU lets go of what was behind a
// device somewhat later than of the device.
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

// inUse reports whether QEMU refused to remove what it still uses; it has no
// class of error for that.
func inUse(err error) bool {
	var refused *qmp.Error
	return errors.As(err, &refused) && (strings.Contains(refused.Desc, "in use") || strings.Contains(refused.Desc, "busy"))
}

// clean sets cleaning up after a device going, and has whoever waits be told. What cannot be
// done now is done when the monitor is back, or the guest runs again: a guest
// that is paused may keep a device busy. It runs in the loop. One that is under way is not begun
// once more, however often QEMU says that the guest runs.
func (g *Guest) clean(r *run, l *leaving, wait *removal) {
	if l.cleaning {
		l.again = true
		return
	}
	l.cleaning, l.again = true, false
	go func() {
		done := g.cleanNow(r, l)
		_ = g.change(g.reg.life, "", func() error { // else the guest has gone, or the daemon stops
			l.cleaning = false
			switch {
			case done:
				g.cleaned(r, l)
			case l.again && g.run == r:
				g.clean(r, l, nil)
			}
			return nil
		})
		if wait != nil {
			wait.result <- nil
		}
	}()
}

func (g *Guest) cleanNow(r *run, l *leaving) (done bool) {
	ctx, stop := context.WithTimeout(g.reg.life, modifyLimit)
	defer stop()
	s, err := r.monitor()
	return err == nil && l.cleanUp(ctx, s, g.log)
}

// cleanAgain tries what could not be done before. It runs in the loop.
func (g *Guest) cleanAgain() {
	if g.run == nil {
		return
	}
	for _, l := range g.run.Leaving {
		g.clean(g.run, l, nil)
	}
}

// admitAlias refuses to make a device under the name of one of which QEMU has not let go at the first try: the next
// one would take from the new device what is behind it. It runs in the loop.
func (g *Guest) admitAlias(alias string) error {
	for _, l := range g.run.Leaving {
		if l.Alias == alias && l.Image == 0 && (l.told.Load() || !l.cleaning) { // images have names of their own
			g.clean(g.run, l, nil)
			return fault.New(fault.Busy, fault.Device, "QEMU has still something of the device %s that was unplugged, and is asked once more to let go of it; try again then", alias)
		}
	}
	return nil
}

// cleaned notes that nothing stays of a device. It runs in the loop.
func (g *Guest) cleaned(r *run, l *leaving) {
	if i := slices.Index(r.Leaving, l); g.run == r && i >= 0 {
		r.Leaving = slices.Delete(r.Leaving, i, i+1)
		g.keepRun()
		if l.Device != nil { // only now: a later daemon would give it back once more
			r.dropClaimAt(*l.Device)
		}
		failpoint.Reach("unplug.cleaned")
	}
}

// reholdLeaving finds the interfaces and PCI devices again that devices left behind.
func (r *Registry) reholdLeaving(run *run) {
	for _, l := range run.Leaving {
		l.giveBack = once(alsoLabels(run, l.For, r.reholdLeft(run, l)))
		if l.NIC == nil {
			continue
		}
		// Its network has forgotten it: only the link may be there.
		if release, err := r.readopt(run, &device.NIC{Type: "ethernet"}, l.NIC); err == nil {
			l.giveBack = once(alsoLabels(run, l.For, release))
		}
	}
}

// reholdLeft claims the PCI device that a device left behind. The release gives it back to the
// host's driver; nil: that is not to be done.
func (r *Registry) reholdLeft(run *run, l *leaving) func(context.Context) error {
	if l.Device == nil {
		return nil
	}
	if err := r.holdClaim(run, *l.Device); err != nil {
		run.log.Info("a device that was unplugged has been plugged in since", "cause", err)
		return nil
	}
	if !l.Taken {
		return nil
	}
	return r.returning(run, *l.Device)
}

// holdLeaving has the end of the guest give back what its devices left behind.
func (r *run) holdLeaving() {
	for _, l := range r.Leaving {
		if l.giveBack != nil {
			r.hold("interface that was unplugged", l.giveBack)
		}
	}
}
