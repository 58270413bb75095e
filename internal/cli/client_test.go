package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC // the golden files were written in UTC
	goleak.VerifyTestMain(m)
}

var update = flag.Bool("update", false, "write what the commands show to testdata")

// golden compares the output with a recorded one that a person has checked.
func golden(t *testing.T, name, shown string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		ok(t, os.WriteFile(path, []byte(shown), 0o644))
	}
	want, err := os.ReadFile(path)
	ok(t, err)
	if shown != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", name, shown, want)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// daemon answers as a daemon does, with what a test says.
type daemon struct {
	lodgev1.UnimplementedLodgeHandler
	guests    []*lodgev1.Guest
	stats     []*lodgev1.GuestStats
	memory    *lodgev1.MemoryResponse
	steps     []*lodgev1.Step
	held      chan struct{} // where the set waits before its summary; nil: nowhere
	cancelled chan string
	die       func() // as of kill -9
}

func (d *daemon) ListGuests(context.Context, *lodgev1.ListGuestsRequest) (*lodgev1.ListGuestsResponse, error) {
	return &lodgev1.ListGuestsResponse{Guests: d.guests}, nil
}

func (d *daemon) Stats(context.Context, *lodgev1.StatsRequest) (*lodgev1.StatsResponse, error) {
	return &lodgev1.StatsResponse{Guests: d.stats}, nil
}

func (d *daemon) Memory(context.Context, *lodgev1.MemoryRequest) (*lodgev1.MemoryResponse, error) {
	return d.memory, nil
}

