package guest

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
)

// Happening is something that a guest does to itself, and for which its
// definition has a policy.
type Happening string

// The happenings.
const (
	PoweredOff Happening = "poweroff"
	Rebooted   Happening = "reboot"
	Crashed    Happening = "crash"
)

// actions are the policies that are carried out as they are called; those of a crash
// may dump the guest's memory before.
var (
	actions = []string{"destroy", "restart", "preserve"}
	dumping = []string{"coredump-destroy", "coredump-restart"}
)

// SetPolicy says what becomes of the guest when it turns itself off, reboots or
// crashes: destroy, restart or preserve, and for a crash coredump-destroy or
// coredump-restart.
func (g *Guest) SetPolicy(ctx context.Context, on Happening, action string, a Affect) error {
	if !slices.Contains(actions, action) && (on != Crashed || !slices.Contains(dumping, action)) {
		return fault.New(fault.Unsupported, fault.Call, "a guest's %s cannot be followed by %s", on, action)
	}
	set := func(d *domain.Definition) {
		switch on {
		case PoweredOff:
			d.OnPoweroff = action
		case Rebooted:
			d.OnReboot = action
		case Crashed:
			d.OnCrash = action
		}
	}
	return g.perform(ctx, "", domain.JobModify, modifyLimit, func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		if a.Config {
			def := g.inactive.Clone()
			set(def)
			if err := g.redefine(def); err != nil || !a.Live {
				return nil, err
			}
		}
		return g.planPolicy(on, action, set), nil
	})
}

// planPolicy puts a policy into effect on the running guest. Lodge follows it,
// but for a reboot: QEMU has to turn that into an end.
func (g *Guest) planPolicy(on Happening, action string, set func(*domain.Definition)) work {
	r := g.run
	return func(ctx context.Context) (settle, error) {
		if on == Rebooted {
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			reboot := map[string]string{"destroy": "shutdown", "restart": "reset", "preserve": "shutdown"}[action]
			if err := s.Execute(ctx, "set-action", map[string]any{"reboot": reboot}, nil); err != nil {
				return nil, err
			}
		}
		return func() error {
			g.setActive(set)
			g.state.Policy = policy(r.def)
			g.keepActive()
			return nil
		}, nil
	}
}
