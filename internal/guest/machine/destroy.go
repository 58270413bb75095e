package machine

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// destroyPatience is how long a destroy waits for a killed process to end, and for its resources to be
// released.
const destroyPatience = nowPatience + ReleaseLimit

// Destroy ends the guest. If in is not nil, it ends only that instance, and no later one of the guest.
func (g *Guest) Destroy(ctx context.Context, sc scope.Scope, graceful bool, in *Instance) error {
	t := &Task{Later: true}
	t.Plan = func() (Work, error) {
		if in != nil && g.Instance != in {
			t.Answer(nil)
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
	return g.submit(ctx, sc, t)
}

// beginDestroy begins the end of the process. It runs in the loop. t is answered when the guest has ended
// and its resources are released.
func (g *Guest) beginDestroy(t *Task, graceful bool) error {
	aborted := fault.New(fault.Aborted, fault.Domain, "domain %q was destroyed meanwhile", g.Record.Name)
	starting := g.Instance == nil && g.CurrentJob != nil && (g.CurrentJob.Kind == domain.JobStart || g.CurrentJob.Kind == domain.JobRestore)
	if starting {
		g.Destroyers = append(g.Destroyers, t)
		g.CurrentJob.Cancel(aborted)
		g.CancelRestart() // the start may be failing just now, and must not be repeated
		return nil
	}
	if g.Instance == nil && g.Restarts.Cancel != nil { // it crashed and is about to be started again
		g.CancelRestart()
		t.Answer(nil)
		return nil
	}
	if err := lifecycle.Admit(g.State, lifecycle.Destroy); err != nil {
		return err
	}
	g.Destroyers = append(g.Destroyers, t)
	if g.State.EndFor == "" {
		g.Advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
	}
	failpoint.Reach("destroy.begun")
	if g.CurrentJob != nil && !graceful {
		g.CurrentJob.Cancel(aborted)
	}
	mode := EndNow
	if graceful {
		mode = endPolitely
	}
	g.Instance.End(mode)
	return nil
}

// AnswerDestroyers answers the clients that wait for the end.
func (g *Guest) AnswerDestroyers(err error) {
	for _, t := range g.Destroyers {
		t.Answer(err)
	}
	g.Destroyers = nil
}

// StartInternalJob begins a job that no client asked for. No other job may be running.
func (g *Guest) StartInternalJob(kind domain.JobKind, limit time.Duration, w Work) {
	g.Begin(&Task{
		Ctx: g.Reg.Life, Sc: scope.Daemon("work that the guest needs"), Kind: kind, limit: limit, Reply: make(chan error, 1),
		Plan: func() (Work, error) { return w, nil },
	})
}
