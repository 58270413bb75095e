package guest

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/atomicfile"
	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/qmp"
)

// amending is a change in place of a running guest, and of its stored definition,
// as it lies in the run directory until both have it: of limits and bindings, of a
// NIC's link, a display's password, of processors, the balloon, words. When the
// daemon is killed in between, or QEMU does not answer, it is made once more: each
// part of it may be.
type amending struct {
	Active string // the running definition with the change
	Config string // the stored one; empty: that stays as it is
	// OfActive and OfConfig are the same without it: what others change meanwhile stays. Earlier daemons did not say.
	OfActive, OfConfig string
	Change             string // what the store says when it has followed
	// VCPUs is how many processors there were before more were plugged in; 0: none were.
	VCPUs uint
	// Balloon is what the guest was asked to be, in bytes; 0: it was not asked.
	Balloon uint64

	// What these say; config may be nil, and so may what it is of.
	active, config, ofActive, ofConfig *domain.Definition
}

const amendingFile = "amending.json"

// of notes what a change is of, in the loop.
func (a *amending) of(g *Guest, config *following) {
	a.ofActive, a.OfActive = g.run.def, g.run.XML
	if config != nil {
		a.ofConfig, a.OfConfig, a.Change = config.of, g.record.XML, config.change
	}
}

// write journals the change before it is begun.
func (a *amending) write(r *run, after, config *domain.Definition) (err error) {
	a.active, a.config = after, config
	if a.Active, err = r.text(after); err != nil {
		return err
	}
	if config != nil {
		if a.Config, err = domainxml.Format(config, domainxml.Style{Secure: true}); err != nil {
			return err
		}
	}
	return r.begin(amendingFile, a)
}

func readAmending(dir string) (*amending, error) {
	a, err := atomicfile.ReadJSON[amending](filepath.Join(dir, amendingFile))
	if a == nil && err == nil {
		return nil, nil
	}
	read := func(text string, o domainxml.Options) (d *domain.Definition) {
		if err == nil && text != "" {
			d, err = domainxml.Parse(text, o)
		}
		return d
	}
	if err == nil {
		running := domainxml.Options{Active: true}
		a.active, a.ofActive = read(a.Active, running), read(a.OfActive, running)
		a.config, a.ofConfig = read(a.Config, domainxml.Options{}), read(a.OfConfig, domainxml.Options{})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read how a guest was being changed: %w", err)
	}
	return a, nil
}

// amendingAgain finds the change again that an earlier daemon began.
func (r *run) amendingAgain() {
	a, err := readAmending(r.dir)
	if err != nil {
		r.log.Error("what was being changed of a guest is left as it is", "error", err)
	}
	r.amending = a
}

// forgetAmending notes that nothing is half changed any more.
func (r *run) forgetAmending() {
	r.amending = nil
	r.done(amendingFile)
}

// amend plans a change in place. After is the running definition with the change,
// config what follows in the stored one (nil: that stays). Do tells QEMU and the host of it, beside
// the loop, and gives what the loop is then to note: nil where it was refused as a
// whole.
func (g *Guest) amend(r *run, a *amending, after *domain.Definition, config *following, do func(context.Context, *qmp.Session) (note func(), err error)) work {
	a.of(g, config)
	return func(ctx context.Context) (settle, error) {
		s, err := r.monitor()
		if err != nil {
			return nil, err
		}
		if err := a.write(r, after, config.definition()); err != nil {
			return nil, err
		}
		note, err := do(ctx, s)
		if err != nil && outOfTouch(ctx, s) {
			s.Close() // a new session makes the change once more
			return func() error { r.amending = a; return nil }, err
		}
		failpoint.Reach("amend.made")
		return func() error {
			defer r.forgetAmending()
			if note != nil {
				note()
				g.state.Policy = policy(r.def)
				g.keepActive()
				failpoint.Reach("amend.kept")
			}
			if err == nil {
				return config.store()
			}
			return nil
		}, err
	}
}

// outOfTouch says that a failure may come from QEMU's not answering, so that it is
// not known what it made of what it was told.
func outOfTouch(ctx context.Context, s *qmp.Session) bool { return ctx.Err() != nil || s.Err() != nil }

// finishAmending makes a change that was cut off. It runs beside the loop.
func (g *Guest) finishAmending(ctx context.Context, r *run, s *qmp.Session, before *domain.Definition, a *amending) (settle, error) {
	after := before.Clone()
	a.takenBy(after)
	err := g.follow(ctx, r, s, a, before, after)
	if err != nil && outOfTouch(ctx, s) {
		return nil, err
	}
	return func() error {
		defer r.forgetAmending()
		if err != nil { // as it was to be then; its client was not told that it is done
			g.log.Warn("what was being changed of a guest is refused", "error", err)
			return nil
		}
		g.log.Info("what was being changed of a guest is so")
		g.setActive(a.takenBy)
		g.state.Policy = policy(r.def)
		g.keepActive()
		if a.config == nil || g.inactive == nil || g.hasFollowed(a.Change) {
			return nil
		}
		config := g.inactive.Clone()
		takeSettings(config, a.ofConfig, a.config)
		return g.redefineAfter(a.Change, config)
	}, nil
}

