package guest

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"

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
	// VCPUs is how many processors there were before more were plugged in; 0: none were.
	VCPUs uint
	// Balloon is what the guest was asked to be, in bytes; 0: it was not asked.
	Balloon uint64

	active, config *domain.Definition // what Active and Config say; config may be nil
}

const amendingFile = "amending.json"

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
	a, err := readJSON[amending](filepath.Join(dir, amendingFile))
	if a == nil && err == nil {
		return nil, nil
	}
	if err == nil {
		a.active, err = domainxml.Parse(a.Active, domainxml.Options{Active: true})
	}
	if err == nil && a.Config != "" {
		a.config, err = domainxml.Parse(a.Config, domainxml.Options{})
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
	takeSettings(after, a.active)
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
		g.setActive(func(d *domain.Definition) { takeSettings(d, a.active) })
		g.state.Policy = policy(r.def)
		g.keepActive()
		if a.config == nil || g.inactive == nil {
			return nil
		}
		config := g.inactive.Clone()
		takeSettings(config, a.config)
		config.CurrentMemory = min(a.config.CurrentMemory, config.Memory)
		return g.redefine(config)
	}, nil
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

// takeSettings has a definition take over from another what can be changed in place.
func takeSettings(d, from *domain.Definition) {
	d.Title, d.Description, d.Metadata = from.Title, from.Description, from.Metadata
	d.OnPoweroff, d.OnReboot, d.OnCrash = from.OnPoweroff, from.OnReboot, from.OnCrash
	d.Tune, d.NUMA, d.Blkio, d.MemTune = from.Tune, from.NUMA, from.Blkio, from.MemTune
	d.VCPUs.Current = min(from.VCPUs.Current, d.VCPUs.Max)
	for _, disk := range d.Devices.Disks {
		for _, f := range from.Devices.Disks {
			if f.Target == disk.Target {
				disk.Tune = f.Tune
			}
		}
	}
	for _, n := range d.Devices.NICs {
		for _, f := range from.Devices.NICs {
			if f.MAC == n.MAC {
				n.Link, n.Inbound, n.Outbound = f.Link, f.Inbound, f.Outbound
			}
		}
	}
	for _, f := range from.Devices.Graphics {
		_ = updateIn(&d.Devices, f) // it may be there no more
	}
	if b, f := d.Devices.Balloon, from.Devices.Balloon; b != nil && f != nil {
		b.StatsPeriod = f.StatsPeriod
	}
}

// amendNow changes both definitions of a guest where neither QEMU nor the host has a
// part in it. It runs in the loop, and no other change is under way.
func (g *Guest) amendNow(after, config *domain.Definition) error {
	r := g.run
	if err := (&amending{}).write(r, after, config); err != nil {
		return err
	}
	defer r.forgetAmending()
	if err := g.redefine(config); err != nil { // the store may have no room
		return err
	}
	failpoint.Reach("amend.noted")
	r.def = after
	g.keepActive()
	g.publish()
	return nil
}
