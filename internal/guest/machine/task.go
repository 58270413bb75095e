package machine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Task is one request, in up to three parts. Plan runs in the loop and inspects the guest. The work that
// Plan returns runs beside the loop and may be slow. The settle function that the work returns runs in the
// loop again and changes the loop's data. A plan without work is answered at once.
type Task struct {
	Ctx   context.Context // the caller's; its end abandons a task that still waits
	Sc    scope.Scope     // the caller's; asked when the task's turn comes
	verb  lifecycle.Verb  // the guest's state must admit it; empty: any state does
	Kind  domain.JobKind  // the kind of the work; JobNone: there is no work
	Plan  func() (Work, error)
	limit time.Duration // of the work; 0: no limit (jobs with progress that can be aborted)
	// until bounds the wait for other work on the same guest.
	until time.Time
	Reply chan error // buffered: holds one answer
	// Later says that the plan keeps the task and answers it later.
	Later bool
	// Progress is the progress of work that moves memory. Nil: the work does not.
	Progress *Progress
}

type (
	// Work is the slow part of a task; it runs beside the loop.
	Work func(ctx context.Context, sc scope.Scope) (Settle, error)
	// Settle is the last part of a task; it runs in the loop.
	Settle func() error
)

// Bounds of waiting. WaitForTurn is libvirt's own, so that clients see the usual delay. The others are far
// above what a healthy host needs.
const (
	WaitForTurn  = 30 * time.Second
	ModifyLimit  = 30 * time.Second
	StartLimit   = 120 * time.Second
	ReleaseLimit = 60 * time.Second
)

// Answer ends the wait of the task's client.
func (t *Task) Answer(err error) { t.Reply <- err }

// ask hands a task to the loop and waits for its answer, or until ctx or the loop ends. Work that has begun
// continues without its caller.
func (g *Guest) ask(ctx context.Context, sc scope.Scope, t *Task) error {
	t.Ctx, t.Sc, t.Reply, t.until = ctx, sc, make(chan error, 1), time.Now().Add(WaitForTurn)
	select {
	case g.Mailbox <- t:
	case <-g.Ended:
		return ErrGone(g.Name())
	case <-ctx.Done():
		return fmt.Errorf("cannot ask domain %q: %w", g.Name(), context.Cause(ctx))
	}
	var without error
	select {
	case err := <-t.Reply:
		return err
	case <-ctx.Done():
		without = fmt.Errorf("stopped waiting for domain %q: %w", g.Name(), context.Cause(ctx))
	case <-g.Ended:
		without = ErrGone(g.Name())
	}
	select {
	case err := <-t.Reply: // a result counts even if ctx or the loop ended just then
		return err
	default:
		return without
	}
}

// Change runs do in the loop, without waiting for other work.
func (g *Guest) Change(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, do func() error) error {
	return g.ask(ctx, sc, &Task{verb: verb, Plan: func() (Work, error) { return nil, do() }})
}

// Perform runs work beside the loop, after the guest's other work.
func (g *Guest) Perform(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, kind domain.JobKind, limit time.Duration, plan func() (Work, error)) error {
	return g.ask(ctx, sc, &Task{verb: verb, Kind: kind, Plan: plan, limit: limit})
}

// ErrForgotten is in the answer of a guest that was forgotten before it was asked. Nothing of the request was
// begun.
var ErrForgotten = errors.New("it has ended or was undefined")

// ErrGone is the answer of a guest that is no longer there.
func ErrGone(name string) error {
	return fault.Wrap(ErrForgotten, fault.NotFound, fault.Domain, "domain %q no longer exists", name)
}

// Job is the work that runs beside the loop. A guest has at most one.
type Job struct {
	Task    *Task
	Kind    domain.JobKind
	started time.Time
	Cancel  context.CancelCauseFunc
	Done    chan Outcome // buffered: holds one outcome
}

// Outcome is the result of work.
type Outcome struct {
	Settle Settle
	Err    error
}

// Outcome fires when the job's work has ended.
func (j *Job) Outcome() <-chan Outcome {
	if j == nil {
		return nil
	}
	return j.Done
}

// Accept handles a task from the mailbox: it begins the task, queues it or refuses it.
func (g *Guest) Accept(t *Task) {
	switch {
	case t.Kind == domain.JobNone:
		g.Begin(t)
	case g.CurrentJob == nil && !g.Instance.Ending():
		g.Begin(t)
	case len(g.Waiting) >= maxWaiting:
		t.Answer(fault.New(fault.Busy, fault.Domain, "domain %q already has %d requests waiting for %s; try again later",
			g.Record.Name, len(g.Waiting), g.describeJob()))
	default:
		g.Waiting = append(g.Waiting, t)
		g.armTurn()
	}
}