func (d *daemon) Act(ctx context.Context, _ *lodgev1.ActRequest, s *connect.ServerStream[lodgev1.Step]) error {
	for _, step := range d.steps {
		if step.GetSummary() != nil && d.held != nil {
			select {
			case <-d.held:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := s.Send(step); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) Cancel(_ context.Context, r *lodgev1.CancelRequest) (*lodgev1.CancelResponse, error) {
	d.cancelled <- r.GetRun()
	return &lodgev1.CancelResponse{}, nil
}

func (d *daemon) Watch(_ context.Context, _ *lodgev1.WatchRequest, s *connect.ServerStream[lodgev1.WatchResponse]) error {
	for _, m := range []*lodgev1.WatchResponse{
		{What: &lodgev1.WatchResponse_Begin{Begin: &lodgev1.Cursor{Life: "a", Seq: 6}}},
		{What: &lodgev1.WatchResponse_Event{Event: &lodgev1.Event{
			Seq: 7, Time: timestamppb.New(noon), Object: "guest", Name: "web\x1b[2J", Uuid: "u", What: "stopped", Detail: "crashed", Fields: map[string]string{"b": "2", "a": "1"},
		}}},
		{What: &lodgev1.WatchResponse_Event{Event: &lodgev1.Event{Seq: 8, Time: timestamppb.New(noon), Object: "pool", Name: "default", What: "refreshed"}}},
	} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return connect.NewError(connect.CodeUnavailable, errors.New("the daemon is stopping"))
}

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// dial serves the daemon for the length of a test.
func (d *daemon) dial(t *testing.T) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", path)
	ok(t, err)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	_, handler := lodgev1.NewLodgeHandler(d)
	server := &http.Server{Handler: handler, Protocols: &protocols} //nolint:gosec // a test's
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	c := Dial(path)
	d.die = func() { _ = server.Close() }
	t.Cleanup(func() {
		c.Close()
		d.die()
		<-ended
	})
	return c
}

func plan(total uint32) *lodgev1.Step {
	return &lodgev1.Step{Step: &lodgev1.Step_Plan{Plan: &lodgev1.Plan{Run: "run7", Total: total, Waves: 2, Parallel: 8}}}
}

func result(name, outcome, note, why string) *lodgev1.Step {
	r := &lodgev1.Result{Name: name, Uuid: "u-" + name, Outcome: outcome, Note: note, Took: durationpb.New(1234 * time.Millisecond), Wave: 1}
	if why != "" {
		r.Fault = &lodgev1.Fault{Kind: "failed", Subject: "domain", Text: why}
	}
	return &lodgev1.Step{Step: &lodgev1.Step_Result{Result: r}}
}

func summary(s *lodgev1.Summary) *lodgev1.Step {
	s.Took = durationpb.New(2 * time.Second)
	return &lodgev1.Step{Step: &lodgev1.Step_Summary{Summary: s}}
}

// follow follows a set and returns the text of both outputs.
func follow(t *testing.T, d *daemon, change func(*Set)) (out, errs string, status Status) {
	t.Helper()
	c := d.dial(t)
	var shown, said bytes.Buffer
	set := &Set{Client: c, Verb: "start", What: "guest", Out: &shown, Err: &said}
	if change != nil {
		change(set)
	}
	err := set.Follow(t.Context(), func(ctx context.Context) (*connect.ServerStreamForClient[lodgev1.Step], error) {
		return c.Act(ctx, &lodgev1.ActRequest{})
	})
	if err == nil {
		return shown.String(), said.String(), AllDone
	}
	ending, known := errors.AsType[*Ending](err)
	if !known {
		t.Fatal(err)
	}
	if ending.Text != "" {
		fmt.Fprintln(&said, "lodge:", ending.Text)
	}
	return shown.String(), said.String(), ending.Status
}

func TestASetIsShownWithItsExitStatus(t *testing.T) {
	mixed := []*lodgev1.Step{
		plan(5), result("web-1", "done", "", ""), result("web-2", "unchanged", "runs already", ""), result("web-3", "failed", "", "no\x1b[31m memory"),
		result("web-4", "skipped", "comes after web-3", ""), result("web-5", "done", "", ""), summary(&lodgev1.Summary{Done: 2, Unchanged: 1, Failed: 1, Skipped: 1}),
	}
	for _, c := range []struct {
		name   string
		steps  []*lodgev1.Step
		change func(*Set)
		status Status
	}{
		{"set-done", []*lodgev1.Step{plan(1), result("web-1", "done", "", ""), summary(&lodgev1.Summary{Done: 1})}, nil, AllDone},
		{"set-mixed", mixed, nil, SomeFailed},
		{"set-quiet", mixed, func(s *Set) { s.Quiet = true }, SomeFailed},
		{"set-json", mixed, func(s *Set) { s.JSON = true }, SomeFailed},
		{"set-would", []*lodgev1.Step{plan(1), result("web-1", "would", "", ""), summary(&lodgev1.Summary{Would: 1})}, nil, AllDone},
		{"set-nobody", []*lodgev1.Step{plan(0), summary(&lodgev1.Summary{})}, nil, Unusable},
	} {
		out, errs, status := follow(t, &daemon{steps: c.steps}, c.change)
		if status != c.status {
			t.Errorf("%s: status %d, want %d", c.name, status, c.status)
		}
		golden(t, c.name, "--- output\n"+out+"--- errors\n"+errs)
	}
}

func TestTheFirstInterruptCancelsAndTheStreamGoesOn(t *testing.T) {
	interrupts := make(chan os.Signal, 2)
	d := &daemon{
		steps: []*lodgev1.Step{plan(2), result("web-1", "done", "", ""), result("web-2", "cancelled", "", ""), summary(&lodgev1.Summary{Done: 1, Cancelled: 1})},
		held:  make(chan struct{}), cancelled: make(chan string, 1),
	}
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		if run := <-d.cancelled; run != "run7" {
			t.Errorf("cancelled %q", run)
		}
		close(d.held)
	}()
	out, errs, status := follow(t, d, func(s *Set) {
		s.Interrupts = interrupts
		s.Out = &interrupter{out: &bytes.Buffer{}, interrupts: interrupts, at: "web-1"}
	})
	<-interrupted
	if status != WasCancelled || !strings.Contains(errs, "1 done, 1 cancelled") || !strings.Contains(errs, "guests that have begun are finished") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}

func TestTheSecondInterruptLeavesAtOnce(t *testing.T) {
	interrupts := make(chan os.Signal, 2)
	d := &daemon{
		steps: []*lodgev1.Step{plan(2), result("web-1", "done", "", ""), summary(&lodgev1.Summary{Done: 1, Cancelled: 1})},
		held:  make(chan struct{}), cancelled: make(chan string, 1),
	}
	_, errs, status := follow(t, d, func(s *Set) {
		s.Interrupts = interrupts
		s.Out = &interrupter{out: &bytes.Buffer{}, interrupts: interrupts, at: "web-1", twice: true}
	})
	if status != WasCancelled || !strings.Contains(errs, "left at once") {
		t.Errorf("status %d\n%s", status, errs)
	}
}

// interrupter is a user who presses ctrl-C when they see something.
type interrupter struct {
	out        io.Writer
	interrupts chan<- os.Signal
	at         string
	twice      bool
}

func (i *interrupter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), i.at) {
		i.interrupts <- syscall.SIGINT
		if i.twice {
			i.interrupts <- syscall.SIGINT
		}
	}
	return i.out.Write(p)
}

