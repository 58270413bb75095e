package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Verb is the action on each guest of a set.
type Verb string

// The verbs.
const (
	// Start starts guests; one with a managed save continues from it.
	Start Verb = "start"
	// Shutdown asks the guest to shut down and waits. With Options.Grace it destroys the guest after that
	// time.
	Shutdown Verb = "shutdown"
	// Destroy ends the guest at once, as a loss of power would.
	Destroy Verb = "destroy"
	Suspend Verb = "suspend"
	Resume  Verb = "resume"
	// Save is a managed save; Restore is a start from one.
	Save    Verb = "save"
	Restore Verb = "restore"
	Reboot  Verb = "reboot"
	Reset   Verb = "reset"
	// Define takes Request.Documents and no selectors.
	Define   Verb = "define"
	Undefine Verb = "undefine"
	// Set applies Options.Settings.
	Set Verb = "set"
)

// Outcome is the result for one guest in a run.
type Outcome string

// The outcomes. Unchanged: the guest already was in the wanted state. Skipped: the guest was not attempted
// because one that it depends on failed. Would: the run was a dry run.
const (
	Done      Outcome = "done"
	Unchanged Outcome = "unchanged"
	Failed    Outcome = "failed"
	Skipped   Outcome = "skipped"
	Cancelled Outcome = "cancelled"
	Would     Outcome = "would"
)

// Options are the options of verbs.
type Options struct {
	// Paused and ForceBoot are of start: leave the vCPUs stopped; discard a managed save.
	Paused, ForceBoot bool
	// Mode is how shutdown and reboot ask the guest.
	Mode guest.ShutdownMode
	// Grace is how long shutdown waits before it destroys the guest; 0: it never does.
	Grace time.Duration
	// Graceful makes destroy let QEMU flush its disks.
	Graceful bool
	// ManagedSave, NVRAM, KeepNVRAM and TPM are of undefine: which state to remove or keep.
	ManagedSave, NVRAM, KeepNVRAM, TPM bool
	// BypassCache is of save, start and restore.
	BypassCache bool
	// Validate is of define: refuse elements that no version of the format knows.
	Validate bool
	// Settings are of set: memory, vcpus, autostart, template, priority, after, title, description, and
	// label.NAME. An empty value removes the setting.
	Settings map[string]string
}

// Request is a verb and the guests to apply it to.
type Request struct {
	Verb   Verb
	Select []Selector
	// Parallel bounds how many guests are worked on at once; 0: the fleet's default.
	Parallel int
	DryRun   bool
	// KeepGoing continues with the other guests after a failure.
	KeepGoing bool
	// Timeout bounds the work on each guest; 0: the verb's default.
	Timeout   time.Duration
	Options   Options
	Documents []string
	// Sees says which guests the client can see; nil: all.
	Sees func(Member) bool
	// Admit returns an error if the client may not apply the verb to a guest; nil: it may always.
	Admit func(Member) error
	// AdmitDocument returns an error if the client may not define a document, else the context for the
	// definition; nil: it may always.
	AdmitDocument func(sc scope.Scope, doc string) (scope.Scope, error)
}

// Plan describes a run before it begins.
type Plan struct {
	// Total guests in this many waves, at most Parallel at once.
	Total, Waves, Parallel int
}

// Result is the result for one guest.
type Result struct {
	Name, UUID string
	Outcome    Outcome
	// Note is additional text: why a guest was skipped, or when a setting takes effect.
	Note  string
	Error error
	// Queued is how long the guest waited for its turn, Took how long the work took.
	Queued, Took time.Duration
	// Wave counts from 1.
	Wave int
}

// Summary counts the results of a run.
type Summary struct {
	Done, Unchanged, Failed, Skipped, Cancelled, Would int
	Took                                               time.Duration
}

// Bounds of a run.
const (
	// usualParallel keeps the host's processors busy without overloading its disks. How many guests really
	// start at once is decided by the host's admission.
	usualParallel = 64
	maxParallel   = 1024
	maxTimeout    = 24 * time.Hour
)

// Run applies a verb to every selected guest. It calls plan once before it begins, and report once for each
// guest, in the order in which they end, one call at a time. Cancelling ctx skips the guests that have not
// begun and waits for the others. The error refuses the request as a whole.
func (f *Fleet) Run(ctx context.Context, sc scope.Scope, q Request, plan func(Plan), report func(Result)) (Summary, error) {
	if err := q.validate(); err != nil {
		return Summary{}, err
	}
	if q.Verb == Define {
		return f.define(ctx, sc, q, plan, report)
	}
	if err := f.checkNamed(q.Select, q.Sees); err != nil {
		return Summary{}, err
	}
	members, a := f.Select(q.Select), actions[q.Verb]
	if q.Sees != nil {
		members = slices.DeleteFunc(members, func(m Member) bool { return !q.Sees(m) })
	}
	names, marks := make([]string, len(members)), make([]*Marks, len(members))
	for i, m := range members {
		names[i], marks[i] = m.View.Name, m.Marks
	}
	entries := orderGuests(names, marks, a.order)
	r := &run{fleet: f, scope: sc, request: q, action: a}
	if q.Verb == Set {
		var err error
		if r.settings, err = parseSettings(q.Options.Settings); err != nil {
			return Summary{}, err
		}
	}
	if a.waitsForEnd && !q.DryRun {
		defer r.watchEnds()()
	}
	if q.DryRun {
		q.Parallel = 1 // to report the plan in order
	}
	s := &schedule{
		log: f.log, order: entries, names: names, parallel: q.Parallel, keepGoing: q.KeepGoing, strict: a.strict,
		do: func(ctx context.Context, i int) Result { return r.perform(ctx, members[i], entries[i].cycleError) },
	}
	return s.runAndCount(ctx, plan, func(i int, r Result) {
		r.Name, r.UUID = members[i].View.Name, members[i].View.UUID
		report(r)
	}), nil
}

