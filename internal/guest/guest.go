// Package guest keeps the guests of this host: one loop per guest, the registry
// that finds them, and what their loops do.
//
// A guest's loop is the only writer of what the daemon knows about that guest.
// Requests come in as tasks, QEMU's events in the order in which QEMU sent
// them, and the end of the process from the kernel. The loop itself never
// waits: whatever may be slow (QEMU, disks, links) is work beside the loop, one
// piece at a time per guest, that reports back. So no guest can delay another,
// and destroying a guest never waits for what that guest is stuck in.
//
// Everybody else reads the View that the loop publishes; reading never waits.
//
// What belongs here: the order in which things are done to a guest, and undone.
// What does not: how QEMU is spoken to (qmp), what its arguments are (qemu), what
// its XML looks like (domainxml), which states follow which (lifecycle).
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

// Guest is one guest. Its methods may be called from anywhere.
type Guest struct {
	reg  *Registry
	log  *slog.Logger
	uuid string

	view    atomic.Pointer[View]
	live    atomic.Pointer[run] // the running guest's connections, for reads beside the loop
	mailbox chan *task          // bounded: senders wait, with their own deadline
	ended   chan struct{}       // closed when the loop has returned
	gauge   *gauge

	// Everything below belongs to the loop.

	record record
	state  lifecycle.State
	since  time.Time
	// inactive is the persistent definition; nil for a transient guest.
	inactive *domain.Definition
	run      *run
	job      *job
	waiting  []*task
	// still counts those who need the guest's disks to stay as they are.
	still int
	// turn fires when the first of those waiting has waited too long.
	turn *time.Timer
	// late fires when a record is to be written that could not be.
	late *time.Timer
	// unstored is the run whose directory tells the next daemon what the store does not take; nil:
	// the store knows all.
	unstored *run
	// destroyers wait for the end of the process.
	destroyers []*task
	// quarantine says what keeps a guest from being adopted whose QEMU lives on.
	quarantine string
	lastJob    domain.Progress
	revival    revival
	// over says that the loop is to end: the guest is forgotten, or the daemon stops.
	over bool
	// noted are the definitions, inactive and active, that are in the index of traits.
	noted [2]*domain.Definition
}

// mailboxSize bounds the requests that wait for a guest's loop to look at them.
// The loop never waits, so that this is passed in microseconds.
const mailboxSize = 32

// maxWaiting bounds the requests that wait for the work on a guest to end. Beyond
// it a request is refused as Busy at once.
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

// Name gives the guest's present name.
func (g *Guest) Name() string { return g.View().Name }

// UUID gives the guest's identity, which never changes.
func (g *Guest) UUID() string { return g.uuid }

// loop runs until ctx ends or the guest is forgotten. Ending the loop ends no
// QEMU process.
func (g *Guest) loop(ctx context.Context) {
	defer close(g.ended)
	defer g.retire()
	g.continueAfter() // an adopted guest may bring work along
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

// handleEvents handles one waiting QEMU event, so that events come before the
// requests and results that may depend on them.
func (g *Guest) handleEvents() bool {
	select {
	case e, ok := <-g.run.qemuEvents():
		g.handleEvent(e, ok)
		return true
	default:
		return false
	}
}

// retirePatience is how long a stopping daemon waits for work to undo itself.
const retirePatience = 10 * time.Second

// retire ends what the loop began, when the daemon stops or the guest is
// forgotten: those who wait are answered, work under way is cancelled and may
// undo itself, and the monitor is left to the next daemon.
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

// awaitWork waits until work under way has undone itself. What that asks of the loop meanwhile, such as to
// settle what became of an image, is still done: it would wait for the loop, and the loop for it.
func (g *Guest) awaitWork(reason error) {
	late := time.NewTimer(retirePatience)
	defer late.Stop()
	for g.job != nil {
		select {
		case o := <-g.job.done:
			g.settle(o)
		case t := <-g.mailbox:
			if t.kind != domain.JobNone || t.later { // a client's
				t.answer(reason)
			} else {
				g.begin(t)
			}
		case <-late.C:
			g.log.Warn("work on a guest does not end with the daemon", "work", g.job.describe())
			return
		}
	}
}

// advance applies a fact to the guest's state, publishes the result, keeps it
// for the next daemon, and carries out what follows.
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
		g.startAgain("QEMU ended by itself: " + g.revival.cause)
	case lifecycle.Forget:
		g.forget()
	}
}

func (g *Guest) announce(p event.Payload) {
	g.reg.events.Append(event.Source{Name: g.record.Name, UUID: g.uuid, ID: g.id()}, p)
}

func (g *Guest) id() int {
	if g.run == nil {
		return -1
	}
	return g.run.ID
}

// forget takes the guest out of the registry and ends its loop.
func (g *Guest) forget() {
	g.reg.noteLeft(g.uuid, g.record.Name, g.log)
	g.reg.hasRun(g.uuid)
	g.reg.traits.set(g.uuid, nil)
	g.reg.remove(g)
	g.dismissDestroyers(nil) // it has ended, as they asked
	g.over = true
}