// takenBy has the running definition take the change. How many processors there are of those that
// were to be plugged in may be known meanwhile.
func (a *amending) takenBy(d *domain.Definition) {
	takeSettings(d, a.ofActive, a.active)
	if a.VCPUs != 0 {
		d.VCPUs.Current = min(a.active.VCPUs.Current, d.VCPUs.Max)
	}
}

// follow has QEMU and the host do what differs between two definitions.
func (g *Guest) follow(ctx context.Context, r *run, s *qmp.Session, a *amending, before, after *domain.Definition) error {
	if err := g.reg.retune(ctx, r, before, after); err != nil {
		return err
	}
	for i, n := range after.Devices.NICs {
		if n.Link != before.Devices.NICs[i].Link {
			if err := g.updateLive(ctx, r, n); err != nil {
				return err
			}
		}
	}
	for i, d := range after.Devices.Graphics {
		if !reflect.DeepEqual(d, before.Devices.Graphics[i]) {
			if err := g.updateLive(ctx, r, d); err != nil {
				return err
			}
		}
	}
	if a.Balloon != 0 {
		if err := s.Execute(ctx, "balloon", map[string]any{"value": a.Balloon}, nil); err != nil {
			return err
		}
	}
	if a.VCPUs == 0 || a.VCPUs >= after.VCPUs.Current {
		return nil
	}
	if _, err := plugVCPUs(ctx, s, after.VCPUs.Current); err != nil {
		return err
	}
	return g.reg.settleVCPUs(ctx, s, r, after)
}

// takeSettings has a definition take over what was changed in place of another: what is in it still as it was
// in that, or, where nobody knows that, all.
func takeSettings(d, of, from *domain.Definition) {
	if of == nil {
		of = d.Clone()
	}
	take(&d.Title, of.Title, from.Title)
	take(&d.Description, of.Description, from.Description)
	take(&d.Metadata, of.Metadata, from.Metadata)
	take(&d.OnPoweroff, of.OnPoweroff, from.OnPoweroff)
	take(&d.OnReboot, of.OnReboot, from.OnReboot)
	take(&d.OnCrash, of.OnCrash, from.OnCrash)
	take(&d.Tune, of.Tune, from.Tune)
	take(&d.NUMA, of.NUMA, from.NUMA)
	take(&d.Blkio, of.Blkio, from.Blkio)
	take(&d.MemTune, of.MemTune, from.MemTune)
	take(&d.CurrentMemory, of.CurrentMemory, from.CurrentMemory)
	d.CurrentMemory = min(d.CurrentMemory, d.Memory)
	take(&d.VCPUs.Current, of.VCPUs.Current, from.VCPUs.Current)
	d.VCPUs.Current = min(d.VCPUs.Current, d.VCPUs.Max)
	for _, f := range from.Devices.All() {
		was, _ := findLike(&of.Devices, f)
		if now, err := findLike(&d.Devices, f); err == nil && was != nil { // it may be there no more
			takeDevice(now, was, f)
		}
	}
}

func take[T any](to *T, of, from T) {
	if reflect.DeepEqual(*to, of) {
		*to = from
	}
}

// takeDevice is takeSettings for a device. The three are of one kind.
func takeDevice(d, of, from device.Device) {
	switch d := d.(type) {
	case *device.Disk:
		take(&d.Tune, of.(*device.Disk).Tune, from.(*device.Disk).Tune)
	case *device.NIC:
		of, from := of.(*device.NIC), from.(*device.NIC)
		take(&d.Link, of.Link, from.Link)
		take(&d.Inbound, of.Inbound, from.Inbound)
		take(&d.Outbound, of.Outbound, from.Outbound)
	case *device.Graphics:
		of, from := of.(*device.Graphics), from.(*device.Graphics)
		take(&d.Password, of.Password, from.Password)
		take(&d.HasPassword, of.HasPassword, from.HasPassword)
		take(&d.PasswordValidTo, of.PasswordValidTo, from.PasswordValidTo)
		take(&d.Connected, of.Connected, from.Connected)
	case *device.Balloon:
		take(&d.StatsPeriod, of.(*device.Balloon).StatsPeriod, from.(*device.Balloon).StatsPeriod)
	}
}

// amendNow changes both definitions of a guest where neither QEMU nor the host has a
// part in it. It runs in the loop, and no other change is under way.
func (g *Guest) amendNow(after, config *domain.Definition) error {
	r := g.run
	a := &amending{}
	a.of(g, &following{of: g.inactive, to: config, change: uuid.NewString()})
	if err := a.write(r, after, config); err != nil {
		return err
	}
	defer r.forgetAmending()
	if err := g.redefineAfter(a.Change, config); err != nil { // the store may have no room
		return err
	}
	failpoint.Reach("amend.noted")
	r.def = after
	g.keepActive()
	g.publish()
	return nil
}