// validate refuses an impossible request and fills in defaults.
func (q *Request) validate() error {
	_, known := actions[q.Verb]
	switch {
	case !known && q.Verb != Define:
		return fault.New(fault.Invalid, fault.Call, "no verb %q; there are start, shutdown, destroy, suspend, resume, save, restore, reboot, reset, define, undefine and set", q.Verb)
	case q.Verb == Define && (len(q.Select) > 0 || len(q.Documents) == 0):
		return fault.New(fault.Invalid, fault.Call, "define takes one or more documents, and no selectors")
	case q.Verb != Define && len(q.Documents) > 0:
		return fault.New(fault.Invalid, fault.Call, "%s takes no documents", q.Verb)
	case q.Verb != Define && len(q.Select) == 0:
		return fault.New(fault.Invalid, fault.Call, "say which guests to %s; \"all\" selects every guest", q.Verb)
	case q.Parallel < 0 || q.Parallel > maxParallel:
		return fault.New(fault.Invalid, fault.Call, "parallel is from 1 to %d guests at once, not %d", maxParallel, q.Parallel)
	case q.Timeout < 0 || q.Timeout > maxTimeout || q.Options.Grace < 0 || q.Options.Grace > maxTimeout:
		return fault.New(fault.Invalid, fault.Call, "a timeout or grace is between 0 and %v", maxTimeout)
	}
	if q.Parallel == 0 {
		q.Parallel = usualParallel
	}
	return nil
}

// runAndCount runs the schedule and counts the results.
func (s *schedule) runAndCount(ctx context.Context, plan func(Plan), report func(int, Result)) Summary {
	waves := 0
	for _, p := range s.order {
		waves = max(waves, p.wave)
	}
	plan(Plan{Total: len(s.order), Waves: waves, Parallel: s.parallel})
	var sum Summary
	began := time.Now()
	s.report = func(i int, r Result) {
		sum.count(r.Outcome)
		report(i, r)
	}
	s.run(ctx)
	sum.Took = time.Since(began)
	return sum
}

func (s *Summary) count(o Outcome) {
	switch o {
	case Done:
		s.Done++
	case Unchanged:
		s.Unchanged++
	case Failed:
		s.Failed++
	case Skipped:
		s.Skipped++
	case Cancelled:
		s.Cancelled++
	case Would:
		s.Would++
	}
}

// run is one verb applied to a set.
type run struct {
	fleet      *Fleet
	scope      scope.Scope
	request    Request
	action     verbAction
	endWatcher *endWatcher
	settings   *settings
}

// watchEnds listens for the ends of guests until stop is called.
func (r *run) watchEnds() (stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.endWatcher = newEndWatcher(r.fleet.events)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		r.endWatcher.follow(ctx)
	}()
	return func() {
		cancel(nil)
		<-followed
	}
}

// perform applies the verb to one guest. For a guest in a dependency cycle, verbs that need an order fail; verbs
// that end guests do not need one. Cancelling ctx does not interrupt work that has begun.
func (r *run) perform(ctx context.Context, m Member, circle error) Result {
	if now := r.fleet.MemberOf(m.Guest); now.View.Current() != nil {
		m = now // the turn may come late, and the guest may have another name
	}
	if r.request.Admit != nil {
		if err := r.request.Admit(m); err != nil {
			return Result{Outcome: Failed, Error: err}
		}
	}
	if r.action.needsMarks && m.Problem != "" {
		return Result{Outcome: Failed, Error: marksError(m)}
	}
	if r.action.isDone(m.Guest) {
		return Result{Outcome: Unchanged}
	}
	if circle != nil && r.action.order == dependenciesFirst {
		return Result{Outcome: Failed, Error: circle}
	}
	if r.request.DryRun {
		return r.dryRun(m)
	}
	t := &guestTurn{run: r, guest: m.Guest, cancelled: ctx}
	ctx = context.WithoutCancel(ctx)
	if limit := r.request.Timeout; limit > 0 {
		cause := fault.New(fault.Timeout, fault.Domain, "%s of domain %q did not end within %v", r.request.Verb, m.View.Name, limit)
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, cause)
		defer stop()
	}
	result := r.action.do(ctx, t)
	if circle != nil && result.Error == nil && result.Note == "" {
		result.Note = "in no order: " + circle.Error()
	}
	if result.Error != nil && result.Outcome == "" {
		result.Outcome = Failed
		if fault.Is(result.Error, fault.WrongState) && r.action.isDone(m.Guest) {
			return Result{Outcome: Unchanged} // another client did it meanwhile
		}
	}
	if result.Outcome == "" {
		result.Outcome = Done
	}
	return result
}

// marksError returns the error for marks that cannot be parsed, with the remedy.
func marksError(m Member) error {
	return fault.New(fault.Invalid, fault.Metadata, "%s; correct that element of domain %q, or remove it (virsh metadata %s %s --remove --config)",
		m.Problem, m.View.Name, fault.Word(m.View.Name), Namespace)
}

// dryRun returns the result of a dry run for a guest.
func (r *run) dryRun(m Member) Result {
	if r.settings == nil {
		return Result{Outcome: Would}
	}
	changes, err := r.settings.changes(m.View, m.Marks)
	switch {
	case err != nil:
		return Result{Outcome: Failed, Error: err}
	case len(changes) == 0:
		return Result{Outcome: Unchanged}
	}
	return Result{Outcome: Would, Note: settingNames(changes)}
}
