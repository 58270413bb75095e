package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// destroyPatience is how long a destroy waits for a killed process to end, and for its resources to be
// released.
const destroyPatience = nowPatience + releaseLimit

// Destroy ends the guest's process at once, like a power cut. It does not wait for a job of the guest. With
// graceful it only asks QEMU, and fails if QEMU does not end.
func (g *Guest) Destroy(ctx context.Context, sc scope.Scope, graceful bool) error {
	return g.destroy(ctx, sc, graceful, nil)
}

// destroy ends the guest, but only in run in if that is not nil.
func (g *Guest) destroy(ctx context.Context, sc scope.Scope, graceful bool, in *run) error {
	t := &task{later: true}
	t.plan = func() (work, error) {
		if in != nil && g.run != in {
			t.answer(nil)
			return nil, nil
		}
		return nil, g.beginDestroy(t, graceful)
	}
	patience, late := destroyPatience, fault.New(fault.Timeout, fault.Domain,
		"the process of domain %q was killed and does not end: the kernel waits for something, most likely its storage", g.Name())
	if graceful {
		patience, late = nowPatience, fault.New(fault.Timeout, fault.Domain,
			"domain %q did not end gracefully within %v; destroy it without --graceful", g.Name(), nowPatience)
	}
	ctx, stop := context.WithTimeoutCause(ctx, patience, late)
	defer stop()
	return g.ask(ctx, sc, t)
}

// beginDestroy begins the end of the process. It runs in the loop. t is answered when the guest has ended
// and its resources are released.
func (g *Guest) beginDestroy(t *task, graceful bool) error {
	aborted := fault.New(fault.Aborted, fault.Domain, "domain %q was destroyed meanwhile", g.record.Name)
	starting := g.run == nil && g.job != nil && (g.job.kind == domain.JobStart || g.job.kind == domain.JobRestore)
	if starting {
		g.destroyers = append(g.destroyers, t)
		g.job.cancel(aborted)
		g.giveUpRevival() // the start may be failing just now, and must not be repeated
		return nil
	}
	if g.run == nil && g.revival.cancel != nil { // it crashed and is about to be started again
		g.giveUpRevival()
		t.answer(nil)
		return nil
	}
	if err := lifecycle.Admit(g.state, lifecycle.Destroy); err != nil {
		return err
	}
	g.destroyers = append(g.destroyers, t)
	if g.state.EndFor == "" {
		g.advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
	}
	failpoint.Reach("destroy.begun")
	if g.job != nil && !graceful {
		g.job.cancel(aborted)
	}
	mode := endNow
	if graceful {
		mode = endPolitely
	}
	g.run.end(mode)
	return nil
}

// dismissDestroyers answers the clients that wait for the end.
func (g *Guest) dismissDestroyers(err error) {
	for _, t := range g.destroyers {
		t.answer(err)
	}
	g.destroyers = nil
}

// handleExit handles the end of the process. It runs in the loop.
func (g *Guest) handleExit() {
	g.run.noticed = true
	if g.job != nil {
		g.job.cancel(fault.New(fault.WrongState, fault.Domain, "domain %q has ended", g.record.Name))
		return // the release begins when the job has ended
	}
	g.beginRelease()
}

// lastEvents is how long the release waits for QEMU's last events after its process has ended.
const lastEvents = time.Second

// beginRelease releases what the ended process held, beside the loop, and then settles the guest's state.
func (g *Guest) beginRelease() {
	r := g.run
	r.noticed, r.ended = true, r.def
	g.live.Store(nil)
	crashed := g.inactive != nil && r.revives(g.state)
	g.startInternal(domain.JobDestroy, 0, func(ctx context.Context, sc scope.Scope) (settle, error) {
		// A daemon that stops must still release the host's resources.
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer stop()
		r.hearOut(ctx)
		if crashed {
			g.reg.noteCrash(g.uuid)
		}
		err := r.releaseAll(ctx)
		return func() error { g.finish(r); return nil }, err
	})
}

