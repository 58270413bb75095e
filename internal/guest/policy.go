package guest

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Happening is an event in a guest for which its definition has a policy.
type Happening string

// The happenings, by the second part of on_poweroff, on_reboot and on_crash.
const (
	PoweredOff Happening = "poweroff"
	Rebooted   Happening = "reboot"
	Crashed    Happening = "crash"
)

// actions are allowed for each happening. crashActions are allowed for a crash in addition: keep the guest,
// or dump its memory first.
var (
	actions      = []string{"destroy", "restart"}
	crashActions = []string{"preserve", "coredump-destroy", "coredump-restart"}
)

// SetPolicy sets what happens when the guest powers off, reboots or crashes: destroy or restart, and for a
// crash also preserve, coredump-destroy or coredump-restart.
func (g *Guest) SetPolicy(ctx context.Context, sc scope.Scope, on Happening, action string, a Affect) error {
	if !slices.Contains(actions, action) && (on != Crashed || !slices.Contains(crashActions, action)) {
		return fault.New(fault.Unsupported, fault.Call, "on_%s of a guest cannot be %s", on, action)
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
	return g.Tune(ctx, sc, a, set)
}
