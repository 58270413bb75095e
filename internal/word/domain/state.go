package domain

// State is the state of a guest, as libvirt has it.
type State int

// The states.
const (
	NoState State = iota
	Running
	Blocked
	Paused
	ShuttingDown
	ShutOff
	Crashed
	PMSuspended
)

var stateNames = [...]string{"no state", "running", "idle", "paused", "in shutdown", "shut off", "crashed", "pmsuspended"}

func (s State) String() string { return stateNames[s] }

// Active reports whether a guest in this state has a process.
func (s State) Active() bool {
	switch s {
	case Running, Blocked, Paused, ShuttingDown, PMSuspended:
		return true
	case NoState, ShutOff, Crashed:
		return false
	}
	return false
}

// Reason is the reason of a guest's state. Several states may have the same reason;
// the edge knows libvirt's number for each pair.
type Reason string

// The reasons, by the states that they explain.
const (
	ReasonUnknown Reason = "unknown"

	// Running.
	ReasonBooted            Reason = "booted"
	ReasonMigrated          Reason = "migrated" // also ShutOff
	ReasonRestored          Reason = "restored"
	ReasonFromSnapshot      Reason = "from snapshot" // also Paused, ShutOff
	ReasonUnpaused          Reason = "unpaused"
	ReasonMigrationCanceled Reason = "migration canceled"
	ReasonSaveCanceled      Reason = "save canceled"
	ReasonWakeup            Reason = "event wakeup"
	ReasonCrashed           Reason = "crashed" // Running, Paused, ShutOff

	// Paused.
	ReasonUser         Reason = "user" // also ShuttingDown
	ReasonMigration    Reason = "migrating"
	ReasonSave         Reason = "saving"
	ReasonDump         Reason = "dumping"
	ReasonIOError      Reason = "I/O error"
	ReasonWatchdog     Reason = "watchdog"
	ReasonShuttingDown Reason = "shutting down"
	ReasonSnapshot     Reason = "creating snapshot"
	ReasonStartingUp   Reason = "starting up"
	ReasonPostcopy     Reason = "post-copy"

	// ShutOff.
	ReasonShutdown  Reason = "shutdown"
	ReasonDestroyed Reason = "destroyed"
	ReasonSaved     Reason = "saved"
	ReasonFailed    Reason = "failed"
	ReasonDaemon    Reason = "daemon"

	// Crashed.
	ReasonPanicked Reason = "panicked"
)
