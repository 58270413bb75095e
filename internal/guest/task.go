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

// task is one request, in up to three parts. plan runs in the loop and looks at
// the guest; the work that it returns runs beside the loop and may be slow; the
// settling that the work returns runs in the loop again and changes what the
// loop owns. A plan without work is answered at once.
type task struct {
	ctx   context.Context // the caller's; its end abandons a task that still waits
	sc    scope.Scope     // the caller's; asked when the task's turn comes
	verb  lifecycle.Verb  // what is admitted; empty: always
	kind  domain.JobKind  // what the work is; empty: there is none
	plan  func() (work, error)
	limit time.Duration // bound of the work; 0: none (jobs that show progress and can be aborted)
	// until bounds the wait for other work on the same guest.
	until time.Time
	reply chan error // holds one
	// later says that the plan keeps the task and answers it when it is done.
	later bool
	// progress of work that moves memory, for its readers; nil otherwise.
	progress *progress
}

type (
	work   func(ctx context.Context, sc scope.Scope) (settle, error)
	settle func() error
)

// Bounds of waiting. The wait for other work is libvirt's own, so that clients
// see what they know; the others are far above what a healthy host needs.
const (
	waitForTurn  = 30 * time.Second
	modifyLimit  = 30 * time.Second
	startLimit   = 120 * time.Second
	releaseLimit = 60 * time.Second
)

func (t *task) answer(err error) { t.reply <- err }

// ask hands a task to the loop and waits for its answer, for the caller's
// context to end, or for the loop to end. Work that has begun goes on without
// its caller.
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
	case err := <-t.reply: // what was done is no failure, whatever ended just then
		return err
	default:
		return without
	}
}

// change asks for something that the loop does by itself, without waiting.
func (g *Guest) change(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, do func() error) error {
	return g.ask(ctx, sc, &task{verb: verb, plan: func() (work, error) { return nil, do() }})
}

// perform asks for work beside the loop.
func (g *Guest) perform(ctx context.Context, sc scope.Scope, verb lifecycle.Verb, kind domain.JobKind, limit time.Duration, plan func() (work, error)) error {
	return g.ask(ctx, sc, &task{verb: verb, kind: kind, plan: plan, limit: limit})
}

// errLeft is in the answer of a guest that had been forgotten when it was asked: nothing of
// what it was asked for was begun.
var errLeft = errors.New("it has ended or was undefined")

func errGone(name string) error {
	return fault.Wrap(errLeft, fault.NotFound, fault.Domain, "domain %q is no longer there", name)
}

// job is the work that runs beside the loop. At most one per guest.
type job struct {
	task    *task
	kind    domain.JobKind
	started time.Time
	cancel  context.CancelCauseFunc
	done    chan outcome // holds one
}

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

// accept takes a task out of the mailbox: to wait, to be answered, or to work.
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

// begin admits and plans a task, and sets its work going. One whose caller has gone is not begun: what
// they do instead would come before it.
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
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.ctx))
	g.job = &job{task: t, kind: t.kind, started: time.Now(), cancel: cancel, done: make(chan outcome, 1)}
	go g.job.runWork(ctx, w, g.record.Name)
	g.publish()
}

// contain does something in the loop that one guest's data may break: a panic is
// a bug that must not take the other guests along.
func (g *Guest) contain(what string, do func() error) (err error) {
	defer func() {
		if bug := recover(); bug != nil {
			g.log.Error("bug in a guest's loop", "in", what, "panic", bug, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, fault.Domain, "%s for domain %q broke: %v; the daemon's log has more", what, g.record.Name, bug)
		}
	}()
	return do()
}

// runWork does the work within its limit and reports once. A panic ends the work
// alone, as in the loop.
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
			o = outcome{err: fault.New(fault.Internal, fault.Domain, "%s of domain %q broke: %v", j.kind, name, r)}
		}
		j.done <- o
	}()
	o.settle, o.err = w(ctx, j.task.sc.Begun()) // what work asks of the loop is part of it
	if o.err != nil && errors.Is(o.err, ctx.Err()) {
		o.err = context.Cause(ctx) // says who ended it, and why
	}
}

// settle takes the result of the work in, answers its task, and lets the next go.
func (g *Guest) settle(o outcome) {
	g.catchUp()
	j := g.job
	g.job = nil
	j.cancel(nil)
	err := o.err
	if o.settle != nil {
		if e := g.contain("the settling of a request", o.settle); err == nil {
			err = e
		}
	}
	g.noteEnd(j, err)
	if err != nil {
		g.forgetIfNothing()
	}
	g.publish()
	if err == nil && j.task.progress != nil && g.run.ending() {
		// A save or a dump that ends the guest: whoever asked for it finds the
		// guest ended, as after a destroy.
		g.destroyers = append(g.destroyers, j.task)
	} else {
		j.task.answer(err)
	}
	g.continueAfter()
}

// continueAfter lets go on what waited for the work to end: first the end of
// the process, if that has come, then the waiting tasks in their order.
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

// armTurn sets the timer to the moment at which the first waiting task gives up:
// the one that has waited longest, since all wait equally long.
func (g *Guest) armTurn() {
	if len(g.waiting) > 0 {
		g.turn.Reset(time.Until(g.waiting[0].until))
	}
}

// expire answers the tasks that have waited too long, and those whose callers
// have gone.
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

// describeJob says what the work under way is, and which command QEMU owes it an
// answer to.
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

// slowAnswer is from when on an answer that is waited for is worth a word.
const slowAnswer = time.Second

func (j *job) describe() string {
	if j == nil {
		return "the end of its process"
	}
	return fmt.Sprintf("its %s job, running for %v", j.kind, time.Since(j.started).Round(time.Millisecond))
}
