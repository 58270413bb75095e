package event

// Payload is what happened. The types below are all there are.
type Payload interface{ payload() }

// DomainChange is a step in a guest's life; Detail says why, in the words of
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

// DomainReboot tells that a guest reset itself.
type DomainReboot struct{}

// DomainRTC tells that a guest set its clock, Offset seconds from the host's base.
type DomainRTC struct{ Offset int64 }

// DomainWatchdog tells that a guest's watchdog fired and what was done.
type DomainWatchdog struct{ Action string }

// DomainIOError tells that a disk failed and what was done: none, pause, report.
type DomainIOError struct{ Path, Alias, Action, Reason string }

// DomainGraphics tells of a display client: connect, initialize, disconnect.
type DomainGraphics struct {
	Phase                          string
	LocalFamily, RemoteFamily      string // ipv4, ipv6, unix
	LocalNode, LocalService        string
	RemoteNode, RemoteService      string
	AuthScheme, X509Name, SASLUser string
}

// DomainBlockJob tells of a block job: pull, copy, commit; Status completed, failed, canceled, ready.
type DomainBlockJob struct{ Path, Target, Kind, Status string }

// DomainMediaChange tells that a removable medium was changed or dropped.
type DomainMediaChange struct{ OldPath, NewPath, Alias, Reason string }

// DomainTray tells that a tray moved.
type DomainTray struct {
	Alias string
	Open  bool
}

// DomainBalloon tells the memory that a guest has now, in bytes.
type DomainBalloon struct{ Actual uint64 }

// DomainDeviceAdded tells that a device was plugged.
type DomainDeviceAdded struct{ Alias string }

// DomainDeviceRemoved tells that a guest let a device go.
type DomainDeviceRemoved struct{ Alias string }

// DomainDeviceRemovalFailed tells that a guest refused to let a device go.
type DomainDeviceRemovalFailed struct{ Alias string }

// DomainAgent tells that a guest's agent came or went; Reason: domain started, channel.
type DomainAgent struct {
	Connected bool
	Reason    string
}

// DomainTunable tells that settings changed, by libvirt's parameter names.
type DomainTunable struct{ Settings []Setting }

// Setting is a changed setting; Value is uint64, int64 or string.
type Setting struct {
	Name  string
	Value any
}

// DomainJob tells that a job ended.
type DomainJob struct {
	Kind       string
	Success    bool
	Milli      uint64
	TotalBytes uint64
}

// DomainMetadata tells that metadata changed: Kind description, title or element.
type DomainMetadata struct{ Kind, URI string }

// DomainBlockThreshold tells that a disk was written beyond a mark.
type DomainBlockThreshold struct {
	Device, Path      string
	Threshold, Excess uint64
}

// DomainPMSuspend and its siblings tell of guest sleep: "memory" or "disk".
type DomainPMSuspend struct{ To string }

// DomainPMWakeup tells that a guest woke.
type DomainPMWakeup struct{}

// DomainMemoryFailure tells of a hardware memory error that reached a guest.
type DomainMemoryFailure struct {
	Recipient, Action string
	Recursive, Urgent bool
}

// NetworkChange is a step in a network's life: defined, undefined, started, stopped.
type NetworkChange struct{ Change Change }

// NetworkMetadata tells that a network's metadata changed.
type NetworkMetadata struct{ Kind, URI string }

// PoolChange is a step in a pool's life: defined, undefined, started, stopped, created, deleted.
type PoolChange struct{ Change Change }

// PoolRefresh tells that a pool's volumes were read again.
type PoolRefresh struct{}

// NodeDeviceChange tells that a host device came or went: created, deleted.
type NodeDeviceChange struct{ Change Change }

// SecretChange tells that a secret was defined or undefined, and what it is for.
type SecretChange struct {
	Change     Change
	Usage, For string
}

// SecretValue tells that a secret was given a value, and never which.
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
