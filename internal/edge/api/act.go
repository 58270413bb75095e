package api

import (
	"context"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
)

// Act does one thing to all chosen guests.
func (s *Server) Act(ctx context.Context, r *lodgev1.ActRequest, stream *connect.ServerStream[lodgev1.Step]) error {
	request, err := toRequest(r)
	if err != nil {
		return err
	}
	verbs := takes(&request)
	sc, done := s.hold(ctx, &request)
	defer done()
	tried := authz.Entry{Call: "Act", Verb: verbs[0], Object: authz.Object{Name: "guests " + strings.Join(r.GetSelect(), " ")}}
	return s.stream(ctx, stream, tried, func(ctx context.Context, t *telling) (fleet.Summary, error) {
		return s.Fleet.Run(ctx, sc, request, t.plan, s.audited(ctx, "Act", verbs[0], t.result))
	})
}

// Cancel ends a set under way.
func (s *Server) Cancel(ctx context.Context, r *lodgev1.CancelRequest) (*lodgev1.CancelResponse, error) {
	err := s.sets.end(r.GetRun())
	s.Audit.Note(authz.Entry{Who: caller(ctx), API: "lodge", Call: "Cancel", Verb: authz.Stop, Object: authz.Object{Name: "set '" + r.GetRun() + "'"}, Err: err})
	return &lodgev1.CancelResponse{}, err
}

// modes are the ways of asking a guest, by their names on the wire.
var modes = map[string]guest.ShutdownMode{"": guest.ShutdownDefault, "acpi": guest.ShutdownACPI, "agent": guest.ShutdownAgent}

func toRequest(r *lodgev1.ActRequest) (fleet.Request, error) {
	chosen, err := selectors(r.GetSelect())
	if err != nil {
		return fleet.Request{}, err
	}
	o := r.GetOptions()
	mode, known := modes[o.GetMode()]
	if !known {
		return fleet.Request{}, fault.New(fault.Invalid, fault.Call, "a guest is asked by acpi or agent, not by %q", o.GetMode())
	}
	timeout, grace := r.GetTimeout().AsDuration(), o.GetGrace().AsDuration()
	if timeout < 0 || grace < 0 {
		return fleet.Request{}, fault.New(fault.Invalid, fault.Call, "a time is negative")
	}
	return fleet.Request{
		Verb: fleet.Verb(r.GetVerb()), Select: chosen, Parallel: int(r.GetParallel()), DryRun: r.GetDryRun(),
		KeepGoing: !r.GetStopAtFailure(), Timeout: timeout, Documents: r.GetDocuments(),
		Options: fleet.Options{
			Paused: o.GetPaused(), ForceBoot: o.GetForceBoot(), Mode: mode, Grace: grace, Graceful: o.GetGraceful(),
			ManagedSave: o.GetManagedSave(), NVRAM: o.GetNvram(), KeepNVRAM: o.GetKeepNvram(), TPM: o.GetTpm(),
			BypassCache: o.GetBypassCache(), Validate: o.GetValidate(), Settings: o.GetSettings(),
		},
	}, nil
}

// sets are those under way, by the numbers that their plans carry.
type sets struct {
	mu     sync.Mutex
	cancel map[string]context.CancelCauseFunc
}

func (s *sets) begin(cancel context.CancelCauseFunc) (run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run = strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	s.cancel[run] = cancel
	return run
}

func (s *sets) end(run string) error {
	s.mu.Lock()
	cancel := s.cancel[run]
	s.mu.Unlock()
	if cancel == nil {
		return fault.New(fault.NotFound, fault.Call, "no set %q is under way", run)
	}
	cancel(fault.New(fault.Aborted, fault.Call, "the client cancelled the set"))
	return nil
}

func (s *sets) forget(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cancel, run)
}

func (s *sets) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cancel)
}

// telling is what is yet to be told of a set. The work on the set writes it and
// never waits; it grows to one message for each guest at most.
type telling struct {
	run  string
	more chan struct{} // holds one when there is something to tell

	mu    sync.Mutex
	steps []*lodgev1.Step
}

func (t *telling) add(step *lodgev1.Step) {
	t.mu.Lock()
	t.steps = append(t.steps, step)
	t.mu.Unlock()
	select {
	case t.more <- struct{}{}:
	default:
	}
}

func (t *telling) take() []*lodgev1.Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	steps := t.steps
	t.steps = nil
	return steps
}

func (t *telling) plan(p fleet.Plan) {
	t.add(&lodgev1.Step{Step: &lodgev1.Step_Plan{Plan: &lodgev1.Plan{
		Run: t.run, Total: uint32(p.Total), Waves: uint32(p.Waves), Parallel: uint32(p.Parallel),
	}}})
}

func (t *telling) result(r fleet.Result) {
	t.add(&lodgev1.Step{Step: &lodgev1.Step_Result{Result: &lodgev1.Result{
		Name: legible(r.Name), Uuid: legible(r.UUID), Outcome: string(r.Outcome), Note: legible(r.Note), Fault: toFault(r.Error),
		Queued: durationpb.New(r.Queued), Took: durationpb.New(r.Took), Wave: uint32(r.Wave),
	}}})
}

func (t *telling) summary(s fleet.Summary) {
	t.add(&lodgev1.Step{Step: &lodgev1.Step_Summary{Summary: &lodgev1.Summary{
		Done: uint32(s.Done), Unchanged: uint32(s.Unchanged), Failed: uint32(s.Failed), Skipped: uint32(s.Skipped),
		Cancelled: uint32(s.Cancelled), Would: uint32(s.Would), Took: durationpb.New(s.Took),
	}}})
}

// stream works on a set, and beside that tells the client of it as fast as the
// client reads. It returns when both have ended, with why the client was lost, or
// what came of the work. A client that is gone, or that is given up because it
// does not read, cancels what has not begun. A set that is refused as a whole has no guest whose
// turn would be in the audit: what was tried is.
func (s *Server) stream(ctx context.Context, to *connect.ServerStream[lodgev1.Step], tried authz.Entry, work func(context.Context, *telling) (fleet.Summary, error)) (failure error) {
	refused := func(err error) error {
		tried.Who, tried.API, tried.Err = caller(ctx), "lodge", err
		s.Audit.Note(tried)
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	owner := caller(ctx).Owner()
	if !s.running.take(owner, 1) {
		return refused(fault.New(fault.NoCapacity, fault.Call, "%d sets are under way, or %d of one client; try again when one has ended", s.running.all, s.running.each))
	}
	defer s.running.leave(owner, 1)
	run := s.sets.begin(cancel)
	defer s.sets.forget(run)
	t := &telling{run: run, more: make(chan struct{}, 1)}
	ended, told := make(chan struct{}), make(chan error, 1)
	go func() {
		lost := t.tell(to, ended)
		if lost != nil {
			cancel(fault.Wrap(lost, fault.Aborted, fault.Call, "the client does not read"))
		}
		told <- lost
	}()
	defer func() { // also where the work broke, which is for the caller to contain
		close(ended)
		if lost := <-told; lost != nil {
			failure = lost
		}
	}()
	summary, err := work(ctx, t)
	if err != nil {
		return refused(err)
	}
	t.summary(summary)
	return nil
}

// tell sends until the work has ended and all is told, or the client is lost.
func (t *telling) tell(to *connect.ServerStream[lodgev1.Step], ended <-chan struct{}) error {
	for last := false; !last; {
		select {
		case <-t.more:
		case <-ended:
			last = true
		}
		for _, step := range t.take() {
			if err := to.Send(step); err != nil {
				return err
			}
		}
	}
	return nil
}