func TestADaemonThatIsNotThereIsNamed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nowhere")
	c := Dial(socket)
	defer c.Close()
	err := c.List(t.Context(), nil, Narrow, 0, &bytes.Buffer{})
	ending, known := errors.AsType[*Ending](err)
	if !known || !strings.Contains(ending.Text, socket) || !strings.Contains(ending.Text, "start lodged") {
		t.Errorf("got %v", err)
	}
}

func TestTheBarFitsTheTerminal(t *testing.T) {
	b := bar{width: 80, began: noon, total: 8, ended: 2, failed: 1}
	for _, c := range []struct {
		width int
		want  string
	}{
		{80, "[##########..............................] 2/8, 1 failed  1.50s"},
		{40, "[####............] 2/8, 1 failed  1.50s"},
		{20, "2/8, 1 failed  1.50"},
		{3, "2/"},
	} {
		b.width = c.width
		if got := b.text(noon.Add(1500 * time.Millisecond)); got != c.want {
			t.Errorf("%d wide: %q, want %q", c.width, got, c.want)
		}
	}
	b.width, b.ended = 80, 99 // of a daemon that tells of more than there are
	if got, want := b.text(noon), "[########################################] 99/8, 1 failed  0s"; got != want {
		t.Errorf("too many: %q, want %q", got, want)
	}
}

func TestFigures(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1K", 1536: "1.5K", 104857600: "100M", 1 << 30: "1G", 1<<40 - 1: "1T", 1 << 63: "8E"} {
		if got := size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Microsecond: "250µs", 34 * time.Millisecond: "34ms", 1234 * time.Millisecond: "1.23s", 12 * time.Second: "12.0s",
		61 * time.Second: "1m01s", 90 * time.Minute: "1h30m", 100 * time.Hour: "4d04h",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestGuestsAreListed(t *testing.T) {
	now := noon.Add(90 * time.Second)
	guests := []*lodgev1.Guest{
		{
			Name: "db-1", Uuid: "11111111-0000-4000-8000-000000000000", Id: 3, State: "running", Reason: "booted", Since: timestamppb.New(noon), Persistent: true, Autostart: true,
			Memory: 1 << 30, MemoryMax: 2 << 30, Vcpus: 4, Pid: 4711, Labels: map[string]string{"app": "db", "hot": "", "tile": "web/3"}, Tile: "web/3",
			Sample: &lodgev1.Sample{Age: durationpb.New(12 * time.Second), Stale: "QEMU did not answer", Cpu: durationpb.New(61 * time.Second), Resident: 900 << 20},
			Wait:   &lodgev1.Wait{What: "QEMU to answer query-status", Since: timestamppb.New(noon.Add(60 * time.Second))}, Messages: []string{"tainted"}, Isolation: []string{"user", "root"},
		},
		{Name: "web\n-1", State: "shut off", Since: timestamppb.New(noon), Memory: 100 << 20, Vcpus: 1},
	}
	for form, wide := range map[string]bool{"ps": false, "ps-wide": true} {
		golden(t, form, strings.Join(guestTable(guests, wide, now).lines(), "\n")+"\n")
	}
	var out bytes.Buffer
	ok(t, (&daemon{guests: guests}).dial(t).List(t.Context(), nil, JSON, 0, &out))
	golden(t, "ps-json", out.String())
}

func TestRatesAreThoseBetweenTwoSamples(t *testing.T) {
	sample := func(at, cpu time.Duration, bytes uint64) *lodgev1.Sample {
		return &lodgev1.Sample{At: timestamppb.New(noon.Add(at)), Age: durationpb.New(time.Second), Cpu: durationpb.New(cpu), Resident: bytes, DiskReadBytes: bytes, NetTransmitBytes: 2 * bytes}
	}
	guest := func(name string, s *lodgev1.Sample) *lodgev1.GuestStats {
		return &lodgev1.GuestStats{Name: name, Uuid: name, State: "running", Memory: 1 << 30, Vcpus: 2, Sample: s}
	}
	top := &Top{By: "cpu"}
	top.note([]*lodgev1.GuestStats{guest("busy", sample(0, time.Second, 0)), guest("idle", sample(0, 0, 0)), guest("gone", sample(0, 0, 0))})
	top.note([]*lodgev1.GuestStats{guest("busy", sample(2*time.Second, 4*time.Second, 4<<20)), guest("idle", sample(2*time.Second, 0, 0))})
	stuck := sample(2*time.Second, 0, 0)
	stuck.Stale = "QEMU did not answer within 5s"
	top.note([]*lodgev1.GuestStats{ // looked at again before there are newer samples
		guest("busy", sample(2*time.Second, 4*time.Second, 4<<20)), guest("idle", stuck),
		{Name: "young", Uuid: "young", State: "paused", Missing: "none has been taken yet", Memory: 16 << 20, Vcpus: 1},
	})
	golden(t, "top", strings.Join(top.frame(), "\n")+"\n")
	top.By = "name"
	if lines := top.frame(); !strings.HasPrefix(lines[3], "busy") || !strings.HasPrefix(lines[5], "young") {
		t.Errorf("by name:\n%s", strings.Join(lines, "\n"))
	}
}

func TestTopLivesUntilItsUserQuits(t *testing.T) {
	c := (&daemon{stats: []*lodgev1.GuestStats{{Name: "web-1", Uuid: "u"}}}).dial(t)
	var out bytes.Buffer
	pressed, painted := make(chan byte), make(chan struct{}, 9)
	top := &Top{Client: c, Every: time.Hour, By: "cpu", Out: &out}
	ended := make(chan error, 1)
	go func() {
		ended <- top.Live(t.Context(), pressed, func() (int, int) {
			painted <- struct{}{}
			return 30, 10
		})
	}()
	<-painted
	pressed <- 'm'
	pressed <- 'q'
	ok(t, <-ended)
	if text := out.String(); !strings.Contains(text, "web-1") || !strings.Contains(text, "sorted by memory") || !strings.HasSuffix(text, "\x1b[?1049l") {
		t.Errorf("shown: %q", text)
	}
	top.By = "colour"
	if err := top.Once(t.Context()); err == nil {
		t.Error("sorted by colour")
	}
}

// hung gives a client of a daemon that takes connections and says nothing, as
// one does that a signal has stopped.
func hung(t *testing.T, patience time.Duration) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", path)
	ok(t, err)
	c := dial(path, patience)
	t.Cleanup(func() {
		c.Close()
		ok(t, l.Close())
	})
	return c
}

