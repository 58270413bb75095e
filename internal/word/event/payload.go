package event

// Payload is the content of an event. The types below are all there are.
type Payload interface{ payload() }

// DomainChange is a change in a guest's life cycle; Detail gives the reason, as a name in
// the edge's table for that change.
type DomainChange struct {
	Change Change
	Detail string
}

// Change is a step in the life of a guest, network or pool.
type Change string

// The changes, with libvirt's words.
const (
	Defined     Change = "defined"
	Undefined   Change = "undefined"
	Started     Change = "started"
	Suspended   Change = "suspended"
	Resumed     Change = "resumed"
	Stopped     Change = "stopped"
	Shutdown    Change = "shutdown"
	PMSuspended Change = "pmsuspended"
	Crashed     Change = "crashed"
	Created     Change = "created" // node devices, pools
	Deleted     Change = "deleted"
)

// Details of DomainChange.
const (
	DetailAdded        = "added"
	DetailUpdated      = "updated"
	DetailRenamed      = "renamed"
	DetailRemoved      = "removed"
	DetailBooted       = "booted"
	DetailMigrated     = "migrated"
	DetailRestored     = "restored"
	DetailFromSnapshot = "from snapshot"
	DetailWakeup       = "wakeup"
	DetailPaused       = "paused"
	DetailIOError      = "I/O error"
	DetailWatchdog     = "watchdog"
	DetailUnpaused     = "unpaused"
	DetailShutdown     = "shutdown"
	DetailDestroyed    = "destroyed"
	DetailCrashed      = "crashed"
	DetailSaved        = "saved"
	DetailFailed       = "failed"
	DetailFinished     = "finished"
	DetailGuestAsked   = "guest asked"
	DetailHostAsked    = "host asked"
	DetailMemory       = "memory"
	DetailDisk         = "disk"
	DetailPanicked     = "panicked"
)

// DomainReboot means that a guest reset itself.
type DomainReboot struct{}

// DomainRTC means that a guest set its clock, Offset seconds from the host's base.
type DomainRTC struct{ Offset int64 }

// DomainWatchdog means that a guest's watchdog fired; Action is the reaction.
type DomainWatchdog struct{ Action string }

// DomainIOError means that a disk failed; Action is the reaction: none, pause, report.
type DomainIOError struct{ Path, Alias, Action, Reason string }

// DomainGraphics is news of a display client (connect, initialize, disconnect).
type DomainGraphics struct {
	Phase                          string
	LocalFamily, RemoteFamily      string // ipv4, ipv6, unix
	LocalNode, LocalService        string
	RemoteNode, RemoteService      string
	AuthScheme, X509Name, SASLUser string
}

// DomainBlockJob is news of a block job (pull, copy, commit). Status is completed, failed, canceled, ready.
type DomainBlockJob struct{ Path, Target, Kind, Status string }

// DomainMediaChange means that a removable medium was changed or dropped.
type DomainMediaChange struct{ OldPath, NewPath, Alias, Reason string }

// DomainTray means that a tray moved.
type DomainTray struct {
	Alias string
	Open  bool
}

// DomainBalloon has the present memory of a guest, in bytes.
type DomainBalloon struct{ Actual uint64 }

// DomainDeviceAdded means that a device was plugged.
type DomainDeviceAdded struct{ Alias string }

// DomainDeviceRemoved means that a guest released a device.
type DomainDeviceRemoved struct{ Alias string }

// DomainDeviceRemovalFailed means that a guest refused to release a device.
type DomainDeviceRemovalFailed struct{ Alias string }

// DomainAgent means that a guest's agent came or went; Reason: domain started, channel.
type DomainAgent struct {
	Connected bool
	Reason    string
}

// DomainTunable means that settings changed, by libvirt's parameter names.
type DomainTunable struct{ Settings []Setting }

// Setting is a changed setting; Value is uint64, int64 or string.
type Setting struct {
	Name  string
	Value any
}

// DomainJob means that a job ended.
type DomainJob struct {
	Kind       string
	Success    bool
	Milli      uint64
	TotalBytes uint64
}

// DomainMetadata means that metadata changed; Kind is description, title or element.
type DomainMetadata struct{ Kind, URI string }

// DomainBlockThreshold means that a disk was written beyond a mark.
type DomainBlockThreshold struct {
	Device, Path      string
	Threshold, Excess uint64
}

// DomainPMSuspend and its siblings tell of guest sleep: "memory" or "disk".
type DomainPMSuspend struct{ To string }

// DomainPMWakeup means that a guest woke.
type DomainPMWakeup struct{}

// DomainMemoryFailure means that a hardware memory error reached a guest.
type DomainMemoryFailure struct {
	Recipient, Action string
	Recursive, Urgent bool
}

// NetworkChange is a step in a network's life: defined, undefined, started, stopped.
type NetworkChange struct{ Change Change }

// NetworkMetadata means that a network's metadata changed.
type NetworkMetadata struct{ Kind, URI string }

// PoolChange is a step in a pool's life: defined, undefined, started, stopped, created, deleted.
type PoolChange struct{ Change Change }

// PoolRefresh means that a pool's volumes were read again.
type PoolRefresh struct{}

// NodeDeviceChange means that a host device came or went (created, deleted).
type NodeDeviceChange struct{ Change Change }

// SecretChange means that a secret was defined or undefined; Usage and For name its purpose.
type SecretChange struct {
	Change     Change
	Usage, For string
}

// SecretValue means that a secret got a value. The event never contains it.
type SecretValue struct{ Usage, For string }

func (DomainChange) payload()              {}
func (DomainReboot) payload()              {}
func (DomainRTC) payload()                 {}
func (DomainWatchdog) payload()            {}
func (DomainIOError) payload()             {}
func (DomainGraphics) payload()            {}
func (DomainBlockJob) payload()            {}
func (DomainMediaChange) payload()         {}
func (DomainTray) payload()                {}
func (DomainBalloon) payload()             {}
func (DomainDeviceAdded) payload()         {}
func (DomainDeviceRemoved) payload()       {}
func (DomainDeviceRemovalFailed) payload() {}
func (DomainAgent) payload()               {}
func (DomainTunable) payload()             {}
func (DomainJob) payload()                 {}
func (DomainMetadata) payload()            {}
func (DomainBlockThreshold) payload()      {}
func (DomainPMSuspend) payload()           {}
func (DomainPMWakeup) payload()            {}
func (DomainMemoryFailure) payload()       {}
func (NetworkChange) payload()             {}
func (NetworkMetadata) payload()           {}
func (PoolChange) payload()                {}
func (PoolRefresh) payload()               {}
func (NodeDeviceChange) payload()          {}
func (SecretChange) payload()              {}
func (SecretValue) payload()               {}
