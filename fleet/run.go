package fleet

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
)

// Verb is what is done to each guest of a set.
type Verb string

// The verbs.
const (
	// Start starts; a guest with a managed save continues from it.
	Start Verb = "start"
	// Shutdown asks the guest to turn itself off and waits for that; with
	// Options.Grace, for that long, and then pulls the plug.
	Shutdown Verb = "shutdown"
	// Destroy pulls the plug.
	Destroy Verb = "destroy"
	Suspend Verb = "suspend"
	Resume  Verb = "resume"
	// Save is a managed save, Restore the start that continues from one.
	Save    Verb = "save"
	Restore Verb = "restore"
	Reboot  Verb = "reboot"
	Reset   Verb = "reset"
	// Define takes Request.Documents and no selectors.
	Define   Verb = "define"
	Undefine Verb = "undefine"
	// Set changes Options.Settings.
	Set Verb = "set"
)

// Outcome is what became of one guest in a run.
type Outcome string

// The outcomes. Unchanged is a guest that was in the wanted state already;
// Skipped one whose turn never came because another one failed that it depends
// on; Would is a dry run's.
const (
	Done      Outcome = "done"
	Unchanged Outcome = "unchanged"
	Failed    Outcome = "failed"
	Skipped   Outcome = "skipped"
	Cancelled Outcome = "cancelled"
	Would     Outcome = "would"
)

// Options change how a verb is done.
type Options struct {
	// Paused and ForceBoot are of start: leave the processors stopped, discard a
	// managed save.
	Paused, ForceBoot bool
	// Mode is how shutdown and reboot ask the guest.
	Mode guest.ShutdownMode
	// Grace is how long shutdown waits before it pulls the plug; 0: it never does.
	Grace time.Duration
	// Graceful makes destroy let QEMU write out what it holds.
	Graceful bool
	// ManagedSave, NVRAM, KeepNVRAM and TPM are of undefine: what goes along.
	ManagedSave, NVRAM, KeepNVRAM, TPM bool
	// BypassCache is of save, start and restore.
	BypassCache bool
	// Validate is of define: refuse what no version of the format knows.
	Validate bool
	// Settings are of set: memory, vcpus, autostart, priority, after, title,
	// description, and label.NAME; an empty value takes back.
	Settings map[string]string
}

// Request says what is to be done to whom.
type Request struct {
	Verb   Verb
	Select []Selector
	// Parallel bounds the guests that are worked on at once; 0: the fleet's choice.
	Parallel int
	DryRun   bool
	// KeepGoing goes on with the others after a failure.
	KeepGoing bool
	// Timeout bounds the work on each guest; 0: the verb's own bound.
	Timeout   time.Duration
	Options   Options
	Documents []string
}

// Plan is what a run is about to do.
type Plan struct {
	// Total guests in so many waves, at most Parallel at once.
	Total, Waves, Parallel int
}

// Result is what became of one guest.
type Result struct {
	Name, UUID string
	Outcome    Outcome
	// Note says more, where there is more to say: why a guest was skipped, or what
	// a setting still waits for.
	Note  string
	Error error
	// Queued is how long the guest waited for its turn, Took how long its turn was.
	Queued, Took time.Duration
	// Wave counts from 1.
	Wave int
}

// Summary counts the results of a run.
type Summary struct {
	Done, Unchanged, Failed, Skipped, Cancelled, Would int
	Took                                               time.Duration
}

// Run does a verb to every guest that is selected. It calls plan once before it
// begins and report once for each guest, in the order in which they end, one
// call at a time. The end of ctx cancels what has not begun and waits for what
// has. The error is of a request that was refused as a whole.
func (f *Fleet) Run(ctx context.Context, q Request, plan func(Plan), report func(Result)) (Summary, error) {
	return Summary{}, fault.New(fault.Unsupported, fault.Call, "not yet")
}