func TestADaemonThatHangsHoldsNobody(t *testing.T) {
	c := hung(t, time.Hour)
	top := &Top{Client: c, Every: time.Hour, By: "cpu", Out: io.Discard}
	pressed := make(chan byte, 1)
	pressed <- 'q'
	ok(t, top.Live(t.Context(), pressed, func() (int, int) { return 30, 10 }))

	interrupts := make(chan os.Signal, 1)
	interrupts <- syscall.SIGINT
	set := &Set{Client: c, Verb: "start", What: "guest", Out: io.Discard, Err: io.Discard, Interrupts: interrupts}
	err := set.Follow(t.Context(), func(ctx context.Context) (*connect.ServerStreamForClient[lodgev1.Step], error) {
		return c.Act(ctx, &lodgev1.ActRequest{})
	})
	if ending, known := errors.AsType[*Ending](err); !known || ending.Status != WasCancelled {
		t.Errorf("an interrupted set: %v", err)
	}

	ctx, interrupt := context.WithCancelCause(t.Context())
	interrupt(nil)
	err = c.List(ctx, nil, Narrow, 0, io.Discard)
	if ending, known := errors.AsType[*Ending](err); !known || ending.Status != WasCancelled || ending.Text != "interrupted" {
		t.Errorf("an interrupted list: %v", err)
	}
	err = hung(t, time.Millisecond).List(t.Context(), nil, Narrow, 0, io.Discard)
	if ending, known := errors.AsType[*Ending](err); !known || ending.Status != SomeFailed || !strings.Contains(ending.Text, "has not answered") {
		t.Errorf("a list: %v", err)
	}
}

// TestAStrangerOnTheSocketIsNamed dials a socket on which something else is spoken.
func TestAStrangerOnTheSocketIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", path)
	ok(t, err)
	defer func() { ok(t, l.Close()) }()
	go func() { // ends with the listener
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_ = conn.Close()
		}
	}()
	c := Dial(path)
	defer c.Close()
	err = c.List(t.Context(), nil, Narrow, 0, io.Discard)
	if ending, known := errors.AsType[*Ending](err); !known || ending.Status != SomeFailed || !strings.Contains(ending.Text, path) {
		t.Errorf("got %v", err)
	}
}

// TestADaemonThatDiesIsNamed lets the connection break in the middle of a set.
func TestADaemonThatDiesIsNamed(t *testing.T) {
	d := &daemon{steps: []*lodgev1.Step{plan(1), summary(&lodgev1.Summary{})}, held: make(chan struct{})}
	c := d.dial(t)
	stream, err := c.Act(t.Context(), &lodgev1.ActRequest{})
	ok(t, err)
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	d.die()
	for stream.Receive() {
	}
	if ending, known := errors.AsType[*Ending](Failed(stream.Err())); !known || ending.Status != SomeFailed || !strings.Contains(ending.Text, "the connection to the daemon broke") {
		t.Errorf("got %v", stream.Err())
	}
}

