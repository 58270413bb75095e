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
	set := func(d *domain.Definition) error {
		switch on {
		case PoweredOff:
			d.OnPoweroff = action
		case Rebooted:
			d.OnReboot = action
		case Crashed:
			d.OnCrash = action
		}
		return nil
	}
	return g.Tune(ctx, a, set)
}
