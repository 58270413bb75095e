package guest

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// View is what is known of a guest at one moment. Views are immutable: whoever
// holds one may keep it, and must not change the definitions in it.
type View struct {
	ID         int // -1 while shut off
	Name, UUID string
	// PID is QEMU's; 0 while there is no process.
	PID    int
	State  domain.State
	Reason domain.Reason
	// Since is when the guest came into this state.
	Since time.Time

	Persistent, Autostart, AutostartOnce bool
	// Updated says that Inactive was changed while the guest was running.
	Updated bool
	// ManagedSave says that the next start continues from a saved image.
	ManagedSave bool
	// Template says that the guest is there to be cloned, and is not started.
	Template bool

	// Due says that it is about to be started by itself: it crashed, or could not be started with the host.
	Due bool

	// Quarantined says that its QEMU lives on and could not be adopted: perhaps neither of the two
	// definitions is known.
	Quarantined bool

	// Active is what runs, with what the host gave it; nil while shut off.
	Active *domain.Definition
	// Inactive is what the next start makes; nil for a transient guest.
	Inactive *domain.Definition

	// Written are the bytes that are kept of the definitions.
	Written uint64

	// LastJob is the last finished job that moved memory.
	LastJob domain.Progress
	// job is the work on the guest, without its progress; see Guest.Job.
	job      domain.Progress
	progress *progress
	// owed says that what was cut off, such as a save, is to let the guest run when its QEMU answers, or that the
	// guest goes on when there is room, or when its panic has been dumped.
	owed bool
	// fences are the record's; they are replaced and never changed.
	fences map[string][]string

	// StuckSince is when the monitor was lost or stopped to answer; zero: it answers.
	StuckSince time.Time
	// StuckOn says what it was asked.
	StuckOn string

	// Isolation names what keeps the running guest's QEMU from the rest of the host:
	// user, root, capabilities, network, devices, threads, calls, io_uring, cores.
	Isolation []string

	// Messages are what an administrator should know: taints, deprecations.
	Messages []string
}

// Current gives the active definition, or else the inactive one.
func (v *View) Current() *domain.Definition {
	if v.Active != nil {
		return v.Active
	}
	return v.Inactive
}

// View gives the present view. It never waits.
func (g *Guest) View() *View { return g.view.Load() }

// publish makes the loop's present knowledge readable.
func (g *Guest) publish() {
	g.noteTraits()
	v := &View{
		ID: g.id(), Name: g.record.Name, UUID: g.uuid,
		State: g.state.Phase, Reason: g.state.Reason, Since: g.since,
		Persistent: g.inactive != nil, Autostart: g.record.Autostart, AutostartOnce: g.record.AutostartOnce,
		ManagedSave: g.record.ManagedSave, Template: g.record.Template, Inactive: g.inactive, LastJob: g.lastJob, fences: g.record.Fences,
		Written: uint64(len(g.record.XML) + len(g.record.Submitted)), Due: g.revival.cancel != nil,
	}
	if g.run != nil {
		v.Written = max(v.Written, uint64(len(g.run.XML)+len(g.run.Submitted)))
		v.PID, v.Active, v.Updated, v.Messages = g.run.PID, g.run.def, g.run.Updated, g.run.Messages
		v.StuckSince, v.StuckOn = g.run.stuck()
		v.Isolation = g.run.Isolation
		v.owed = g.run.ops.HasClass(operation.Move) || g.run.Resuming || g.state.Restarting || g.state.Dumping || len(g.run.NoRoom) > 0
	}
	if g.revival.words != "" {
		v.Messages = append([]string{g.revival.words}, v.Messages...)
	}
	if g.quarantine != "" {
		v.Quarantined, v.Messages = true, append([]string{g.quarantine}, v.Messages...)
	}
	if g.job != nil {
		v.job, v.progress = domain.Progress{Kind: g.job.kind, Started: g.job.started}, g.job.task.progress
	}
	g.view.Store(v)
}
