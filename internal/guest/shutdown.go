package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Destroy ends the guest's process at once, like a power cut. It does not wait for a job of the guest. With
// graceful it only asks QEMU, and fails if QEMU does not end.
func Destroy(ctx context.Context, g *machine.Guest, sc scope.Scope, graceful bool) error {
	return g.Destroy(ctx, sc, graceful, nil)
}

// ShutdownMode is how a guest is asked to shut down or to reboot.
type ShutdownMode int

// The modes. ShutdownDefault asks the agent if it is connected, and ACPI otherwise.
const (
	ShutdownDefault ShutdownMode = iota
	ShutdownACPI
	ShutdownAgent
)

// Shutdown asks the guest to shut down. It returns when the guest has been asked.
func Shutdown(ctx context.Context, g *machine.Guest, sc scope.Scope, mode ShutdownMode) error {
	return askGuest(ctx, g, sc, lifecycle.Shutdown, mode, "powerdown", lifecycle.ShutdownAsked{})
}

// Reboot asks the guest to reboot. With ACPI this is a power-off, which Lodge answers with a reset.
func Reboot(ctx context.Context, g *machine.Guest, sc scope.Scope, mode ShutdownMode) error {
	return askGuest(ctx, g, sc, lifecycle.Reboot, mode, "reboot", lifecycle.RebootAsked{})
}

// askGuest asks by the agent or by the power button. noted is the event that the state must have before the
// guest reacts to the button.
func askGuest(ctx context.Context, g *machine.Guest, sc scope.Scope, verb lifecycle.Verb, mode ShutdownMode, agentMode string, noted lifecycle.Fact) error {
	return g.Perform(ctx, sc, verb, domain.JobShutdown, machine.ModifyLimit, func() (machine.Work, error) {
		r := g.Instance
		byAgent := mode == ShutdownAgent || (mode == ShutdownDefault && r.AgentConnected())
		if !byAgent {
			g.Advance(noted)
		}
		def := r.Definition
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			if byAgent {
				err := provision.AgentShutdown(ctx, r, def, agentMode)
				if err == nil || mode == ShutdownAgent {
					return nil, err
				}
			}
			s, err := r.Monitor()
			if err != nil {
				return nil, err
			}
			err = s.Execute(ctx, "system_powerdown", nil, nil)
			if byAgent {
				return func() error { g.Advance(noted); return nil }, err
			}
			return nil, err
		}, nil
	})
}

// Reset resets the machine without asking the guest. A guest that is kept after its end boots again.
func Reset(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	return runCommands(ctx, g, sc, lifecycle.Reset, nil, func() []qemu.Step {
		steps := resetSteps(g)
		if g.State.IsPreserved() {
			steps = append(steps, qemu.Step{Command: "cont"})
		}
		return steps
	}, nil)
}

// resetSteps returns the commands that reset the machine, also with on_reboot=preserve, for which QEMU
// would keep the guest. QEMU does not preserve this run on later resets either, because reset firmware may
// reset once more.
func resetSteps(g *machine.Guest) []qemu.Step {
	reset := qemu.Step{Command: "system_reset"}
	if g.State.Policy.OnReboot != "preserve" {
		return []qemu.Step{reset}
	}
	return []qemu.Step{{Command: "set-action", Args: map[string]any{"reboot": "reset"}}, reset}
}

// runCommand runs one monitor command without arguments as a job. noted, if not nil, tells the lifecycle
// beforehand what the command is for.
func runCommand(ctx context.Context, g *machine.Guest, sc scope.Scope, verb lifecycle.Verb, noted lifecycle.Fact, name string) error {
	return runCommands(ctx, g, sc, verb, noted, func() []qemu.Step { return []qemu.Step{{Command: name}} }, nil)
}

// runCommands runs several commands, which choose selects in the loop. done, if not nil, runs in the loop
// before other work.
func runCommands(ctx context.Context, g *machine.Guest, sc scope.Scope, verb lifecycle.Verb, noted lifecycle.Fact, choose func() []qemu.Step, done machine.Settle) error {
	return g.Perform(ctx, sc, verb, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		r, steps := g.Instance, choose()
		if noted != nil {
			g.Advance(noted)
		}
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			s, err := r.Monitor()
			if err != nil {
				return nil, err
			}
			if err := failpoint.Err("monitor.command"); err != nil {
				return nil, err
			}
			for _, step := range steps {
				if err := machine.Execute(ctx, s, step); err != nil {
					return nil, err
				}
			}
			failpoint.Reach("monitor.commanded")
			return done, nil
		}, nil
	})
}

// IsPaused reports whether the guest stays paused until a client resumes it. It is false while a job such
// as a dump has stopped the guest, while an interrupted operation is open, or when the monitor is lost. It
// is false, too, for a guest that resumes when its disk has space again or its panic is handled.
func IsPaused(v *machine.View) bool {
	return v.State == domain.Paused && v.StuckSince.IsZero() && v.Job.Kind == domain.JobNone && !v.WillResume
}

// resetMachine resets the machine and resumes it, which turns a power-off into a reboot. It runs in the
// loop, and its commands run beside it.
func resetMachine(g *machine.Guest) {
	r, steps := g.Instance, append(resetSteps(g), qemu.Step{Command: "cont"})
	go func() {
		ctx, stop := context.WithTimeout(g.Reg.Life, machine.ModifyLimit)
		defer stop()
		s, err := r.Monitor()
		for _, step := range steps {
			if err == nil {
				err = machine.Execute(ctx, s, step)
			}
		}
		if err != nil && r.LogNotReset.Passes() {
			g.Log.Error("cannot restart the machine; guest stays stopped", "error", err)
		}
		if s != nil && hotplug.IsEffectUnknown(err) {
			s.Close() // the next session repeats it
		}
	}()
}

// InjectNMI sends every vCPU a non-maskable interrupt.
func InjectNMI(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	return runCommand(ctx, g, sc, lifecycle.Change, nil, "inject-nmi")
}