func TestWhatAnErrorSaysDoesNotSteerTheTerminal(t *testing.T) {
	ending, known := errors.AsType[*Ending](Failed(errors.New("no \x1b[2J\u009b31m\nway")))
	if !known || ending.Text != "no ?[2J?31m; way" {
		t.Errorf("got %q", ending.Text)
	}
}

// TestNothingOfADaemonSteersTheTerminal has a daemon, or a guest behind it, that tries.
// Promise: X10
func TestNothingOfADaemonSteersTheTerminal(t *testing.T) {
	const bad = "\x1b]0;x\x07\u009b2J"
	d := &daemon{guests: []*lodgev1.Guest{{Name: bad, State: bad, Uuid: bad, Messages: []string{bad + "\n" + bad}, Decisions: []string{bad}, Labels: map[string]string{bad: bad}, Pid: 1}}}
	d.memory = &lodgev1.MemoryResponse{Mode: bad, At: timestamppb.New(noon), Guests: []*lodgev1.MemoryDecision{{Name: bad, Uuid: bad, Mode: bad, Reason: bad, Apart: bad, Failure: bad}}}
	var out bytes.Buffer
	c := d.dial(t)
	for _, form := range []string{Narrow, Wide, JSON} {
		ok(t, c.List(t.Context(), nil, form, 0, &out))
	}
	ok(t, c.Why(t.Context(), nil, &out))
	for _, form := range []string{Wide, JSON} {
		ok(t, (&MemoryView{Client: c, Form: form, Out: &out}).Once(t.Context(), 0))
	}
	if ending, known := errors.AsType[*Ending](c.Check(t.Context(), nil, &out)); !known || ending.Status != SomeFailed {
		t.Errorf("a guest with messages: %v", ending)
	}
	if at := strings.IndexFunc(out.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }); at >= 0 {
		t.Errorf("the terminal gets %q", out.String()[at:min(at+40, out.Len())])
	}
}

// TestNoDaemonSendsItsClientsToOthers has one answer with another address.
// Promise: X10
func TestNoDaemonSendsItsClientsToOthers(t *testing.T) {
	path, followed := filepath.Join(t.TempDir(), "sock"), false
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", path)
	ok(t, err)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: &protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed = followed || r.URL.Path == "/elsewhere"
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})}
	served := make(chan struct{})
	go func() {
		_ = server.Serve(l)
		close(served)
	}()
	c := Dial(path)
	if err := c.List(t.Context(), nil, Narrow, 0, io.Discard); err == nil {
		t.Error("that is an answer")
	}
	c.Close()
	ok(t, server.Close())
	<-served
	if followed {
		t.Error("the client follows")
	}
}

func TestEventsAreShownCleanly(t *testing.T) {
	c := (&daemon{}).dial(t)
	var out bytes.Buffer
	err := c.Events(t.Context(), nil, "a/6", false, &out)
	if ending, known := errors.AsType[*Ending](err); !known || ending.Status != SomeFailed || !strings.Contains(ending.Text, "stopping") {
		t.Errorf("got %v", err)
	}
	golden(t, "events", out.String())
	if err := c.Events(t.Context(), nil, "yesterday", false, &out); err == nil {
		t.Error("yesterday is a cursor")
	}
}

func TestTheQueueIsShown(t *testing.T) {
	q := &lodgev1.StartQueueResponse{
		Running: 3, Limit: 4, Stuck: 1, Settling: 2, Promised: 3 << 30, Why: "processor pressure",
		Waiting: []*lodgev1.Waiting{{Name: "web-9", Position: 1, Since: timestamppb.New(noon), Reason: "memory"}},
	}
	q.Operations = []*lodgev1.Operation{
		{Name: "db", Kind: "cleanup", State: "owed", Step: "images", Since: timestamppb.New(noon.Add(-time.Hour)), Reason: "QEMU closes the images of a paused guest when it runs"},
		{Name: "web-1", Kind: "detach", Objects: []string{"alias/net0"}, State: "waiting", Step: "gone", Since: timestamppb.New(noon)},
	}
	var whole, calm bytes.Buffer
	ok(t, writeQueue(&whole, q, noon.Add(time.Second)))
	golden(t, "queue", whole.String())
	q.Waiting = nil // operations are shown where no start waits, too
	ok(t, writeQueue(&calm, q, noon.Add(time.Second)))
	golden(t, "queue-calm", calm.String())
}
