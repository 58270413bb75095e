package guest

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// View is the state of a guest at one moment. Views are immutable: a reader may keep one, and must not
// change the definitions in it.
type View struct {
	ID         int // -1 while shut off
	Name, UUID string
	// PID is QEMU's process ID. 0: there is no process.
	PID    int
	State  domain.State
	Reason domain.Reason
	// Since is when the guest entered this state.
	Since time.Time

	Persistent, Autostart, AutostartOnce bool
	// Updated says that Inactive was changed while the guest was running.
	Updated bool
	// ManagedSave says that the next start restores the guest from its managed save image.
	ManagedSave bool
	// Template says that the guest is only cloned, and cannot be started.
	Template bool

	// Due says that a start is pending: the guest crashed, or could not be started at boot.
	Due bool

	// Quarantined says that its QEMU runs on and could not be adopted. Possibly neither definition is
	// known.
	Quarantined bool

	// Active is the running definition, with what the host assigned. Nil: the guest is shut off.
	Active *domain.Definition
	// Inactive is the definition of the next start. Nil: the guest is transient.
	Inactive *domain.Definition

	// Written is the stored size of the definitions, in bytes.
	Written uint64

	// LastJob is the last finished job that moved memory.
	LastJob domain.Progress
	// job is the current job, without its progress: see Guest.Job.
	job      domain.Progress
	progress *progress
	// owed says that the guest will be resumed without its user: when QEMU answers about an interrupted
	// operation such as a save, when its disk has space again, or when its panic has been dumped.
	owed bool
	// fences are the record's. They are replaced, never changed.
	fences map[string][]string

	// StuckSince is when the monitor was lost or stopped answering. Zero: it answers.
	StuckSince time.Time
	// StuckOn says what the daemon waits for.
	StuckOn string

	// Isolation names the barriers around the running guest's QEMU: user, root, capabilities, network,
	// devices, threads, calls, io_uring, cores.
	Isolation []string

	// Messages are for an administrator: taints, deprecations.
	Messages []string
}

// Current returns the active definition, or else the inactive one.
func (v *View) Current() *domain.Definition {
	if v.Active != nil {
		return v.Active
	}
	return v.Inactive
}

// View returns the present view. It never blocks.
func (g *Guest) View() *View { return g.view.Load() }

// publish makes the loop's present state readable for others.
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
