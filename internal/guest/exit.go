package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// handleExit handles the end of the process. It runs in the loop.
func handleExit(g *machine.Guest) {
	g.Instance.ExitHandled = true
	if g.CurrentJob != nil {
		g.CurrentJob.Cancel(fault.New(fault.WrongState, fault.Domain, "domain %q has ended", g.Record.Name))
		return // the release begins when the job has ended
	}
	beginRelease(g)
}

// beginRelease releases what the ended process held, beside the loop, and then settles the guest's state.
func beginRelease(g *machine.Guest) {
	r := g.Instance
	r.ExitHandled, r.EndDefinition = true, r.Definition
	g.Live.Store(nil)
	crashed := g.Inactive != nil && r.RestartsAfterCrash(g.State)
	g.StartInternalJob(domain.JobDestroy, 0, func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		// A daemon that stops must still release the host's resources.
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), machine.ReleaseLimit)
		defer stop()
		awaitLastEvents(ctx, r)
		if crashed {
			recordCrash(g.Reg, g.UUID)
		}
		err := r.ReleaseAll(ctx)
		return func() error { settleExit(g, r); return nil }, err
	})
}

// awaitLastEvents waits until all events of QEMU are read, for at most machine.LastEvents.
func awaitLastEvents(ctx context.Context, r *machine.Instance) {
	r.Agent.Close()
	s := r.Session.Load()
	if s == nil {
		return
	}
	late := time.NewTimer(machine.LastEvents)
	defer late.Stop()
	select {
	case <-s.Done():
	case <-late.C:
	case <-ctx.Done():
	}
	s.Close()
}

// settleExit settles the state of a guest after its process has ended and its resources are released. It runs in
// the loop.
func settleExit(g *machine.Guest, r *machine.Instance) {
	for r.Events != nil && handleEvents(g) { // QEMU's last events explain the end
	}
	if g.State.EndFor == "" {
		g.Restarts.Cause = r.Process.Exit().String()
		g.Log.Warn("QEMU ended unexpectedly", "pid", r.PID, "exit", r.Process.Exit().String(), "log", provision.StderrTail(g.Reg, r.Name, r.Process))
	}
	g.Reg.DropID(r.ID)
	provision.LeaveSpaceWatch(g.Reg.SpaceWatch, g)
	g.Reg.RetryReleases(r)
	g.Instance = nil
	if g.Inactive == nil {
		launch.DropSecretsOf(g.Reg, &r.RunRecord, r.Definition, g.Log)
	}
	failpoint.Reach("destroy.released")
	if r.AutoDestroy { // started again it would run without its client
		g.State.Policy.OnCrash = "destroy"
	}
	g.Advance(lifecycle.Ended{})
	if g.Restarts.Cancel == nil && !g.Finished { // it is not started again
		g.CancelRestart()
	}
	if g.Inactive != nil {
		g.State.Policy = machine.Policy(g.Inactive)
	}
	g.AnswerDestroyers(nil)
}
