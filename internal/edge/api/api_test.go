package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an event.
const patience = 20 * time.Second

// testServer is a server with guests that are shut off, which needs no QEMU.
type testServer struct {
	t      testing.TB
	server *Server
	events *event.Log
	path   string
	stop   func() // ends Serve, as the daemon's end does
}

// guestRecord is a guest's record in the daemon's store.
type guestRecord struct{ Name, XML string }

func document(i int) (name, uuid, xml string) {
	name, uuid = fmt.Sprintf("web-%d", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
	label := fmt.Sprintf(`<lodge:guest xmlns:lodge=%q><lodge:label name="app" value="v%d"/></lodge:guest>`, fleet.Namespace, i%2)
	return name, uuid, fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><metadata>%s</metadata><memory unit='MiB'>16</memory>`+
		`<vcpu>2</vcpu><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os></domain>`, name, uuid, label)
}

// serve runs a server with a number of guests until the test ends.
func serve(t testing.TB, guests int, change ...func(*limits)) *testServer {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	records, err := store.Open(filepath.Join(dir, "data"))
	ok(t, err)
	for i := range guests {
		name, uuid, xml := document(i)
		ok(t, records.Put(store.Kind{Name: "domain", Version: 1}, uuid, guestRecord{Name: name, XML: xml}))
	}
	ok(t, records.Close())
	d, err := daemon.Open(t.Context(), daemon.Config{Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run"), Log: log})
	ok(t, err)
	l := defaultLimits()
	for _, c := range change {
		c(&l)
	}
	h := &testServer{t: t, events: d.Events, path: filepath.Join(dir, "lodge.sock")}
	h.server = newServer(Config{Fleet: d.Fleet, Authorizer: d.Gate, Guests: d.Guests, Networks: d.Networks, Events: d.Events, Log: log, Version: "test"}, l)
	listener, err := listener.Listen(t.Context(), listener.Place{Path: h.path})
	ok(t, err)
	ctx, stop := context.WithCancelCause(context.Background())
	h.stop = func() { stop(nil) }
	ended := make(chan error, 1)
	go func() { ended <- h.server.Serve(ctx, Listener{Listener: listener}) }()
	t.Cleanup(func() {
		h.stop()
		select {
		case err := <-ended:
			ok(t, err)
		case <-time.After(patience):
			t.Error("Serve does not end")
		}
		d.Close()
	})
	return h
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// http returns a client of the socket that speaks one version of HTTP.
func (h *testServer) http(two bool) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(two)
	protocols.SetHTTP1(!two)
	transport := &http.Transport{Protocols: &protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", h.path)
	}}
	h.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (h *testServer) client(options ...connect.ClientOption) lodgev1.LodgeClient {
	return lodgev1.NewLodgeClient(h.http(true), "http://lodge", options...)
}

func (h *testServer) context() context.Context {
	ctx, stop := context.WithTimeout(h.t.Context(), patience)
	h.t.Cleanup(stop)
	return ctx
}

func TestListGuests_EveryProtocol(t *testing.T) {
	h := serve(t, 3)
	for name, c := range map[string]lodgev1.LodgeClient{
		"Connect":              h.client(),
		"gRPC":                 h.client(connect.WithGRPC()),
		"gRPC-Web":             h.client(connect.WithGRPCWeb()),
		"Connect over HTTP/1":  lodgev1.NewLodgeClient(h.http(false), "http://lodge"),
		"JSON over HTTP/1 GET": lodgev1.NewLodgeClient(h.http(false), "http://lodge", connect.WithProtoJSON(), connect.WithHTTPGet()),
	} {
		answer, err := c.ListGuests(h.context(), &lodgev1.ListGuestsRequest{Select: []string{"label=app:v0"}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var names []string
		for _, g := range answer.GetGuests() {
			names = append(names, g.GetName())
		}
		if !slices.Equal(names, []string{"web-0", "web-2"}) {
			t.Errorf("%s: %q", name, names)
		}
		g := answer.GetGuests()[0]
		if g.GetState() != "shut off" || g.GetMemory() != 16<<20 || g.GetVcpus() != 2 || g.GetLabels()["app"] != "v0" || !g.GetPersistent() || g.GetPid() != 0 {
			t.Errorf("%s: %v", name, g)
		}
	}
}

func TestListGuests_PlainJSON(t *testing.T) {
	h := serve(t, 2)
	r, err := http.NewRequestWithContext(h.context(), http.MethodPost, "http://lodge/lodge.v1.Lodge/ListGuests", strings.NewReader(`{"select":["web-1"]}`))
	ok(t, err)
	r.Header.Set("Content-Type", "application/json")
	response, err := h.http(false).Do(r)
	ok(t, err)
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Guests []struct{ Name, Memory string }
	}
	ok(t, json.NewDecoder(response.Body).Decode(&answer))
	if len(answer.Guests) != 1 || answer.Guests[0].Name != "web-1" || answer.Guests[0].Memory != "16777216" {
		t.Errorf("%+v", answer)
	}
}

func TestErrors_CarryKind(t *testing.T) {
	h := serve(t, 0)
	_, err := h.client().ListGuests(h.context(), &lodgev1.ListGuestsRequest{Select: []string{"colour=blue"}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("got %v", err)
	}
	checkFault(t, err, "invalid", "colour")
	_, err = h.client().Cancel(h.context(), &lodgev1.CancelRequest{Run: "nonsense"})
	checkFault(t, err, "not found", "nonsense")
}

func checkFault(t *testing.T, err error, kind, says string) {
	t.Helper()
	failed, known := errors.AsType[*connect.Error](err)
	if !known || len(failed.Details()) != 1 {
		t.Fatalf("got %v", err)
	}
	detail, err := failed.Details()[0].Value()
	ok(t, err)
	if f, _ := detail.(*lodgev1.Fault); f.GetKind() != kind || !strings.Contains(f.GetText(), says) {
		t.Errorf("got %v, want %s saying %q", f, kind, says)
	}
}

// take reads a stream of steps to its end.
func take(t *testing.T, stream *connect.ServerStreamForClient[lodgev1.Step]) (plan *lodgev1.Plan, results []*lodgev1.Result, summary *lodgev1.Summary) {
	t.Helper()
	for stream.Receive() {
		switch s := stream.Msg().GetStep().(type) {
		case *lodgev1.Step_Plan:
			if plan != nil || results != nil {
				t.Error("the plan does not come first, once")
			}
			plan = s.Plan
		case *lodgev1.Step_Result:
			results = append(results, s.Result)
		case *lodgev1.Step_Summary:
			summary = s.Summary
		}
	}
	ok(t, stream.Err())
	return plan, results, summary
}

func TestAct_PlanResultsSummary(t *testing.T) {
	h := serve(t, 300)
	stream, err := h.client().Act(h.context(), &lodgev1.ActRequest{
		Verb: "set", Select: []string{"all"}, Options: &lodgev1.Options{Settings: map[string]string{"label.seen": "yes"}},
	})
	ok(t, err)
	plan, results, summary := take(t, stream)
	if plan.GetTotal() != 300 || plan.GetRun() == "" || len(results) != 300 || summary.GetDone() != 300 {
		t.Errorf("plan %v, %d results, summary %v", plan, len(results), summary)
	}
	answer, err := h.client().ListGuests(h.context(), &lodgev1.ListGuestsRequest{Select: []string{"label=seen:yes"}})
	ok(t, err)
	if len(answer.GetGuests()) != 300 {
		t.Errorf("%d guests have the label", len(answer.GetGuests()))
	}
	if n := h.server.sets.count(); n != 0 {
		t.Errorf("%d sets are left", n)
	}
}

func TestAct_Refused(t *testing.T) {
	h := serve(t, 1)
	for _, c := range []struct {
		request *lodgev1.ActRequest
		kind    string
		says    string
	}{
		{&lodgev1.ActRequest{Verb: "explode", Select: []string{"all"}}, "invalid", "explode"},
		{&lodgev1.ActRequest{Verb: "start"}, "invalid", "which guests"},
		{&lodgev1.ActRequest{Verb: "start", Select: []string{"nobody"}}, "not found", "nobody"},
		{&lodgev1.ActRequest{Verb: "shutdown", Select: []string{"all"}, Options: &lodgev1.Options{Mode: "shouting"}}, "invalid", "shouting"},
		{&lodgev1.ActRequest{Verb: "start", Select: []string{"all"}, Timeout: durationpb.New(-1)}, "invalid", "negative"},
		{&lodgev1.ActRequest{Verb: "start", Select: make([]string, maxSelectors+1)}, "invalid", "too many"},
		{&lodgev1.ActRequest{Verb: "start", Select: slices.Repeat([]string{strings.Repeat("x", 4096)}, 33)}, "invalid", "too long"},
	} {
		stream, err := h.client().Act(h.context(), c.request)
		ok(t, err)
		for stream.Receive() {
			t.Errorf("%v: got %v", c.request, stream.Msg())
		}
		checkFault(t, stream.Err(), c.kind, c.says)
		_ = stream.Close()
	}
}

// hold replaces the work on a set by a function of the test.
func (h *testServer) hold(ctx context.Context, work func(context.Context, *setMessages) (fleet.Summary, error)) *connect.ServerStreamForClient[lodgev1.Step] {
	h.t.Helper()
	const path = "/held"
	handler := connect.NewServerStreamHandlerSimple(path, func(ctx context.Context, _ *lodgev1.ActRequest, s *connect.ServerStream[lodgev1.Step]) error {
		return h.server.stream(ctx, s, authz.Entry{}, work)
	}, connect.WithInterceptors(faults{}))
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	l, err := listener.Listen(h.t.Context(), listener.Place{Path: h.path + ".held"})
	ok(h.t, err)
	server := h.server.newHTTPServer(context.Background())
	server.Handler = &limiter{Server: h.server, next: mux, errorWriter: connect.NewErrorWriter()}
	go func() {
		_ = server.Serve(&acceptor{Listener: l, conns: h.server.conns, unadmitted: h.server.unadmitted, log: h.server.Log})
	}()
	h.t.Cleanup(func() { _ = server.Close() })
	held := &testServer{t: h.t, path: h.path + ".held"}
	stream, err := connect.NewClient[lodgev1.ActRequest, lodgev1.Step](held.http(true), "http://lodge"+path).CallServerStream(ctx, connect.NewRequest(&lodgev1.ActRequest{}))
	ok(h.t, err)
	return stream
}

func TestAct_Cancel(t *testing.T) {
	h := serve(t, 0)
	stream := h.hold(h.context(), func(ctx context.Context, to *setMessages) (fleet.Summary, error) {
		to.addPlan(fleet.Plan{Total: 2})
		<-ctx.Done()
		to.addResult(fleet.Result{Name: "a", Outcome: fleet.Cancelled, Error: context.Cause(ctx)})
		return fleet.Summary{Cancelled: 1}, nil
	})
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	_, err := h.client().Cancel(h.context(), &lodgev1.CancelRequest{Run: stream.Msg().GetPlan().GetRun()})
	ok(t, err)
	_, results, summary := take(t, stream)
	if len(results) != 1 || summary.GetCancelled() != 1 || !strings.Contains(results[0].GetFault().GetText(), "client cancelled") {
		t.Errorf("%v, %v", results, summary)
	}
}

// TestAct_PanicFailsOnlyItsCall makes the work on a set panic.
func TestAct_PanicFailsOnlyItsCall(t *testing.T) {
	h := serve(t, 0)
	stream := h.hold(h.context(), func(_ context.Context, to *setMessages) (fleet.Summary, error) {
		to.addPlan(fleet.Plan{Total: 1})
		panic("a bug")
	})
	for stream.Receive() {
	}
	if stream.Err() == nil {
		t.Error("the call ended well")
	}
	if n := h.server.sets.count(); n != 0 {
		t.Errorf("%d sets are left", n)
	}
}

// TestAct_InvalidUTF8 has a program's Latin-1 text in an error.
func TestAct_InvalidUTF8(t *testing.T) {
	const bad = "caf\xe9"
	h := serve(t, 0)
	stream := h.hold(h.context(), func(_ context.Context, to *setMessages) (fleet.Summary, error) {
		to.addResult(fleet.Result{Name: bad, UUID: bad, Outcome: fleet.Failed, Note: bad, Error: errors.New(bad)})
		return fleet.Summary{Failed: 1}, nil
	})
	if _, results, summary := take(t, stream); len(results) != 1 || summary.GetFailed() != 1 {
		t.Errorf("%v, %v", results, summary)
	}
	ctx, leave := context.WithCancelCause(h.context())
	defer leave(nil)
	events, err := h.client().Watch(ctx, &lodgev1.WatchRequest{})
	ok(t, err)
	next(t, events)
	h.events.Append(event.Source{Name: bad}, event.DomainTunable{Settings: []event.Setting{{Name: "x", Value: bad}}})
	h.events.Append(event.Source{Name: bad}, event.DomainIOError{Path: bad, Reason: bad})
	for range 2 {
		if e := next(t, events).GetEvent(); e.GetName() != "caf\uFFFD" {
			t.Errorf("got %v", e)
		}
	}
}

func TestAct_ClientDisconnects(t *testing.T) {
	h := serve(t, 0)
	ctx, leave := context.WithCancelCause(h.context())
	cancelled := make(chan struct{})
	stream := h.hold(ctx, func(ctx context.Context, to *setMessages) (fleet.Summary, error) {
		to.addPlan(fleet.Plan{Total: 1})
		<-ctx.Done()
		close(cancelled)
		return fleet.Summary{}, nil
	})
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	leave(nil)
	wait(t, cancelled, "the work continues without its client")
}

func wait(t *testing.T, for_ <-chan struct{}, otherwise string) {
	t.Helper()
	select {
	case <-for_:
	case <-time.After(patience):
		t.Fatal(otherwise)
	}
}

// TestAct_ClientDoesNotRead has a client that reads nothing. The work on its set still completes,
// and then the client is disconnected.
func TestAct_ClientDoesNotRead(t *testing.T) {
	h := serve(t, 0, func(l *limits) { l.writeTimeout = 200 * time.Millisecond })
	worked := make(chan struct{})
	h.hold(h.context(), func(_ context.Context, to *setMessages) (fleet.Summary, error) {
		for range 20000 { // far more than the connection's windows hold
			to.addResult(fleet.Result{Name: strings.Repeat("x", 1000), Outcome: fleet.Done})
		}
		close(worked)
		return fleet.Summary{}, nil
	})
	wait(t, worked, "the work waits for the client")
	h.until(func() bool { return h.server.sets.count() == 0 }, "the client is not given up")
}

// until waits for a condition that holds soon after an answer.
func (h *testServer) until(so func() bool, otherwise string) {
	h.t.Helper()
	deadline := time.After(patience)
	for !so() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			h.t.Fatal(otherwise)
		}
	}
}

func TestWatch_FromCursor(t *testing.T) {
	h := serve(t, 2)
	ctx, leave := context.WithCancelCause(h.context())
	defer leave(nil)
	say := func(name string, p event.Payload) { h.events.Append(event.Source{Name: name, UUID: "no-such"}, p) }
	first, err := h.client().Watch(ctx, &lodgev1.WatchRequest{})
	ok(t, err)
	begin := next(t, first).GetBegin()
	say("web-0", event.DomainChange{Change: event.Started, Detail: event.DetailBooted})
	say("lan", event.NetworkChange{Change: event.Started})
	if e := next(t, first).GetEvent(); e.GetName() != "web-0" || e.GetWhat() != "started" || e.GetDetail() != "booted" || e.GetObject() != "guest" {
		t.Errorf("got %v", e)
	}
	if e := next(t, first).GetEvent(); e.GetObject() != "network" || e.GetSeq() != begin.GetSeq()+2 {
		t.Errorf("got %v after %v", e, begin)
	}
	again, err := h.client().Watch(ctx, &lodgev1.WatchRequest{After: &lodgev1.Cursor{Life: begin.GetLife(), Seq: begin.GetSeq() + 1}})
	ok(t, err)
	next(t, again)
	if e := next(t, again).GetEvent(); e.GetName() != "lan" {
		t.Errorf("behind the first event comes %v", e)
	}
	before, err := h.client().Watch(ctx, &lodgev1.WatchRequest{After: &lodgev1.Cursor{Life: "another", Seq: 7}, Select: []string{"web-*"}})
	ok(t, err)
	next(t, before)
	if g := next(t, before).GetGap(); g == nil || g.GetLost() != 0 {
		t.Errorf("a cursor of another life: %v", g)
	}
	if e := next(t, before).GetEvent(); e.GetName() != "web-0" {
		t.Errorf("got %v", e)
	}
}

func next(t *testing.T, s *connect.ServerStreamForClient[lodgev1.WatchResponse]) *lodgev1.WatchResponse {
	t.Helper()
	if !s.Receive() {
		t.Fatal(s.Err())
	}
	return s.Msg()
}

// TestWatch_SlowClientGetsGap fills the event log while a client does not read.
func TestWatch_SlowClientGetsGap(t *testing.T) {
	h := serve(t, 0)
	ctx, leave := context.WithCancelCause(h.context())
	defer leave(nil)
	stream, err := h.client().Watch(ctx, &lodgev1.WatchRequest{})
	ok(t, err)
	next(t, stream)
	const many = 3 * event.Capacity
	long := strings.Repeat("x", 1000)
	for range many {
		h.events.Append(event.Source{Name: long}, event.DomainReboot{})
	}
	received, lost := uint64(0), uint64(0)
	for received+lost < many {
		m := next(t, stream)
		lost += m.GetGap().GetLost()
		if m.GetEvent() != nil {
			received++
		}
	}
	if lost == 0 || received == 0 {
		t.Errorf("%d received, %d lost", received, lost)
	}
}

func TestStatus_Usage(t *testing.T) {
	h := serve(t, 2)
	s, err := h.client().Status(h.context(), &lodgev1.StatusRequest{Collect: true})
	ok(t, err)
	if s.GetVersion() != "test" || s.GetGuests() != 2 || s.GetActive() != 0 || s.GetApiClients() != 1 ||
		s.GetGoroutines() < 5 || s.GetThreads() < 2 || s.GetDescriptors() < 4 || s.GetHeap() == 0 || s.GetResident() == 0 {
		t.Errorf("got %v", s)
	}
}

func TestLimits_NamedInRefusal(t *testing.T) {
	h := serve(t, 0, func(l *limits) { l.documents, l.callsEach = 1<<20, 3 })
	big := func(size int) error {
		stream, err := h.client().Act(h.context(), &lodgev1.ActRequest{Verb: "define", Documents: []string{strings.Repeat("x", size)}})
		ok(t, err)
		defer func() { _ = stream.Close() }()
		for stream.Receive() {
		}
		return stream.Err()
	}
	if err := big(1<<20 + 1); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a large message: %v", err)
	}
	if _, err := h.client().ListGuests(h.context(), &lodgev1.ListGuestsRequest{Select: make([]string, 1<<20)}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a million selectors: %v", err)
	}
	ctx, leave := context.WithCancelCause(h.context())
	defer leave(nil)
	for range 3 {
		s, err := h.client().Watch(ctx, &lodgev1.WatchRequest{})
		ok(t, err)
		next(t, s)
	}
	_, err := h.client().Status(h.context(), &lodgev1.StatusRequest{})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a call too many: %v", err)
	}
}

func TestLimits_RequestsTogether(t *testing.T) {
	h := serve(t, 0, func(l *limits) { l.intakeEach = 1 << 20 })
	stream, err := h.client().Act(h.context(), &lodgev1.ActRequest{Verb: "define", Documents: []string{strings.Repeat("x", 2<<20)}})
	ok(t, err)
	defer func() { _ = stream.Close() }()
	if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeResourceExhausted {
		t.Errorf("got %v", stream.Err())
	}
	checkFault(t, stream.Err(), "no capacity", "being received")
	h.until(func() bool { return h.server.intake.take(authz.Owner{PID: 1}, 1<<20) }, "what was taken in is not given back")
}

func TestLimits_IntakeIsReleased(t *testing.T) {
	taken := newQuota(10, 9)
	taken.take(authz.Owner{PID: 2}, 3)
	for _, text := range []string{"ten bytes!", "8 bytes!"} { // too much for one request, and for both together
		b := &countedBody{ReadCloser: io.NopCloser(strings.NewReader(text)), by: authz.Owner{PID: 1}, intake: taken}
		if _, err := io.ReadAll(b); err == nil {
			t.Errorf("%q was taken in", text)
		}
		b.release()
	}
	if taken.release(authz.Owner{PID: 2}, 3); taken.count() != 0 || len(taken.taken) != 0 {
		t.Errorf("%d bytes stay", taken.count())
	}
}

// TestLimits_IncompleteRequest sends only the beginning of a request.
func TestLimits_IncompleteRequest(t *testing.T) {
	h := serve(t, 0, func(l *limits) { l.upload = 100 * time.Millisecond })
	for _, two := range []bool{false, true} {
		trickle, hold := io.Pipe()
		r, err := http.NewRequestWithContext(h.context(), http.MethodPost, "http://lodge"+lodgev1.LodgeStatusProcedure, trickle)
		ok(t, err)
		r.Header.Set("Content-Type", "application/json")
		go func() { _, _ = hold.Write([]byte("{")) }()
		response, err := h.http(two).Do(r)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				t.Errorf("HTTP/2 %v: half a request is answered", two)
			}
		}
		_ = hold.Close()
		h.until(func() bool { return h.server.calls.count() == 0 }, "the call still counts")
	}
	// A request that arrived in time may run as long as it needs.
	stream, err := lodgev1.NewLodgeClient(h.http(false), "http://lodge").Watch(h.context(), &lodgev1.WatchRequest{})
	ok(t, err)
	defer func() { _ = stream.Close() }()
	next(t, stream)
	time.AfterFunc(3*h.server.limits.upload, func() { h.events.Append(event.Source{}, event.DomainReboot{}) })
	if e := next(t, stream).GetEvent(); e.GetWhat() != "rebooted" {
		t.Errorf("got %v", e)
	}
}

func TestServe_RefusesForeignUsers(t *testing.T) {
	h := serve(t, 0)
	request, err := http.NewRequestWithContext(h.context(), http.MethodPost, lodgev1.LodgeStatusProcedure, strings.NewReader("{}"))
	ok(t, err)
	request.Header.Set("Content-Type", "application/json")
	for _, c := range []struct {
		peer listener.Peer
		want int
	}{
		{listener.Peer{UID: 12345, GID: 12345}, http.StatusForbidden},
		{listener.Peer{Unknown: errors.New("no socket")}, http.StatusForbidden},
		{listener.Peer{}, http.StatusOK},
	} {
		answer := &recorder{header: http.Header{}}
		caller := &client{principal: authz.LocalPrincipal(c.peer), acceptor: &acceptor{unadmitted: newQuota(1, 1)}}
		caller.unadmitted.Store(true)
		h.server.handler().ServeHTTP(answer, request.WithContext(context.WithValue(h.context(), clientKey{}, caller)))
		if answer.status != c.want {
			t.Errorf("%+v: status %d, want %d", c.peer, answer.status, c.want)
		}
		if hungUp := answer.header.Get("Connection") == "close"; hungUp != (c.want != http.StatusOK) {
			t.Errorf("%+v: hung up on %v", c.peer, hungUp)
		}
	}
}

// recorder keeps the status of an answer.
type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(s int)   { r.status = s }
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return len(p), nil
}

func TestServe_EndClosesStreams(t *testing.T) {
	h := serve(t, 0)
	stream, err := h.client().Watch(h.context(), &lodgev1.WatchRequest{})
	ok(t, err)
	next(t, stream)
	h.stop()
	if stream.Receive() {
		t.Fatalf("got %v", stream.Msg())
	}
	if connect.CodeOf(stream.Err()) != connect.CodeCanceled || !strings.Contains(stream.Err().Error(), "stopping") {
		t.Errorf("got %v", stream.Err())
	}
}

// BenchmarkListGuests lists a thousand guests over the socket.
func BenchmarkListGuests(b *testing.B) {
	h := serve(b, 1000)
	c := h.client()
	for b.Loop() {
		answer, err := c.ListGuests(b.Context(), &lodgev1.ListGuestsRequest{})
		if err != nil || len(answer.GetGuests()) != 1000 {
			b.Fatal(err)
		}
	}
}
