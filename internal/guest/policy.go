package guest

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
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

// actions follow each happening. After a crash the guest may be preserved, too, or
// its memory be dumped first.
var (
	actions      = []string{"destroy", "restart"}
	crashActions = []string{"preserve", "coredump-destroy", "coredump-restart"}
)

// SetPolicy says what becomes of the guest when it turns itself off, reboots or
// crashes: destroy or restart, and for a crash also preserve, coredump-destroy or
// coredump-restart.
func (g *Guest) SetPolicy(ctx context.Context, sc scope.Scope, on Happening, action string, a Affect) error {
	if !slices.Contains(actions, action) && (on != Crashed || !slices.Contains(crashActions, action)) {
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
	return g.Tune(ctx, sc, a, set)
}
