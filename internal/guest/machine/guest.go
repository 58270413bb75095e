package machine

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Guest is one guest. Its methods may be called from any goroutine.
type Guest struct {
	Reg  *Registry
	Log  *slog.Logger
	UUID string // never changes

	LastView   atomic.Pointer[View]
	Live       atomic.Pointer[Instance] // the current instance, for readers beside the loop
	Mailbox    chan *Task               // bounded: senders wait, with their own deadline
	Ended      chan struct{}            // closed when the loop has returned
	StatsCache *StatsCache

	// The fields below belong to the loop.

	Record Record
	State  lifecycle.State
	Since  time.Time
	// Inactive is the persistent definition. Nil: the guest is transient.
	Inactive   *domain.Definition
	Instance   *Instance
	CurrentJob *Job
	Waiting    []*Task
	// keptShutOff counts the callers that need the guest's disks not to change.
	keptShutOff int
	// Turn fires when the first waiting task has waited too long.
	Turn *time.Timer
	// WriteRetry fires when a failed write of a record is to be repeated.
	WriteRetry *time.Timer
	// Unstored is the instance that keeps its directory, because the store has not accepted all changes yet.
	// Nil: the store has everything.
	Unstored *Instance
	// Destroyers are the tasks that wait for the end of the process.
	Destroyers []*Task
	// Quarantine says why a guest with a running QEMU cannot be adopted.
	Quarantine string
	lastJob    domain.Progress
	Restarts   Restarts
	// Finished says that the loop is to end: the guest is forgotten, or the daemon stops.
	Finished bool
	// indexed are the definitions, inactive and active, that the index of unique keys has.
	indexed [2]*domain.Definition
}

// MailboxSize bounds the requests that wait for the guest's loop. The loop never blocks, so they wait
// microseconds.
const MailboxSize = 32

// maxWaiting bounds the requests that wait for the guest's current job. A further request is refused as
// Busy at once.
const maxWaiting = 128

// Name returns the guest's present name.
func (g *Guest) Name() string { return g.View().Name }

// JobUndoPatience is how long a stopping daemon waits for a job to undo itself.
const JobUndoPatience = 10 * time.Second

// Advance applies a fact to the guest's state, publishes the result, stores it for the next daemon, and
// carries out the effects.
func (g *Guest) Advance(f lifecycle.Fact) {
	before := g.State
	next, effects := lifecycle.Step(before, f)
	g.State = next
	if next.Phase != before.Phase || next.Reason != before.Reason {
		g.Since = time.Now()
	}
	if next != before {
		g.WriteInstance()
	}
	g.Publish()
	for _, e := range effects {
		g.Reg.ApplyEffect(g, e)
	}
}

// Announce appends an event about this guest.
func (g *Guest) Announce(p event.Payload) {
	g.Reg.Events.Append(event.Source{Name: g.Record.Name, UUID: g.UUID, ID: g.ID()}, p)
}

// ID returns the ID of the running guest, or -1.
func (g *Guest) ID() int {
	if g.Instance == nil {
		return -1
	}
	return g.Instance.ID
}
