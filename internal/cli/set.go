package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// Set follows one verb through a set of guests and shows the result for each.
type Set struct {
	Client *Client
	// Verb names the action, for the summary.
	Verb string
	// What names the kind of object, "guest" or "tile". It is used in the message that
	// none was selected.
	What string
	JSON bool
	// Quiet shows only what did not go well.
	Quiet    bool
	Out, Err io.Writer
	// Width is that of the terminal behind Err; 0: it is none.
	Width int
	// Interrupts are the user's. The first cancels the actions that have not begun,
	// the second leaves at once.
	Interrupts <-chan os.Signal
}

// redraw is how often the progress bar moves at most.
const redraw = 100 * time.Millisecond

// Open begins a set.
type Open func(context.Context) (*connect.ServerStreamForClient[lodgev1.Step], error)

// Follow begins a set and follows it to its end. The error is an *Ending, or nil
// where all guests are as they should be.
func (s *Set) Follow(ctx context.Context, open Open) error {
	ctx, leave := context.WithCancelCause(context.WithoutCancel(ctx)) // interrupts are heeded here
	f := &following{Set: s, bar: bar{to: s.Err, width: s.Width, began: time.Now()}, cancelled: make(chan error, 1)}
	defer f.bar.clear()
	steps, ended := make(chan *lodgev1.Step), make(chan error, 1)
	go func() { ended <- receive(ctx, open, steps) }()
	defer leave(nil)
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		select {
		case step := <-steps:
			if err := f.step(step); err != nil {
				return Failed(err)
			}
		case <-tick.C:
			f.bar.draw()
		case <-s.Interrupts:
			if err := f.interrupt(ctx); err != nil {
				return err
			}
		case err := <-f.cancelled:
			f.cannotCancel(err)
		case err := <-ended:
			if err != nil {
				return Failed(err)
			}
			return f.ending()
		}
	}
}

// receive begins a set and hands its steps on to its end, or that of ctx.
func receive(ctx context.Context, open Open, steps chan<- *lodgev1.Step) error {
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		select {
		case steps <- stream.Msg():
		case <-ctx.Done():
		}
	}
	return stream.Err()
}

// following is a set on its way.
type following struct {
	*Set
	bar         bar
	plan        *lodgev1.Plan
	summary     *lodgev1.Summary
	interrupted bool
	cancelled   chan error // the result of the Cancel call; buffered, holds one
}

func (f *following) step(step *lodgev1.Step) error {
	switch s := step.GetStep().(type) {
	case *lodgev1.Step_Plan:
		f.plan = s.Plan
		f.bar.total = int(s.Plan.GetTotal())
	case *lodgev1.Step_Result:
		f.bar.ended++
		if o := s.Result.GetOutcome(); o == "failed" || o == "skipped" {
			f.bar.failed++
		}
	case *lodgev1.Step_Summary:
		f.summary = s.Summary
	}
	f.bar.clear()
	if f.JSON {
		return printJSON(f.Out, step)
	}
	return f.show(step.GetResult())
}

// show prints a result; nil is none.
func (f *following) show(r *lodgev1.Result) error {
	bad := r.GetOutcome() == "failed" || r.GetOutcome() == "skipped" || r.GetOutcome() == "cancelled"
	if r == nil || f.Quiet && !bad {
		return nil
	}
	took := span(r.GetTook().AsDuration())
	if r.GetOutcome() == "would" {
		took = fmt.Sprintf("wave %d", r.GetWave())
	}
	more := r.GetNote()
	if text := r.GetFault().GetText(); text != "" {
		more = strings.TrimPrefix(more+": "+text, ": ")
	}
	line := fmt.Sprintf("%-24s %-10s %8s  %s", Clean(r.GetName()), Clean(r.GetOutcome()), took, sentence(more))
	_, err := fmt.Fprintln(f.Out, strings.TrimRight(line, " "))
	return err
}

// interrupt cancels the actions that have not begun. A second call, or one before the
// plan has arrived, returns the *Ending with which to leave.
func (f *following) interrupt(ctx context.Context) error {
	f.bar.clear()
	if f.interrupted || f.plan.GetRun() == "" {
		return &Ending{Status: WasCancelled, Text: "left at once; the daemon finishes the guests that have begun, and begins no others"}
	}
	f.interrupted = true
	f.bar.note = "cancelled"
	fmt.Fprintln(f.Err, "cancelling: guests that have begun are finished, no others begin (interrupt again to leave at once)")
	go func() { // ends with ctx at the latest; meanwhile results and interrupts go on
		_, err := f.Client.Cancel(ctx, &lodgev1.CancelRequest{Run: f.plan.GetRun()})
		f.cancelled <- err
	}()
	return nil
}

// cannotCancel says so, if there was an error.
func (f *following) cannotCancel(err error) {
	if err == nil {
		return
	}
	f.bar.clear()
	text, _ := reason(err)
	fmt.Fprintln(f.Err, "cannot cancel:", text)
}

// ending says how it went.
func (f *following) ending() error {
	s := f.summary
	if f.bar.ended == 0 {
		return unusable("no %s is selected: nothing to %s", f.What, f.Verb)
	}
	if !f.JSON {
		fmt.Fprintf(f.Err, "%s: %s in %s\n", f.Verb, tally(s), span(s.GetTook().AsDuration()))
	}
	switch {
	case s.GetCancelled() > 0:
		return &Ending{Status: WasCancelled}
	case s.GetFailed()+s.GetSkipped() > 0:
		return &Ending{Status: SomeFailed}
	}
	return nil
}

// tally tells the outcomes that there are.
func tally(s *lodgev1.Summary) string {
	var parts []string
	for _, o := range []struct {
		count uint32
		name  string
	}{
		{s.GetDone(), "done"},
		{s.GetUnchanged(), "unchanged"},
		{s.GetWould(), "would be done"},
		{s.GetFailed(), "failed"},
		{s.GetSkipped(), "skipped"},
		{s.GetCancelled(), "cancelled"},
	} {
		if o.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", o.count, o.name))
		}
	}
	return strings.Join(parts, ", ")
}
