// Package guest keeps the guests of this host: one loop per guest, and the registry that finds the guests.
//
// A guest's loop is the only writer of the daemon's state of that guest. It receives requests as tasks,
// QEMU's events in their order, and the end of the process from the kernel. The loop itself never blocks.
// Everything that may be slow (QEMU, disks, links) runs beside the loop as a job, one at a time per guest,
// and reports back. So no guest can delay another, and destroying a guest never waits for the operation
// that blocks it.
//
// All other code reads the View that the loop publishes. Reading it never blocks.
//
// This package decides the order of the steps that change a guest, and of undoing them. Other packages know
// QEMU's protocol (qmp), its arguments (qemu), the guest's XML (domainxml), and the rules how states follow
// each other (lifecycle).
package guest

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Guest is one guest. Its methods may be called from any goroutine.
type Guest struct {
	reg  *Registry
	log  *slog.Logger
	uuid string

	view    atomic.Pointer[View]
	live    atomic.Pointer[run] // the current run, for readers beside the loop
	mailbox chan *task          // bounded: senders wait, with their own deadline
	ended   chan struct{}       // closed when the loop has returned
	gauge   *gauge

	// The fields below belong to the loop.

	record record
	state  lifecycle.State
	since  time.Time
	// inactive is the persistent definition. Nil: the guest is transient.
	inactive *domain.Definition
	run      *run
	job      *job
	waiting  []*task
	// still counts the callers that need the guest's disks not to change.
	still int
	// turn fires when the first waiting task has waited too long.
	turn *time.Timer
	// late fires when a failed write of a record is to be repeated.
	late *time.Timer
	// unstored is the run that keeps its directory, because the store has not accepted all changes yet.
	// Nil: the store has everything.
	unstored *run
	// destroyers are the tasks that wait for the end of the process.
	destroyers []*task
	// quarantine says why a guest with a running QEMU cannot be adopted.
	quarantine string
	lastJob    domain.Progress
	revival    revival
	// over says that the loop is to end: the guest is forgotten, or the daemon stops.
	over bool
	// noted are the definitions, inactive and active, that the index of unique traits has.
	noted [2]*domain.Definition
}

// mailboxSize bounds the requests that wait for the guest's loop. The loop never blocks, so they wait
// microseconds.
const mailboxSize = 32

// maxWaiting bounds the requests that wait for the guest's current job. A further request is refused as
// Busy at once.
const maxWaiting = 128

func newGuest(r *Registry, name, uuid string) *Guest {
	g := &Guest{
		reg:     r,
		uuid:    uuid,
		log:     r.log.With("domain", name, "uuid", uuid),
		mailbox: make(chan *task, mailboxSize),
		ended:   make(chan struct{}),
		since:   time.Now(),
		record:  record{Name: name},
		state:   lifecycle.State{Phase: domain.ShutOff, Reason: domain.ReasonUnknown},
		turn:    time.NewTimer(waitForTurn),
		late:    time.NewTimer(writeAgain),
	}
	g.gauge = &gauge{take: g.measure}
	g.turn.Stop()
	g.late.Stop()
	g.publish()
	return g
}

// Name returns the guest's present name.
func (g *Guest) Name() string { return g.View().Name }

// UUID returns the guest's UUID, which never changes.
func (g *Guest) UUID() string { return g.uuid }

// loop runs until ctx ends or the guest is forgotten. It leaves the QEMU process running.
func (g *Guest) loop(ctx context.Context) {
	defer close(g.ended)
	defer g.retire()
	g.continueAfter() // an adopted guest may have work to finish
	for !g.over {
		if g.handleEvents() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case e, ok := <-g.run.qemuEvents():
			g.handleEvent(e, ok)
		case <-g.run.exited():
			g.handleExit()
		case s := <-g.run.reconnected():
			g.handleReconnect(s)
		case t := <-g.mailbox:
			g.accept(t)
		case o := <-g.job.outcome():
			g.settle(o)
		case <-g.turn.C:
			g.expire()
		case <-g.late.C:
			g.writeLate()
		}
	}
}

// handleEvents handles one pending event of QEMU, so that events are handled before the requests and
// results that may depend on them.
func (g *Guest) handleEvents() bool {
	select {
	case e, ok := <-g.run.qemuEvents():
		g.handleEvent(e, ok)
		return true
	default:
		return false
	}
}

// retirePatience is how long a stopping daemon waits for a job to undo itself.
const retirePatience = 10 * time.Second

// retire ends what the loop began, when the daemon stops or the guest is forgotten. It answers waiting
// clients, cancels the current job, which may undo itself, and leaves the monitor to the next daemon.
func (g *Guest) retire() {
	g.over = true
	g.turn.Stop()
	g.late.Stop()
	reason := errGone(g.Name())
	for _, t := range append(g.waiting, g.destroyers...) {
		t.answer(reason)
	}
	g.waiting, g.destroyers = nil, nil
	if g.job != nil {
		g.job.cancel(reason)
		g.awaitWork(reason)
	}
	if g.run != nil {
		g.run.leave()
	}
}

// awaitWork waits until the current job has undone itself. Requests of the job to the loop, such as to
// settle an image, are still served: otherwise the job would wait for the loop, and the loop for the job.
func (g *Guest) awaitWork(reason error) {
	late := time.NewTimer(retirePatience)
	defer late.Stop()
	for g.job != nil {
		select {
		case o := <-g.job.done:
			g.settle(o)
		case t := <-g.mailbox:
			if t.kind != domain.JobNone || t.later { // a client's request
				t.answer(reason)
			} else {
				g.begin(t)
			}
		case <-late.C:
			g.log.Warn("job still running at the end of the daemon", "work", g.job.describe())
			return
		}
	}
}

// advance applies a fact to the guest's state, publishes the result, stores it for the next daemon, and
// carries out the effects.
func (g *Guest) advance(f lifecycle.Fact) {
	before := g.state
	next, effects := lifecycle.Step(before, f)
	g.state = next
	if next.Phase != before.Phase || next.Reason != before.Reason {
		g.since = time.Now()
	}
	if next != before {
		g.keepRun()
	}
	g.publish()
	for _, e := range effects {
		g.reg.carryOut(g, e)
	}
}

// carryOut carries out one effect of a lifecycle step. It runs in the loop.
func (g *Guest) carryOut(e lifecycle.Effect) {
	switch e := e.(type) {
	case lifecycle.Announce:
		g.announce(event.DomainChange{Change: e.Change, Detail: e.Detail})
	case lifecycle.AnnounceReboot:
		g.announce(event.DomainReboot{})
	case lifecycle.End:
		g.run.end(endGracefully)
	case lifecycle.DumpCore:
		g.dumpCore()
	case lifecycle.Restart:
		g.restartMachine()
	case lifecycle.StartAgain:
		g.startAgain("QEMU ended unexpectedly: " + g.revival.cause)
	case lifecycle.Forget:
		g.forget()
	}
}

func (g *Guest) announce(p event.Payload) {
	g.reg.events.Append(event.Source{Name: g.record.Name, UUID: g.uuid, ID: g.id()}, p)
}

// id returns the ID of the running guest, or -1.
func (g *Guest) id() int {
	if g.run == nil {
		return -1
	}
	return g.run.ID
}

// forget removes the guest from the registry and ends its loop.
func (g *Guest) forget() {
	g.reg.noteLeft(g.uuid, g.record.Name, g.log)
	g.reg.hasRun(g.uuid)
	g.reg.traits.set(g.uuid, nil)
	g.reg.remove(g)
	g.dismissDestroyers(nil) // it has ended, as they asked
	g.over = true
}
