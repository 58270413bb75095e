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

// Act applies a verb to all selected guests.
func (s *Server) Act(ctx context.Context, r *lodgev1.ActRequest, stream *connect.ServerStream[lodgev1.Step]) error {
	request, err := toRequest(r)
	if err != nil {
		return err
	}
	verbs := rightsNeeded(&request)
	sc, done := s.restrict(ctx, &request)
	defer done()
	attempt := authz.Entry{Call: "Act", Permission: verbs[0], Resource: authz.Resource{Name: "guests " + strings.Join(r.GetSelect(), " ")}}
	return s.stream(ctx, stream, attempt, func(ctx context.Context, t *setMessages) (fleet.Summary, error) {
		return s.Fleet.Run(ctx, sc, request, t.addPlan, s.auditResults(ctx, "Act", verbs[0], t.addResult))
	})
}

// Cancel cancels a set that is under way.
func (s *Server) Cancel(ctx context.Context, r *lodgev1.CancelRequest) (*lodgev1.CancelResponse, error) {
	err := s.sets.stop(r.GetRun())
	s.Audit.Note(authz.Entry{Principal: caller(ctx), API: "lodge", Call: "Cancel", Permission: authz.Stop, Resource: authz.Resource{Name: "set '" + r.GetRun() + "'"}, Err: err})
	return &lodgev1.CancelResponse{}, err
}

// shutdownModes are the shutdown methods by their names on the wire.
var shutdownModes = map[string]guest.ShutdownMode{"": guest.ShutdownDefault, "acpi": guest.ShutdownACPI, "agent": guest.ShutdownAgent}

func toRequest(r *lodgev1.ActRequest) (fleet.Request, error) {
	chosen, err := parseSelectors(r.GetSelect())
	if err != nil {
		return fleet.Request{}, err
	}
	o := r.GetOptions()
	mode, known := shutdownModes[o.GetMode()]
	if !known {
		return fleet.Request{}, fault.New(fault.Invalid, fault.Call, "shutdown mode %q is unknown; use acpi or agent", o.GetMode())
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

// sets are the sets under way, by the number in their plan. A set is a verb applied to several guests.
type sets struct {
	mu     sync.Mutex
	cancel map[string]context.CancelCauseFunc
}

func (s *sets) add(cancel context.CancelCauseFunc) (run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run = strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	s.cancel[run] = cancel
	return run
}

func (s *sets) stop(run string) error {
	s.mu.Lock()
	cancel := s.cancel[run]
	s.mu.Unlock()
	if cancel == nil {
		return fault.New(fault.NotFound, fault.Call, "no set %q is under way", run)
	}
	cancel(fault.New(fault.Aborted, fault.Call, "the client cancelled the set"))
	return nil
}

func (s *sets) remove(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cancel, run)
}

func (s *sets) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cancel)
}

// setMessages is the queue of messages about a set. The work on the set adds to it and never waits. It grows to at
// most one message for each guest.
type setMessages struct {
	run  string
	more chan struct{} // signals that there are messages

	mu    sync.Mutex
	steps []*lodgev1.Step
}

func (m *setMessages) add(step *lodgev1.Step) {
	m.mu.Lock()
	m.steps = append(m.steps, step)
	m.mu.Unlock()
	select {
	case m.more <- struct{}{}:
	default:
	}
}

func (m *setMessages) take() []*lodgev1.Step {
	m.mu.Lock()
	defer m.mu.Unlock()
	steps := m.steps
	m.steps = nil
	return steps
}

func (m *setMessages) addPlan(p fleet.Plan) {
	m.add(&lodgev1.Step{Step: &lodgev1.Step_Plan{Plan: &lodgev1.Plan{
		Run: m.run, Total: uint32(p.Total), Waves: uint32(p.Waves), Parallel: uint32(p.Parallel),
	}}})
}

func (m *setMessages) addResult(r fleet.Result) {
	m.add(&lodgev1.Step{Step: &lodgev1.Step_Result{Result: &lodgev1.Result{
		Name: validUTF8(r.Name), Uuid: validUTF8(r.UUID), Outcome: string(r.Outcome), Note: validUTF8(r.Note), Fault: toFault(r.Error),
		Queued: durationpb.New(r.Queued), Took: durationpb.New(r.Took), Wave: uint32(r.Wave),
	}}})
}

func (m *setMessages) addSummary(s fleet.Summary) {
	m.add(&lodgev1.Step{Step: &lodgev1.Step_Summary{Summary: &lodgev1.Summary{
		Done: uint32(s.Done), Unchanged: uint32(s.Unchanged), Failed: uint32(s.Failed), Skipped: uint32(s.Skipped),
		Cancelled: uint32(s.Cancelled), Would: uint32(s.Would), Took: durationpb.New(s.Took),
	}}})
}

// stream works on a set, and at the same time sends results as fast as the client reads. It returns when both
// have ended, with the error of the sending, else of the work. When the client disconnects or does not read, the
// guests that have not begun are cancelled. If the whole set is refused, the audit has no entry of a guest, so it
// gets the entry attempt.
func (s *Server) stream(ctx context.Context, to *connect.ServerStream[lodgev1.Step], attempt authz.Entry, work func(context.Context, *setMessages) (fleet.Summary, error)) (failure error) {
	refused := func(err error) error {
		attempt.Principal, attempt.API, attempt.Err = caller(ctx), "lodge", err
		s.Audit.Note(attempt)
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	owner := caller(ctx).Owner()
	if !s.running.take(owner, 1) {
		return refused(fault.New(fault.NoCapacity, fault.Call, "%d sets are already under way, or %d of this client; try again when one has ended", s.running.all, s.running.each))
	}
	defer s.running.release(owner, 1)
	run := s.sets.add(cancel)
	defer s.sets.remove(run)
	t := &setMessages{run: run, more: make(chan struct{}, 1)}
	ended, sent := make(chan struct{}), make(chan error, 1)
	go func() {
		err := t.sendTo(to, ended)
		if err != nil {
			cancel(fault.Wrap(err, fault.Aborted, fault.Call, "the client did not read its answers in time"))
		}
		sent <- err
	}()
	defer func() { // also if the work panics; Connect recovers from that
		close(ended)
		if err := <-sent; err != nil {
			failure = err
		}
	}()
	summary, err := work(ctx, t)
	if err != nil {
		return refused(err)
	}
	t.addSummary(summary)
	return nil
}

// sendTo sends messages until the work has ended and all are sent, or until a send fails.
func (m *setMessages) sendTo(to *connect.ServerStream[lodgev1.Step], ended <-chan struct{}) error {
	for last := false; !last; {
		select {
		case <-m.more:
		case <-ended:
			last = true
		}
		for _, step := range m.take() {
			if err := to.Send(step); err != nil {
				return err
			}
		}
	}
	return nil
}
