package machine

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

	// StartPending says that a start is pending: the guest crashed, or could not be started at boot.
	StartPending bool

	// Quarantined says that its QEMU runs on and could not be adopted. Possibly neither definition is
	// known.
	Quarantined bool

	// Active is the running definition, with what the host assigned. Nil: the guest is shut off.
	Active *domain.Definition
	// Inactive is the definition of the next start. Nil: the guest is transient.
	Inactive *domain.Definition

	// StoredBytes is the stored size of the definitions, in bytes.
	StoredBytes uint64

	// LastJob is the last finished job that moved memory.
	LastJob domain.Progress
	// Job is the current job, without its progress: see Guest.Job.
	Job      domain.Progress
	progress *Progress
	// WillResume says that the guest will be resumed without its user: when QEMU answers about an interrupted
	// operation such as a save, when its disk has space again, or when its panic has been dumped.
	WillResume bool
	// PathLimits are the path limits of the record. The map is replaced, never changed.
	PathLimits map[string][]string

	// StuckSince is when the monitor was lost or stopped answering. Zero: it answers.
	StuckSince time.Time
	// StuckOn says what the daemon waits for.
	StuckOn string

	// AskedMemory is the memory that the running guest's user last asked for, in bytes: the balloon may be at another
	// size that the memory arbiter chose.
	AskedMemory uint64

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
func (g *Guest) View() *View { return g.LastView.Load() }

// Publish makes the loop's present state readable for others.
func (g *Guest) Publish() {
	g.updateUniqueIndex()
	v := &View{
		ID: g.ID(), Name: g.Record.Name, UUID: g.UUID,
		State: g.State.Phase, Reason: g.State.Reason, Since: g.Since,
		Persistent: g.Inactive != nil, Autostart: g.Record.Autostart, AutostartOnce: g.Record.AutostartOnce,
		ManagedSave: g.Record.ManagedSave, Template: g.Record.Template, Inactive: g.Inactive, LastJob: g.lastJob, PathLimits: g.Record.PathLimits,
		StoredBytes: uint64(len(g.Record.XML) + len(g.Record.Submitted)), StartPending: g.Restarts.Cancel != nil,
	}
	if g.Instance != nil {
		v.StoredBytes = max(v.StoredBytes, uint64(len(g.Instance.XML)+len(g.Instance.Submitted)))
		v.PID, v.Active, v.Updated, v.Messages = g.Instance.PID, g.Instance.Definition, g.Instance.Updated, g.Instance.Messages
		v.StuckSince, v.StuckOn = g.Instance.monitorDown()
		v.Isolation = g.Instance.Isolation
		v.AskedMemory = g.Instance.askedMemory()
		v.WillResume = g.Instance.Ops.HasClass(operation.Move) || g.Instance.Resuming || g.State.Restarting || g.State.Dumping || len(g.Instance.FullDisks) > 0
	}
	if g.Restarts.Message != "" {
		v.Messages = append([]string{g.Restarts.Message}, v.Messages...)
	}
	if g.Quarantine != "" {
		v.Quarantined, v.Messages = true, append([]string{g.Quarantine}, v.Messages...)
	}
	if g.CurrentJob != nil {
		v.Job, v.progress = domain.Progress{Kind: g.CurrentJob.Kind, Started: g.CurrentJob.started}, g.CurrentJob.Task.Progress
	}
	g.LastView.Store(v)
}
