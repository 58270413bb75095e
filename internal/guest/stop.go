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

// destroyPatience is how long a destroy waits for a killed process and for what
// it held to be given back.
const destroyPatience = nowPatience + releaseLimit

// Destroy ends the guest's process, as pulling the plug does. It waits for
// nothing that the guest is stuck in. Graceful only asks QEMU, and fails when
// QEMU does not follow.
func (g *Guest) Destroy(ctx context.Context, sc scope.Scope, graceful bool) error {
	return g.destroy(ctx, sc, graceful, nil)
}

// destroy ends the guest if it is in that run still; nil: whichever.
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

// beginDestroy sets the end going. It runs in the loop; t is answered when the
// guest has ended and has given everything back.
func (g *Guest) beginDestroy(t *task, graceful bool) error {
	aborted := fault.New(fault.Aborted, fault.Domain, "domain %q was destroyed meanwhile", g.record.Name)
	starting := g.run == nil && g.job != nil && (g.job.kind == domain.JobStart || g.job.kind == domain.JobRestore)
	if starting {
		g.destroyers = append(g.destroyers, t)
		g.job.cancel(aborted)
		g.giveUpRevival() // the start may fail by itself just now, and is not to be tried again
		return nil
	}
	if g.run == nil && g.revival.cancel != nil { // it crashed, and waits to be started again
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

// dismissDestroyers answers those who wait for the end.
func (g *Guest) dismissDestroyers(err error) {
	for _, t := range g.destroyers {
		t.answer(err)
	}
	g.destroyers = nil
}

// handleExit notes that the process has ended.
func (g *Guest) handleExit() {
	g.run.noticed = true
	if g.job != nil {
		g.job.cancel(fault.New(fault.WrongState, fault.Domain, "domain %q ended meanwhile", g.record.Name))
		return // its outcome lets the release begin
	}
	g.beginRelease()
}

// lastEvents is how long the release waits for QEMU's last words to be read from
// a monitor whose process is gone.
const lastEvents = time.Second

// beginRelease gives back, beside the loop, what the ended process held, and
// then settles the guest's state.
func (g *Guest) beginRelease() {
	r := g.run
	r.noticed, r.ended = true, r.def
	g.live.Store(nil)
	crashed := g.inactive != nil && r.revives(g.state)
	g.startInternal(domain.JobDestroy, 0, func(ctx context.Context, sc scope.Scope) (settle, error) {
		// Whoever stops must not keep the host from getting back what is its own.
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

// hearOut waits until everything that QEMU said has been read.
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

// finish settles the state of a guest whose process is gone and whose things
// are given back. It runs in the loop.
func (g *Guest) finish(r *run) {
	for r.events != nil && g.handleEvents() { // what QEMU said last explains the end
	}
	if g.state.EndFor == "" {
		g.revival.cause = r.process.Exit().String()
		g.log.Warn("QEMU ended by itself", "pid", r.PID, "exit", r.process.Exit().String(), "log", g.reg.lastWords(r.Name, r.process))
	}
	g.reg.dropID(r.ID)
	g.reg.rooms.leave(g)
	g.reg.giveBackLater(r)
	g.run = nil
	if g.inactive == nil {
		g.reg.dropSecretsOf(&r.runRecord, r.def, g.log)
	}
	failpoint.Reach("destroy.released")
	if r.AutoDestroy { // started again it would end with nobody
		g.state.Policy.OnCrash = "destroy"
	}
	g.advance(lifecycle.Ended{})
	if g.revival.cancel == nil && !g.over { // it is not to be started again
		g.giveUpRevival()
	}
	if g.inactive != nil {
		g.state.Policy = policy(g.inactive)
	}
	g.dismissDestroyers(nil)
}

// startInternal sets work going that nobody asked for. No other may be running.
func (g *Guest) startInternal(kind domain.JobKind, limit time.Duration, w work) {
	g.begin(&task{
		ctx: g.reg.life, sc: scope.Daemon("work that the guest needs"), kind: kind, limit: limit, reply: make(chan error, 1),
		plan: func() (work, error) { return w, nil },
	})
}

// ShutdownMode is how a guest is asked to turn itself off or to reboot.
type ShutdownMode int

// The modes. The default asks the agent where one answers, and else ACPI.
const (
	ShutdownDefault ShutdownMode = iota
	ShutdownACPI
	ShutdownAgent
)

// Shutdown asks the guest to turn itself off. It returns when the guest has
// been asked.
func (g *Guest) Shutdown(ctx context.Context, sc scope.Scope, mode ShutdownMode) error {
	return g.askGuest(ctx, sc, lifecycle.Shut, mode, "powerdown", lifecycle.ShutdownAsked{})
}

// Reboot asks the guest to reboot. Through ACPI that is a power-off which is
// answered with a reset.
func (g *Guest) Reboot(ctx context.Context, sc scope.Scope, mode ShutdownMode) error {
	return g.askGuest(ctx, sc, lifecycle.Reboot, mode, "reboot", lifecycle.RebootAsked{})
}

// askGuest asks through the agent or the power button. Noted is what must be
// known before the guest follows the button.
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

// Reset resets the machine, without asking the guest. One that is kept as it ended boots anew.
func (g *Guest) Reset(ctx context.Context, sc scope.Scope) error {
	return g.commands(ctx, sc, lifecycle.Reset, nil, func() []qemu.Step {
		steps := g.resetSteps()
		if g.state.Kept() {
			steps = append(steps, qemu.Step{Command: "cont"})
		}
		return steps
	}, nil)
}

// resetSteps reset the machine, also where QEMU is to keep a guest that does so by itself. It
// keeps it no more in this run: firmware that is reset may reset once more by itself.
func (g *Guest) resetSteps() []qemu.Step {
	reset := qemu.Step{Command: "system_reset"}
	if g.state.Policy.OnReboot != "preserve" {
		return []qemu.Step{reset}
	}
	return []qemu.Step{{Command: "set-action", Args: map[string]any{"reboot": "reset"}}, reset}
}

// command runs one monitor command without arguments as a job of its own; noted, if any, tells the
// rules beforehand what the command is for.
func (g *Guest) command(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, noted lifecycle.Fact, name string) error {
	return g.commands(ctx, sc, verb, noted, func() []qemu.Step { return []qemu.Step{{Command: name}} }, nil)
}

// commands does so with several, which are chosen in the loop; done, if any, follows there before other work.
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

// IsPaused says that the guest stays paused until somebody lets it go on: not one whose processors work under
// way has stopped, such as a dump, or work that was cut off, nor one of which a monitor that no longer answers said so,
// nor one that goes on by itself when a disk has room again, or its panic has been followed.
func (v *View) IsPaused() bool {
	return v.State == domain.Paused && v.StuckSince.IsZero() && v.job.Kind == domain.JobNone && !v.owed
}

// Suspend stops the processors. A guest that waits for room, or that a full disk has paused by then, waits for its user now.
func (g *Guest) Suspend(ctx context.Context, sc scope.Scope) error {
	if g.View().IsPaused() {
		return nil
	}
	stop := func() []qemu.Step { return []qemu.Step{{Command: "stop"}} }
	return g.commands(ctx, sc, lifecycle.Suspend, lifecycle.Pausing{Reason: domain.ReasonUser}, stop, g.isSuspended)
}

// isSuspended settles that. A guest that restarts just then, or is to once its panic has been dumped, runs on with that.
// It runs in the loop.
func (g *Guest) isSuspended() error {
	g.hasRoomAgain()
	if g.state.Restarting || g.state.Dumping && lifecycle.Revives(g.state.Policy.OnCrash) {
		return fault.New(fault.Busy, fault.Domain, "domain %q is being restarted just now, and runs then; suspend it again after that", g.record.Name)
	}
	return nil
}

// Resume lets the processors run again.
func (g *Guest) Resume(ctx context.Context, sc scope.Scope) error {
	return g.command(ctx, sc, lifecycle.Resume, lifecycle.Resuming{Reason: domain.ReasonUnpaused}, "cont")
}

// restartMachine resets the machine and lets it run: how a power-off becomes a
// reboot. It runs in the loop; the commands run beside it.
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
			g.log.Error("cannot restart the machine; it stays stopped", "error", err)
		}
		if s != nil && unanswered(err) {
			s.Close() // a new session does it once more
		}
	}()
}

// Wake wakes a guest that has suspended itself to memory.
func (g *Guest) Wake(ctx context.Context, sc scope.Scope) error {
	return g.command(ctx, sc, lifecycle.Wake, nil, "system_wakeup")
}

// InjectNMI sends every processor a non-maskable interrupt.
func (g *Guest) InjectNMI(ctx context.Context, sc scope.Scope) error {
	return g.command(ctx, sc, lifecycle.Change, nil, "inject-nmi")
}
