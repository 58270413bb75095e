package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/scope"
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
	// Settings are of set: memory, vcpus, autostart, template, priority, after, title,
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
	// Sees says which guests the request may be about at all; nil: everybody.
	Sees func(Member) bool
	// Admit says whether the verb may be done to a guest; nil: it may.
	Admit func(Member) error
	// AdmitDocument says whether a document may be defined, and gives the scope
	// to do that in; nil: it may.
	AdmitDocument func(sc scope.Scope, doc string) (scope.Scope, error)
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

// Bounds of a run.
const (
	// usualParallel keeps a host's processors busy and its disks bearable; how many
	// may really start at once is the host's own decision.
	usualParallel = 64
	maxParallel   = 1024
	maxTimeout    = 24 * time.Hour
)

// Run does a verb to every guest that is selected. It calls plan once before it
// begins and report once for each guest, in the order in which they end, one
// call at a time. The end of ctx cancels what has not begun and waits for what
// has. The error is of a request that was refused as a whole.
func (f *Fleet) Run(ctx context.Context, sc scope.Scope, q Request, plan func(Plan), report func(Result)) (Summary, error) {
	if err := q.check(); err != nil {
		return Summary{}, err
	}
	if q.Verb == Define {
		return f.define(ctx, sc, q, plan, report)
	}
	if err := f.named(q.Select, q.Sees); err != nil {
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
	places := arrange(names, marks, a.order)
	r := &run{fleet: f, scope: sc, request: q, action: a}
	if q.Verb == Set {
		var err error
		if r.settings, err = parseSettings(q.Options.Settings); err != nil {
			return Summary{}, err
		}
	}
	if a.waits && !q.DryRun {
		defer r.followEndings()()
	}
	if q.DryRun {
		q.Parallel = 1 // so that it is told in order
	}
	s := &schedule{
		log: f.log, places: places, names: names, parallel: q.Parallel, keepGoing: q.KeepGoing, strict: a.strict,
		do: func(ctx context.Context, i int) Result { return r.turn(ctx, members[i], places[i].circle) },
	}
	return s.tell(ctx, plan, func(i int, r Result) {
		r.Name, r.UUID = members[i].View.Name, members[i].View.UUID
		report(r)
	}), nil
}

// check refuses what can never be done, and fills in what was left out.
func (q *Request) check() error {
	_, known := actions[q.Verb]
	switch {
	case !known && q.Verb != Define:
		return fault.New(fault.Invalid, fault.Call, "no verb %q; there are start, shutdown, destroy, suspend, resume, save, restore, reboot, reset, define, undefine and set", q.Verb)
	case q.Verb == Define && (len(q.Select) > 0 || len(q.Documents) == 0):
		return fault.New(fault.Invalid, fault.Call, "define takes one or more documents, and no selectors")
	case q.Verb != Define && len(q.Documents) > 0:
		return fault.New(fault.Invalid, fault.Call, "%s takes no documents", q.Verb)
	case q.Verb != Define && len(q.Select) == 0:
		return fault.New(fault.Invalid, fault.Call, "say which guests to %s; all means everybody", q.Verb)
	case q.Parallel < 0 || q.Parallel > maxParallel:
		return fault.New(fault.Invalid, fault.Call, "from 1 to %d guests can be worked on at once, not %d", maxParallel, q.Parallel)
	case q.Timeout < 0 || q.Timeout > maxTimeout || q.Options.Grace < 0 || q.Options.Grace > maxTimeout:
		return fault.New(fault.Invalid, fault.Call, "a timeout or grace lies between 0 and %v", maxTimeout)
	}
	if q.Parallel == 0 {
		q.Parallel = usualParallel
	}
	return nil
}

// tell runs the schedule and counts what it reports.
func (s *schedule) tell(ctx context.Context, plan func(Plan), report func(int, Result)) Summary {
	waves := 0
	for _, p := range s.places {
		waves = max(waves, p.wave)
	}
	plan(Plan{Total: len(s.places), Waves: waves, Parallel: s.parallel})
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

// run is one verb going through a set.
type run struct {
	fleet    *Fleet
	scope    scope.Scope
	request  Request
	action   action
	endings  *endings
	settings *settings
}

// followEndings listens for the ends of guests until the function that it gives
// is called.
func (r *run) followEndings() (stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.endings = newEndings(r.fleet.events)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		r.endings.follow(ctx)
	}()
	return func() {
		cancel(nil)
		<-followed
	}
}

// turn does the verb to one guest, which may wait for others in a circle: nothing is begun
// then that has to come after them, and they are ended in any order. What has begun is not
// for ctx to end.
func (r *run) turn(ctx context.Context, m Member, circle error) Result {
	if now := r.fleet.Of(m.Guest); now.View.Current() != nil {
		m = now // its turn may have come late, and it may be called something else since
	}
	if r.request.Admit != nil {
		if err := r.request.Admit(m); err != nil {
			return Result{Outcome: Failed, Error: err}
		}
	}
	if r.action.needsMarks && m.Problem != "" {
		return Result{Outcome: Failed, Error: unreadable(m)}
	}
	if r.action.there(m.Guest) {
		return Result{Outcome: Unchanged}
	}
	if circle != nil && r.action.order == upwards {
		return Result{Outcome: Failed, Error: circle}
	}
	if r.request.DryRun {
		return r.foretell(m)
	}
	t := &turn{run: r, guest: m.Guest, cancelled: ctx}
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
		if fault.Is(result.Error, fault.WrongState) && r.action.there(m.Guest) {
			return Result{Outcome: Unchanged} // somebody else did it meanwhile
		}
	}
	if result.Outcome == "" {
		result.Outcome = Done
	}
	return result
}

// unreadable says what to do about marks that cannot be read.
func unreadable(m Member) error {
	return fault.New(fault.Invalid, fault.Metadata, "%s; correct that element of domain %q, or remove it (virsh metadata %s %s --remove --config)",
		m.Problem, m.View.Name, fault.Word(m.View.Name), Namespace)
}

// foretell says what a run would do.
func (r *run) foretell(m Member) Result {
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
	return Result{Outcome: Would, Note: describe(changes)}
}