// Begin admits and plans a task, and starts its work. It drops a task if its client has given up: the
// client's next request would otherwise come after it.
func (g *Guest) Begin(t *Task) {
	if t.Ctx.Err() != nil {
		t.Answer(context.Cause(t.Ctx))
		return
	}
	err := g.Recover("the judging of a request", func() error { return t.Sc.Authorize(g.Identity) })
	if err == nil {
		err = lifecycle.Admit(g.State, t.verb)
	}
	if err != nil {
		t.Answer(err)
		return
	}
	var w Work
	err = g.Recover("the plan of a request", func() (err error) { w, err = t.Plan(); return err })
	if err != nil || w == nil {
		if err != nil || !t.Later {
			t.Answer(err)
		}
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Ctx)) // work may ask the loop without another check
	g.CurrentJob = &Job{Task: t, Kind: t.Kind, started: time.Now(), Cancel: cancel, Done: make(chan Outcome, 1)}
	go g.CurrentJob.runWork(ctx, w, g.Record.Name)
	g.Publish()
}

// Recover runs do in the loop and turns a panic into an error. A panic is a bug that one guest's data may
// trigger; it must not end the other guests' loops.
func (g *Guest) Recover(what string, do func() error) (err error) {
	defer func() {
		if bug := recover(); bug != nil {
			g.Log.Error("bug in a guest's loop", "in", what, "panic", bug, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, fault.Domain, "%s for domain %q failed with a bug: %v; see the daemon's log", what, g.Record.Name, bug)
		}
	}()
	return do()
}

// runWork does the work within its limit and reports one outcome. A panic ends only this work, as in the
// loop.
func (j *Job) runWork(ctx context.Context, w Work, name string) {
	if j.Task.limit > 0 {
		cause := fault.New(fault.Timeout, fault.Domain, "%s of domain %q did not end within %v", j.Kind, name, j.Task.limit)
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, j.Task.limit, cause)
		defer stop()
	}
	var o Outcome
	defer func() {
		if r := recover(); r != nil {
			o = Outcome{Err: fault.New(fault.Internal, fault.Domain, "%s of domain %q failed with a bug: %v", j.Kind, name, r)}
		}
		j.Done <- o
	}()
	o.Settle, o.Err = w(ctx, j.Task.Sc.AlreadyAuthorized()) // requests of the work to the loop are not authorized again
	if o.Err != nil && errors.Is(o.Err, ctx.Err()) {
		o.Err = context.Cause(ctx) // the cause says who ended it, and why
	}
}

// armTurn sets the timer to the moment at which the first waiting task expires. All tasks wait equally
// long, so the first has waited longest.
func (g *Guest) armTurn() {
	if len(g.Waiting) > 0 {
		g.Turn.Reset(time.Until(g.Waiting[0].until))
	}
}

// Expire answers the tasks that have waited too long, and drops those of clients that have given up.
func (g *Guest) Expire() {
	now := time.Now()
	var still []*Task
	for _, t := range g.Waiting {
		switch {
		case t.Ctx.Err() != nil:
		case now.After(t.until) || now.Equal(t.until):
			t.Answer(fault.New(fault.Timeout, fault.Domain, "cannot %s domain %q yet: it waits for %s; abort that or try again later",
				t.describe(), g.Record.Name, g.describeJob()))
		default:
			still = append(still, t)
		}
	}
	g.Waiting = still
	g.armTurn()
}

func (t *Task) describe() string {
	if t.verb != "" {
		return string(t.verb)
	}
	return string(t.Kind)
}

// describeJob describes the current job, and the command that QEMU has not answered.
func (g *Guest) describeJob() string {
	text := g.CurrentJob.Describe()
	if g.Instance == nil {
		return text
	}
	s := g.Instance.Session.Load()
	if s == nil {
		return text
	}
	command, since := s.LongestUnanswered()
	if waits := time.Since(since); command != "" && waits > slowAnswer {
		text += fmt.Sprintf("; QEMU has not answered %s for %v", command, waits.Round(time.Millisecond))
	}
	return text
}

// slowAnswer is how long an answer must be missing before describeJob mentions it.
const slowAnswer = time.Second

// Describe says which job it is and how long it has run.
func (j *Job) Describe() string {
	if j == nil {
		return "the end of its process"
	}
	return fmt.Sprintf("its %s job, running for %v", j.Kind, time.Since(j.started).Round(time.Millisecond))
}
