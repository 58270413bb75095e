package guest

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

// task is one request, in up to three parts. plan runs in the loop and inspects the guest. The work that
// plan returns runs beside the loop and may be slow. The settle function that the work returns runs in the
// loop again and changes the loop's data. A plan without work is answered at once.
type task struct {
	ctx   context.Context // the caller's; its end abandons a task that still waits
	sc    scope.Scope     // the caller's; asked when the task's turn comes
	verb  lifecycle.Verb  // what is admitted; empty: always
	kind  domain.JobKind  // what the work is; empty: there is none
	plan  func() (work, error)
	limit time.Duration // bounds the work; 0: no bound (jobs with progress that can be aborted)
	// until bounds the wait for other work on the same guest.
	until time.Time
	reply chan error // buffered: holds one answer
	// later says that the plan keeps the task and answers it later.
	later bool
	// progress is that of work that moves memory. Nil: there is none.
	progress *progress
}

type (
	work   func(ctx context.Context, sc scope.Scope) (settle, error)
	settle func() error
)

// Bounds of waiting. waitForTurn is libvirt's own, so that clients see the usual delay. The others are far
// above what a healthy host needs.
const (
	waitForTurn  = 30 * time.Second
	modifyLimit  = 30 * time.Second
	startLimit   = 120 * time.Second
	releaseLimit = 60 * time.Second
)

func (t *task) answer(err error) { t.reply <- err }

// ask hands a task to the loop and waits for its answer, or until ctx or the loop ends. Work that has begun
// continues without its caller.
func (g *Guest) ask(ctx context.Context, sc scope.Scope, t *task) error {
	t.ctx, t.sc, t.reply, t.until = ctx, sc, make(chan error, 1), time.Now().Add(waitForTurn)
	select {
	case g.mailbox <- t:
	case <-g.ended:
		return errGone(g.Name())
	case <-ctx.Done():
		return fmt.Errorf("cannot ask domain %q: %w", g.Name(), context.Cause(ctx))
	}
	var without error
	select {
	case err := <-t.reply:
		return err
	case <-ctx.Done():
		without = fmt.Errorf("stopped waiting for domain %q: %w", g.Name(), context.Cause(ctx))
	case <-g.ended:
		without = errGone(g.Name())
	}
	select {
	case err := <-t.reply: // a result counts even if ctx or the loop ended just then
		return err
	default:
		return without
	}
}

// change runs do in the loop, without waiting for other work.
func (g *Guest) change(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, do func() error) error {
	return g.ask(ctx, sc, &task{verb: verb, plan: func() (work, error) { return nil, do() }})
}

// perform runs work beside the loop, after the guest's other work.
func (g *Guest) perform(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, kind domain.JobKind, limit time.Duration, plan func() (work, error)) error {
	return g.ask(ctx, sc, &task{verb: verb, kind: kind, plan: plan, limit: limit})
}

// errLeft is in the answer of a guest that was forgotten before it was asked. Nothing of the request was
// begun.
var errLeft = errors.New("it has ended or was undefined")

func errGone(name string) error {
	return fault.Wrap(errLeft, fault.NotFound, fault.Domain, "domain %q no longer exists", name)
}

// job is the work that runs beside the loop. A guest has at most one.
type job struct {
	task    *task
	kind    domain.JobKind
	started time.Time
	cancel  context.CancelCauseFunc
	done    chan outcome // buffered: holds one outcome
}

// outcome is the result of work.
type outcome struct {
	settle settle
	err    error
}

func (j *job) outcome() <-chan outcome {
	if j == nil {
		return nil
	}
	return j.done
}

// accept handles a task from the mailbox: it begins the task, queues it or refuses it.
func (g *Guest) accept(t *task) {
	switch {
	case t.kind == domain.JobNone:
		g.begin(t)
	case g.job == nil && !g.run.ending():
		g.begin(t)
	case len(g.waiting) >= maxWaiting:
		t.answer(fault.New(fault.Busy, fault.Domain, "domain %q already has %d requests waiting for %s; try again later",
			g.record.Name, len(g.waiting), g.describeJob()))
	default:
		g.waiting = append(g.waiting, t)
		g.armTurn()
	}
}

// begin admits and plans a task, and starts its work. It drops a task if its client has given up: the
// client's next request would otherwise come after it.
func (g *Guest) begin(t *task) {
	if t.ctx.Err() != nil {
		t.answer(context.Cause(t.ctx))
		return
	}
	err := g.contain("the judging of a request", func() error { return t.sc.Authorize(g.uuid) })
	if err == nil {
		err = lifecycle.Admit(g.state, t.verb)
	}
	if err != nil {
		t.answer(err)
		return
	}
	var w work
	err = g.contain("the plan of a request", func() (err error) { w, err = t.plan(); return err })
	if err != nil || w == nil {
		if err != nil || !t.later {
			t.answer(err)
		}
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.ctx)) // work may ask the loop without another check
	g.job = &job{task: t, kind: t.kind, started: time.Now(), cancel: cancel, done: make(chan outcome, 1)}
	go g.job.runWork(ctx, w, g.record.Name)
	g.publish()
}

