package guest

import (
	"context"
	"errors"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// AbortJob aborts the job that moves the guest's memory. The guest then continues as before the job.
func AbortJob(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	return g.Change(ctx, sc, "", func() error {
		if g.CurrentJob == nil || g.CurrentJob.Task.Progress == nil {
			return fault.New(fault.WrongState, fault.Domain, "no job is active on the domain")
		}
		g.CurrentJob.Cancel(fault.New(fault.Aborted, fault.Domain, "the %s job of domain '%s' was aborted by a client", g.CurrentJob.Kind, g.Record.Name))
		return nil
	})
}

// LifecycleEvent is an event in a guest for which its definition has a policy.
type LifecycleEvent string

// The events, by the second part of on_poweroff, on_reboot and on_crash.
const (
	PoweredOff LifecycleEvent = "poweroff"
	Rebooted   LifecycleEvent = "reboot"
	Crashed    LifecycleEvent = "crash"
)

// actions are allowed for each event. crashActions are allowed for a crash in addition: keep the guest,
// or dump its memory first.
var (
	actions      = []string{"destroy", "restart"}
	crashActions = []string{"preserve", "coredump-destroy", "coredump-restart"}
)

// SetPolicy sets what happens when the guest powers off, reboots or crashes: destroy or restart, and for a
// crash also preserve, coredump-destroy or coredump-restart.
func SetPolicy(ctx context.Context, g *machine.Guest, sc scope.Scope, on LifecycleEvent, action string, a machine.Affect) error {
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
	return hotplug.Tune(ctx, g, sc, a, set)
}

// Restore makes a guest from a saved image.
func Restore(ctx context.Context, r *machine.Registry, sc scope.Scope, path string, o savestate.SaveOptions) (*machine.Guest, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	image, err := savestate.OpenSaved(ctx, r, path, o)
	if err != nil {
		return nil, err
	}
	image.Close() // the job opens it again
	return withClaimedGuest(ctx, r, image.Def.Name, image.Def.UUID, func(g *machine.Guest) error {
		return g.Perform(ctx, sc, lifecycle.Restore, domain.JobRestore, 0, func() (machine.Work, error) {
			return launch.PlanRestoreFrom(g, path, o), savestate.RefuseManagedSave(g)
		})
	})
}

// Create starts a guest from a document. The guest is transient unless a persistent guest has the same name
// and UUID.
func Create(ctx context.Context, r *machine.Registry, sc scope.Scope, doc string, o launch.StartOptions) (*machine.Guest, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	u, err := parseDefinition(ctx, r, doc, o.Validate)
	if err != nil {
		return nil, err
	}
	return withClaimedGuest(ctx, r, u.Plain.Name, u.Plain.UUID, func(g *machine.Guest) error {
		return g.Perform(ctx, sc, lifecycle.Start, domain.JobStart, 0, func() (machine.Work, error) {
			if err := errors.Join(g.CheckName(u.Plain.Name), savestate.RefuseManagedSave(g)); err != nil {
				return nil, err
			}
			def := u.Choose(provision.CurrentDefinition(g))
			return launch.PlanStart(g, def, doc, o), provision.SetInstancePathLimits(g, sc, def)
		})
	})
}
