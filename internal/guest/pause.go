package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Suspend stops the vCPUs. A guest that waits for disk space is not resumed automatically any more.
func Suspend(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	if IsPaused(g.View()) {
		return nil
	}
	stop := func() []qemu.Step { return []qemu.Step{{Command: "stop"}} }
	return runCommands(ctx, g, sc, lifecycle.Suspend, lifecycle.Pausing{Reason: domain.ReasonUser}, stop, func() error { return settleSuspend(g) })
}

// settleSuspend settles a suspend. It fails for a guest that is restarted at this moment, or after its panic
// is dumped, because the restart resumes it. It runs in the loop.
func settleSuspend(g *machine.Guest) error {
	provision.ClearDiskFull(g)
	if g.State.Restarting || g.State.Dumping && lifecycle.RestartsOnCrash(g.State.Policy.OnCrash) {
		return fault.New(fault.Busy, fault.Domain, "domain %q is being restarted, which resumes it; suspend it again afterwards", g.Record.Name)
	}
	return nil
}

// Resume resumes the vCPUs.
func Resume(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	return runCommand(ctx, g, sc, lifecycle.Resume, lifecycle.Resuming{Reason: domain.ReasonUnpaused}, "cont")
}

// Wake wakes a guest that has suspended itself to memory.
func Wake(ctx context.Context, g *machine.Guest, sc scope.Scope) error {
	return runCommand(ctx, g, sc, lifecycle.Wake, nil, "system_wakeup")
}