// contain runs do in the loop and turns a panic into an error. A panic is a bug that one guest's data may
// trigger; it must not end the other guests' loops.
func (g *Guest) contain(what string, do func() error) (err error) {
	defer func() {
		if bug := recover(); bug != nil {
			g.log.Error("bug in a guest's loop", "in", what, "panic", bug, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, fault.Domain, "%s for domain %q failed with a bug: %v; see the daemon's log", what, g.record.Name, bug)
		}
	}()
	return do()
}

// runWork does the work within its limit and reports one outcome. A panic ends only this work, as in the
// loop.
func (j *job) runWork(ctx context.Context, w work, name string) {
	if j.task.limit > 0 {
		cause := fault.New(fault.Timeout, fault.Domain, "%s of domain %q did not end within %v", j.kind, name, j.task.limit)
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, j.task.limit, cause)
		defer stop()
	}
	var o outcome
	defer func() {
		if r := recover(); r != nil {
			o = outcome{err: fault.New(fault.Internal, fault.Domain, "%s of domain %q failed with a bug: %v", j.kind, name, r)}
		}
		j.done <- o
	}()
	o.settle, o.err = w(ctx, j.task.sc.Begun()) // what work asks of the loop is part of it
	if o.err != nil && errors.Is(o.err, ctx.Err()) {
		o.err = context.Cause(ctx) // the cause says who ended it, and why
	}
}

// settle handles the result of the work, answers its task and begins the next one.
func (g *Guest) settle(o outcome) {
	g.catchUp()
	j := g.job
	g.job = nil
	j.cancel(nil)
	err := o.err
	if o.settle != nil {
		if e := g.contain("the completion of a request", o.settle); err == nil {
			err = e
		}
	}
	g.noteEnd(j, err)
	if err != nil {
		g.forgetIfNothing()
	}
	g.publish()
	if err == nil && j.task.progress != nil && g.run.ending() {
		// This save or dump ends the guest. Its client is answered once the guest has ended, as after a
		// destroy.
		g.destroyers = append(g.destroyers, j.task)
	} else {
		j.task.answer(err)
	}
	g.continueAfter()
}

// continueAfter begins what waited for the end of the work: first the release, if the process has ended,
// then the waiting tasks in order.
func (g *Guest) continueAfter() {
	if g.job != nil || g.over {
		return
	}
	if g.run.gone() {
		g.beginRelease()
		return
	}
	if g.run.ending() {
		return
	}
	g.dismissDestroyers(nil)
	if g.run != nil && g.run.behind {
		g.startResync()
	}
	g.shortenNodes()
	for g.job == nil && !g.over && len(g.waiting) > 0 {
		t := g.waiting[0]
		g.waiting = g.waiting[1:]
		if t.ctx.Err() == nil {
			g.begin(t)
		}
	}
}

// armTurn sets the timer to the moment at which the first waiting task expires. All tasks wait equally
// long, so the first has waited longest.
func (g *Guest) armTurn() {
	if len(g.waiting) > 0 {
		g.turn.Reset(time.Until(g.waiting[0].until))
	}
}

// expire answers the tasks that have waited too long, and drops those of clients that have given up.
func (g *Guest) expire() {
	now := time.Now()
	var still []*task
	for _, t := range g.waiting {
		switch {
		case t.ctx.Err() != nil:
		case now.After(t.until) || now.Equal(t.until):
			t.answer(fault.New(fault.Timeout, fault.Domain, "cannot %s domain %q yet: it waits for %s; abort that or try again later",
				t.describe(), g.record.Name, g.describeJob()))
		default:
			still = append(still, t)
		}
	}
	g.waiting = still
	g.armTurn()
}

func (t *task) describe() string {
	if t.verb != "" {
		return string(t.verb)
	}
	return string(t.kind)
}

// describeJob describes the current job, and the command that QEMU has not answered.
func (g *Guest) describeJob() string {
	text := g.job.describe()
	if g.run == nil {
		return text
	}
	s := g.run.session.Load()
	if s == nil {
		return text
	}
	command, since := s.Silent()
	if waits := time.Since(since); command != "" && waits > slowAnswer {
		text += fmt.Sprintf("; QEMU has not answered %s for %v", command, waits.Round(time.Millisecond))
	}
	return text
}

// slowAnswer is how long an answer must be missing before describeJob mentions it.
const slowAnswer = time.Second

func (j *job) describe() string {
	if j == nil {
		return "the end of its process"
	}
	return fmt.Sprintf("its %s job, running for %v", j.kind, time.Since(j.started).Round(time.Millisecond))
}