// hearOut waits until all events of QEMU are read, for at most lastEvents.
func (r *run) hearOut(ctx context.Context) {
	r.agent.close()
	s := r.session.Load()
	if s == nil {
		return
	}
	late := time.NewTimer(lastEvents)
	defer late.Stop()
	select {
	case <-s.Done():
	case <-late.C:
	case <-ctx.Done():
	}
	s.Close()
}

// finish settles the state of a guest whose process has ended and whose resources are released. It runs in
// the loop.
func (g *Guest) finish(r *run) {
	for r.events != nil && g.handleEvents() { // QEMU's last events explain the end
	}
	if g.state.EndFor == "" {
		g.revival.cause = r.process.Exit().String()
		g.log.Warn("QEMU ended unexpectedly", "pid", r.PID, "exit", r.process.Exit().String(), "log", g.reg.lastWords(r.Name, r.process))
	}
	g.reg.dropID(r.ID)
	g.reg.rooms.leave(g)
	g.reg.giveBackLater(r)
	g.run = nil
	if g.inactive == nil {
		g.reg.dropSecretsOf(&r.runRecord, r.def, g.log)
	}
	failpoint.Reach("destroy.released")
	if r.AutoDestroy { // started again it would run without its client
		g.state.Policy.OnCrash = "destroy"
	}
	g.advance(lifecycle.Ended{})
	if g.revival.cancel == nil && !g.over { // it is not started again
		g.giveUpRevival()
	}
	if g.inactive != nil {
		g.state.Policy = policy(g.inactive)
	}
	g.dismissDestroyers(nil)
}

