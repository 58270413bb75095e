package guest

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/network"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// plugging is a plug under way, as it lies in the run directory until it is done
// or undone. When the daemon is killed in between, or the monitor is lost, QEMU
// alone knows how far it came.
type plugging struct {
	Device string // its XML, complete
	NIC    *heldNIC
	Undo   []undoing // in the order in which the steps were to be made
	Twin   twin      // what follows in the stored definition
}

const pluggingFile = "plugging.json"

func newPlugging(dev device.Device, nic *heldNIC, steps []qemu.Step, also twin) (*plugging, error) {
	p := &plugging{NIC: nic, Twin: also}
	var err error
	if p.Device, err = domainxml.FormatDevice(dev, domainxml.Style{Active: true, Secure: true}); err != nil {
		return nil, err
	}
	for _, step := range steps {
		if step.Undo == nil {
			continue
		}
		u, err := newUndoing(step.Undo)
		if err != nil {
			return nil, err
		}
		p.Undo = append(p.Undo, u)
	}
	return p, nil
}

func readPlugging(dir string) (*plugging, error) {
	p, err := readJSON[plugging](filepath.Join(dir, pluggingFile))
	if err != nil {
		return nil, fmt.Errorf("cannot read which device was being plugged in: %w", err)
	}
	return p, nil
}

// notingNIC has the plug of a NIC noted before its interface is made, where that would outlive a daemon that is
// killed.
func (r *run) notingNIC(ctx context.Context, nic *device.NIC, held *plugged, also twin) context.Context {
	return network.WithNote(ctx, func(ifName string) error {
		return r.noteNIC(nic, held, &heldNIC{Alias: nic.Alias, IfName: ifName}, also)
	})
}

// noteNIC notes the plug of a NIC and what is about to be made for it.
func (r *run) noteNIC(nic *device.NIC, held *plugged, made *heldNIC, also twin) error {
	p, err := newPlugging(nic, made, nil, also)
	if err == nil {
		err = r.begin(pluggingFile, p)
	}
	held.noted = held.noted || err == nil
	return err
}

// forgetPlugging notes that nothing is half plugged any more.
func (r *run) forgetPlugging() {
	r.plugging = nil
	r.done(pluggingFile)
}

// owe keeps a plug that was cut off until QEMU can be asked about it. Should the
// guest end before, the host gets back what it gave to the device.
func (r *run) owe(p *plugging, what string, release func(context.Context) error) {
	r.plugging = p
	if release != nil {
		r.hold(what, release)
	}
}

// oweAgain is owe for an adopted guest.
func (r *Registry) oweAgain(run *run) {
	p, err := readPlugging(run.dir)
	if err != nil {
		run.log.Error("a device that was being plugged in is left as it is", "error", err)
	}
	if p == nil {
		return
	}
	dev, err := domainxml.ParseDevice(p.Device, domainxml.Options{Active: true})
	if err != nil {
		run.log.Error("a device that was being plugged in is left as it is", "error", err)
		return
	}
	run.notesNode(dev)
	if run.def.Devices.ByAlias(dev.Common().Alias) != nil { // it was the guest's already
		if p.Twin.Device == "" {
			run.forgetPlugging()
			return
		}
		run.plugging = p
		return
	}
	run.owe(p, "", nil)
	run.relayAgain(withFences(r.life, run.Fences), dev)
	if m, is := dev.(*device.Memory); is { // QEMU may have it, which nobody is asked for
		r.Ledger.Add(run.UUID, moduleDemand(run.def, m))
	}
	if at := pciFunction(dev); at != nil {
		if err := r.holdClaim(run, *at); err != nil {
			run.log.Error("a device that was being plugged in is not the guest's", "error", err)
		}
	}
	nic, is := dev.(*device.NIC)
	if !is || p.NIC == nil {
		return
	}
	if release, err := r.readopt(run, nic, p.NIC); err == nil { // or it went with its last file
		run.hold(p.NIC.what(), release)
	}
}

// finishPlug ends a plug that was cut off: if QEMU has the device it is the
// guest's, in its stored definition too where that was asked for, and else nothing
// stays of it. It runs beside the loop; def is what is known to run.
func (g *Guest) finishPlug(ctx context.Context, r *run, s *qmp.Session, def *domain.Definition, p *plugging, present map[string]bool) (settle, error) {
	dev, err := domainxml.ParseDevice(p.Device, domainxml.Options{Active: true})
	if err != nil {
		return nil, err
	}
	alias := dev.Common().Alias
	if def.Devices.ByAlias(alias) != nil {
		return func() error {
			defer r.forgetPlugging()
			return g.storeTwin(p.Twin)
		}, nil
	}
	if present[alias] {
		if err := settlePlugged(ctx, s, dev); unanswered(err) {
			return nil, err
		} else if err != nil { // told again with each session, the guest would have no monitor
			g.log.Warn("a device that was being plugged in is the guest's without its limits, which QEMU refuses", "alias", alias, "error", err)
			if d, is := dev.(*device.Disk); is {
				d.Tune = nil
			}
		}
		return func() error {
			g.log.Info("a device that was being plugged in is the guest's", "alias", alias)
			defer r.forgetPlugging()
			if err := g.addPlugged(r, dev, &plugged{nic: p.NIC}); err != nil {
				return err
			}
			return g.storeTwin(p.Twin)
		}, nil
	}
	takeBack(ctx, s, p.Undo, g.log)
	r.relays.stop(alias)
	if err := r.labels.giveBack(ctx, ownerOf(dev)); err != nil {
		g.log.Warn("what was labelled for a device may keep the guest's label", "alias", dev.Common().Alias, "error", err)
	}
	return func() error {
		r.forgetPlugging()
		g.returnMemory(r.def, dev)
		r.dropClaim(dev)
		if p.NIC == nil {
			return nil
		}
		if release := r.takeRelease(p.NIC.what()); release != nil {
			go func() { // bounded, and waits for nobody
				ctx, stop := context.WithTimeout(g.reg.life, modifyLimit)
				defer stop()
				if err := release(ctx); err != nil {
					g.log.Error("cannot release what a device held that was not plugged in", "error", err)
				}
			}()
		}
		return nil
	}, nil
}

// takeBack undoes, last first, whatever QEMU has made of steps.
func takeBack(ctx context.Context, s *qmp.Session, steps []undoing, log *slog.Logger) {
	for _, u := range slices.Backward(steps) {
		if err := s.Execute(ctx, u.Command, u.Args, nil); err != nil {
			log.Debug("nothing to take back of a device", "command", u.Command, "error", err)
		}
	}
}