// startInternal begins a job that no client asked for. No other job may be running.
func (g *Guest) startInternal(kind domain.JobKind, limit time.Duration, w work) {
	g.begin(&task{
		ctx: g.reg.life, sc: scope.Daemon("work that the guest needs"), kind: kind, limit: limit, reply: make(chan error, 1),
		plan: func() (work, error) { return w, nil },
	})
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
func (g *Guest) Shutdown(ctx context.Context, sc scope.Scope, mode ShutdownMode) error {
	return g.askGuest(ctx, sc, lifecycle.Shut, mode, "powerdown", lifecycle.ShutdownAsked{})
}

// Reboot asks the guest to reboot. With ACPI this is a power-off, which Lodge answers with a reset.
func (g *Guest) Reboot(ctx context.Context, sc scope.Scope, mode ShutdownMode) error {
	return g.askGuest(ctx, sc, lifecycle.Reboot, mode, "reboot", lifecycle.RebootAsked{})
}

// askGuest asks by the agent or by the power button. noted is the event that the state must have before the
// guest reacts to the button.
func (g *Guest) askGuest(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, mode ShutdownMode, agentMode string, noted lifecycle.Fact) error {
	return g.perform(ctx, sc, verb, domain.JobShutdown, modifyLimit, func() (work, error) {
		r := g.run
		byAgent := mode == ShutdownAgent || (mode == ShutdownDefault && r.agentConnected())
		if !byAgent {
			g.advance(noted)
		}
		def := r.def
		return func(ctx context.Context, sc scope.Scope) (settle, error) {
			if byAgent {
				err := r.agentShutdown(ctx, def, agentMode)
				if err == nil || mode == ShutdownAgent {
					return nil, err
				}
			}
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			err = s.Execute(ctx, "system_powerdown", nil, nil)
			if byAgent {
				return func() error { g.advance(noted); return nil }, err
			}
			return nil, err
		}, nil
	})
}

// Reset resets the machine without asking the guest. A guest that is kept after its end boots again.
func (g *Guest) Reset(ctx context.Context, sc scope.Scope) error {
	return g.commands(ctx, sc, lifecycle.Reset, nil, func() []qemu.Step {
		steps := g.resetSteps()
		if g.state.Kept() {
			steps = append(steps, qemu.Step{Command: "cont"})
		}
		return steps
	}, nil)
}

// resetSteps returns the commands that reset the machine, also with on_reboot=preserve, for which QEMU
// would keep the guest. QEMU does not preserve this run on later resets either, because reset firmware may
// reset once more.
func (g *Guest) resetSteps() []qemu.Step {
	reset := qemu.Step{Command: "system_reset"}
	if g.state.Policy.OnReboot != "preserve" {
		return []qemu.Step{reset}
	}
	return []qemu.Step{{Command: "set-action", Args: map[string]any{"reboot": "reset"}}, reset}
}

// command runs one monitor command without arguments as a job. noted, if not nil, tells the lifecycle
// beforehand what the command is for.
func (g *Guest) command(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, noted lifecycle.Fact, name string) error {
	return g.commands(ctx, sc, verb, noted, func() []qemu.Step { return []qemu.Step{{Command: name}} }, nil)
}

// commands runs several commands, which choose selects in the loop. done, if not nil, runs in the loop
// before other work.
func (g *Guest) commands(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, noted lifecycle.Fact, choose func() []qemu.Step, done settle) error {
	return g.perform(ctx, sc, verb, domain.JobModify, modifyLimit, func() (work, error) {
		r, steps := g.run, choose()
		if noted != nil {
			g.advance(noted)
		}
		return func(ctx context.Context, sc scope.Scope) (settle, error) {
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			if err := failpoint.Err("monitor.command"); err != nil {
				return nil, err
			}
			for _, step := range steps {
				if err := execute(ctx, s, step); err != nil {
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
func (v *View) IsPaused() bool {
	return v.State == domain.Paused && v.StuckSince.IsZero() && v.job.Kind == domain.JobNone && !v.owed
}

// Suspend stops the vCPUs. A guest that waits for disk space is not resumed automatically any more.
func (g *Guest) Suspend(ctx context.Context, sc scope.Scope) error {
	if g.View().IsPaused() {
		return nil
	}
	stop := func() []qemu.Step { return []qemu.Step{{Command: "stop"}} }
	return g.commands(ctx, sc, lifecycle.Suspend, lifecycle.Pausing{Reason: domain.ReasonUser}, stop, g.isSuspended)
}

// isSuspended settles a suspend. It fails for a guest that is restarted at this moment, or after its panic
// is dumped, because the restart resumes it. It runs in the loop.
func (g *Guest) isSuspended() error {
	g.hasRoomAgain()
	if g.state.Restarting || g.state.Dumping && lifecycle.Revives(g.state.Policy.OnCrash) {
		return fault.New(fault.Busy, fault.Domain, "domain %q is being restarted, which resumes it; suspend it again afterwards", g.record.Name)
	}
	return nil
}

// Resume resumes the vCPUs.
func (g *Guest) Resume(ctx context.Context, sc scope.Scope) error {
	return g.command(ctx, sc, lifecycle.Resume, lifecycle.Resuming{Reason: domain.ReasonUnpaused}, "cont")
}

// restartMachine resets the machine and resumes it, which turns a power-off into a reboot. It runs in the
// loop, and its commands run beside it.
func (g *Guest) restartMachine() {
	r, steps := g.run, append(g.resetSteps(), qemu.Step{Command: "cont"})
	go func() {
		ctx, stop := context.WithTimeout(g.reg.life, modifyLimit)
		defer stop()
		s, err := r.monitor()
		for _, step := range steps {
			if err == nil {
				err = execute(ctx, s, step)
			}
		}
		if err != nil && r.unrestarted.passes() {
			g.log.Error("cannot restart the machine; guest stays stopped", "error", err)
		}
		if s != nil && unanswered(err) {
			s.Close() // the next session repeats it
		}
	}()
}

// Wake wakes a guest that has suspended itself to memory.
func (g *Guest) Wake(ctx context.Context, sc scope.Scope) error {
	return g.command(ctx, sc, lifecycle.Wake, nil, "system_wakeup")
}

// InjectNMI sends every vCPU a non-maskable interrupt.
func (g *Guest) InjectNMI(ctx context.Context, sc scope.Scope) error {
	return g.command(ctx, sc, lifecycle.Change, nil, "inject-nmi")
}
