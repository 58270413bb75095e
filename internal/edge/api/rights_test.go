package api

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// TestRights_EveryCall looks up every call of the API in the table of rights.
// Promise: A2
func TestRights_EveryCall(t *testing.T) {
	methods := lodgev1.File_lodge_v1_lodge_proto.Services().ByName("Lodge").Methods()
	for i := range methods.Len() {
		path := "/lodge.v1.Lodge/" + string(methods.Get(i).Name())
		if right, known := rights[path]; !known || len(right.verbs) == 0 {
			t.Errorf("no right is assigned to %s", path)
		}
	}
	if len(rights) != methods.Len() {
		t.Errorf("there are %d rights and %d calls", len(rights), methods.Len())
	}
}

// held writes rules that give a user of the host one guest of several. It returns a context with that user as
// the client.
func (h *testServer) held(rules string) context.Context {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "access.yaml")
	ok(h.t, os.WriteFile(file, []byte("version: 1\nrules: [{name: some, who: \"user:1002\", "+rules+"}]\n"), 0o600))
	h.server.Authorizer.File = file // no client calls yet
	ok(h.t, h.server.Authorizer.Reload())
	return context.WithValue(h.context(), principalKey{}, authz.LocalPrincipal(listener.Peer{PID: 7, UID: 1002, GID: 1002}))
}

// TestRights_InvisibleGuests has a client that may see one guest ask for others, by all the properties
// that it can see.
// Promise: A1
func TestRights_InvisibleGuests(t *testing.T) {
	h := serve(t, 3)
	ctx := h.held("may: [read, start], guests: web-0")
	for _, c := range []struct {
		object, name string
		want         bool
	}{
		{objectGuest, "web-0", true},
		{objectGuest, "web-1", false},
		{objectNetwork, "default", false},
		{objectPool, "default", false},
		{objectSecret, "s", false},
		{objectNodeDevice, "net_vnet7_fe_54_00_11_22_33", false},
	} {
		if seen := h.server.canSeeEvent(ctx, &lodgev1.Event{Object: c.object, Name: c.name}); seen != c.want {
			t.Errorf("the client gets an event of %s %s: %v", c.object, c.name, seen)
		}
	}
	g, err := h.server.Guests.ByName("web-0")
	ok(t, err)
	for name, want := range map[string]bool{"web-0": true, "payroll": false} { // its name at that time
		if seen := h.server.canSeeEvent(ctx, &lodgev1.Event{Object: objectGuest, Name: name, Uuid: g.UUID}); seen != want {
			t.Errorf("the client gets an event of web-0 under the name %s: %v", name, seen)
		}
	}
	status, err := h.server.Status(ctx, &lodgev1.StatusRequest{})
	ok(t, err)
	if status.GetGuests() != 1 {
		t.Errorf("%d guests are counted", status.GetGuests())
	}
	if _, err := h.server.Status(ctx, &lodgev1.StatusRequest{Collect: true}); !fault.Is(err, fault.Denied) {
		t.Errorf("a client that may only read stops the daemon: %v", err)
	}
	said := map[string]string{}
	for _, name := range []string{"web-1", "nobody"} {
		q, err := toRequest(&lodgev1.ActRequest{Verb: "start", Select: []string{name}})
		ok(t, err)
		sc, done := h.server.restrict(ctx, &q)
		defer done()
		_, err = h.server.Fleet.Run(ctx, sc, q, func(fleet.Plan) {}, func(fleet.Result) { t.Errorf("%s has a result", name) })
		if !fault.Is(err, fault.NotFound) {
			t.Fatalf("%s: %v", name, err)
		}
		said[strings.ReplaceAll(err.Error(), name, "NAME")] = name
	}
	if len(said) != 1 {
		t.Errorf("the client can tell a hidden guest from a missing one: %q", said)
	}
}

// TestRights_StartDiscardsSave: a client that may only start a guest cannot discard its saved
// image.
// Promise: A1
func TestRights_StartDiscardsSave(t *testing.T) {
	h := serve(t, 1)
	for may, want := range map[string]bool{"read, start": false, "read, start, save": true} {
		ctx := h.held("may: [" + may + "], guests: web-0")
		q, err := toRequest(&lodgev1.ActRequest{Verb: "start", Select: []string{"web-0"}, DryRun: true, Options: &lodgev1.Options{ForceBoot: true}})
		ok(t, err)
		sc, done := h.server.restrict(ctx, &q)
		defer done()
		_, err = h.server.Fleet.Run(ctx, sc, q, func(fleet.Plan) {}, func(r fleet.Result) {
			if denied := fault.Is(r.Error, fault.Denied); denied == want {
				t.Errorf("with %s it is denied: %v", may, r.Error)
			}
		})
		ok(t, err)
	}
}

// TestAudit_OmitsUnchangedGuests has a set that leaves some of its guests unchanged.
// Promise: A5
func TestAudit_OmitsUnchangedGuests(t *testing.T) {
	h := serve(t, 0)
	path := filepath.Join(t.TempDir(), "audit")
	audit, err := authz.OpenAudit(path, h.server.Log)
	ok(t, err)
	h.server.Audit = audit // no client calls yet
	note := h.server.auditResults(h.context(), "Act", authz.Start, func(fleet.Result) {})
	for _, outcome := range []fleet.Outcome{fleet.Done, fleet.Unchanged, fleet.Failed, fleet.Skipped, fleet.Cancelled, fleet.Would} {
		r := fleet.Result{Name: string(outcome), Outcome: outcome}
		if outcome == fleet.Failed || outcome == fleet.Cancelled {
			r.Error = fault.New(fault.Denied, fault.Call, "no")
		}
		note(r)
	}
	ok(t, audit.Close())
	text, err := os.ReadFile(path)
	ok(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, words := range []string{"object=\"domain 'done'\" result=ok", "object=\"domain 'failed'\" result=denied", "object=\"domain 'cancelled'\" result=denied"} {
		if len(lines) != 3 || !strings.Contains(lines[i], words) {
			t.Fatalf("the audit has %q", lines)
		}
	}
}

// TestRights_CheckedAgainWhenTurnComes changes a label while a guest waits for its turn.
// Promise: A1
func TestRights_CheckedAgainWhenTurnComes(t *testing.T) {
	h := serve(t, 2)
	set := func(ctx context.Context, q fleet.Request) {
		_, err := h.server.Fleet.Run(ctx, scope.Daemon("a test"), q, func(fleet.Plan) {}, func(r fleet.Result) { ok(t, r.Error) })
		ok(t, err)
	}
	request := func(choose, label string) fleet.Request {
		q, err := toRequest(&lodgev1.ActRequest{Verb: "set", Select: []string{choose}, Parallel: 1, Options: &lodgev1.Options{Settings: map[string]string{label: "yes"}}})
		ok(t, err)
		return q
	}
	var asked []string
	q := request("web-*", "label.seen")
	q.Admit = func(m fleet.Member) error {
		asked = append(asked, m.View.Name+" "+m.Labels["locked"])
		if m.View.Name == "web-0" {
			set(h.context(), request("web-1", "label.locked"))
		}
		return nil
	}
	set(h.context(), q)
	if !slices.Equal(asked, []string{"web-0 ", "web-1 yes"}) {
		t.Errorf("it is asked for %q", asked)
	}
}

// relabel labels a guest as another client's.
func (h *testServer) relabel(name string) {
	h.t.Helper()
	q, err := toRequest(&lodgev1.ActRequest{Verb: "set", Select: []string{name}, Options: &lodgev1.Options{Settings: map[string]string{"label.team": "infra"}}})
	ok(h.t, err)
	_, err = h.server.Fleet.Run(h.context(), scope.Daemon("a test"), q, func(fleet.Plan) {}, func(r fleet.Result) { ok(h.t, r.Error) })
	ok(h.t, err)
}

// TestRights_LabelChangesBeforeTurn changes a guest's label after a limited client's call was admitted, and before
// the call reaches that guest.
// Promise: A1
func TestRights_LabelChangesBeforeTurn(t *testing.T) {
	h := serve(t, 1)
	ctx := h.held("may: [read, define], guests: \"!label=team:infra\"")
	sc, done := h.server.Authorizer.Scope(caller(ctx), authz.Define)
	defer done()
	g, err := h.server.Guests.ByName("web-0")
	ok(t, err)
	ok(t, guest.SetAutostart(ctx, g, sc, true))
	h.relabel("web-0")
	if err := guest.SetAutostart(ctx, g, sc, false); !fault.Is(err, fault.Denied) || strings.Contains(err.Error(), "web-0") {
		t.Errorf("it is done to a guest of others: %v", err)
	}
	ok(t, guest.SetAutostart(h.context(), g, scope.Daemon("a test"), false))
}

// TestRights_AllOfCallNeeded: when only one of the rights that a call needs is left, the call is
// refused.
// Promise: A1
func TestRights_AllOfCallNeeded(t *testing.T) {
	h := serve(t, 1)
	ctx := h.held("may: [read, define], guests: \"!label=team:infra\"}, {name: others, who: \"user:1002\", may: start, guests: web-0")
	sc, done := h.server.Authorizer.Scope(caller(ctx), authz.Start, authz.Define)
	defer done()
	g, err := h.server.Guests.ByName("web-0")
	ok(t, err)
	ok(t, guest.SetAutostart(ctx, g, sc, true))
	h.relabel("web-0")
	if err := guest.SetAutostart(ctx, g, sc, false); !fault.Is(err, fault.Denied) {
		t.Errorf("it is done to a guest of others: %v", err)
	}
}

// TestRights_LabelIsSetLast: a label that ends the client's own right to change the guest is
// set last.
// Promise: A1
func TestRights_LabelIsSetLast(t *testing.T) {
	h := serve(t, 1)
	ctx := h.held("may: [read, define], guests: web-0}, {name: own, who: \"user:1002\", may: change, guests: \"!label=team:infra\"")
	q, err := toRequest(&lodgev1.ActRequest{Verb: "set", Select: []string{"web-0"}, Options: &lodgev1.Options{Settings: map[string]string{"label.team": "infra", "memory": "32MiB"}}})
	ok(t, err)
	sc, done := h.server.restrict(ctx, &q)
	defer done()
	_, err = h.server.Fleet.Run(ctx, sc, q, func(fleet.Plan) {}, func(r fleet.Result) {
		if r.Outcome != fleet.Done {
			t.Errorf("it is %s: %v (%s)", r.Outcome, r.Error, r.Note)
		}
	})
	ok(t, err)
}

// TestRights_LabelAfterRename renames a guest after a call that labels it was admitted: under the new
// name the client may not give it away.
// Promise: A1
func TestRights_LabelAfterRename(t *testing.T) {
	h := serve(t, 1)
	g, err := h.server.Guests.ByName("web-0")
	ok(t, err)
	ctx := h.held("may: [read, define], guests: [web-0, \"yours,!label=team\"]")
	for _, c := range []struct {
		name string
		want bool
	}{{"web-0", true}, {"yours", false}} {
		q, err := toRequest(&lodgev1.ActRequest{Verb: "set", Select: []string{"web-0"}, Options: &lodgev1.Options{Settings: map[string]string{"label.team": c.name}}})
		ok(t, err)
		sc, done := h.server.restrict(ctx, &q)
		defer done()
		admit, renamed := q.Admit, c.name == "web-0"
		q.Admit = func(m fleet.Member) error {
			err := admit(m)
			if !renamed {
				renamed = true
				ok(t, guest.Rename(h.context(), g, scope.Daemon("a test"), c.name))
			}
			return err
		}
		_, err = h.server.Fleet.Run(ctx, sc, q, func(fleet.Plan) {}, func(r fleet.Result) {
			if denied := fault.Is(r.Error, fault.Denied); denied == c.want || r.Error != nil && !denied {
				t.Errorf("with the name %s: %v", c.name, r.Error)
			}
		})
		ok(t, err)
	}
}

// TestRights_RefusalHidesNewName renames a guest before its turn to a name that the client may not see.
// Promise: A1
func TestRights_RefusalHidesNewName(t *testing.T) {
	h := serve(t, 1)
	g, err := h.server.Guests.ByName("web-0")
	ok(t, err)
	q, err := toRequest(&lodgev1.ActRequest{Verb: "destroy", Select: []string{"web-*"}})
	ok(t, err)
	ctx := h.held("may: [read, stop], guests: web-0")
	sc, done := h.server.restrict(ctx, &q)
	defer done()
	sees := q.Sees
	q.Sees = func(m fleet.Member) bool {
		seen := sees(m)
		ok(t, guest.Rename(h.context(), g, scope.Daemon("a test"), "payroll"))
		return seen
	}
	_, err = h.server.Fleet.Run(ctx, sc, q, func(fleet.Plan) {}, func(r fleet.Result) {
		if !fault.Is(r.Error, fault.Denied) || strings.Contains(r.Error.Error(), "payroll") {
			t.Errorf("it is refused so: %v", r.Error)
		}
	})
	ok(t, err)
}

// TestPolkit_ReusedPID ends a client's process before it calls: its pid may then belong to another
// process, to which polkit gives more rights.
// Promise: A7
func TestPolkit_ReusedPID(t *testing.T) {
	h := serve(t, 0)
	r := authz.NewAuthenticator(h.server.Authorizer, polkit.New(), nil, h.server.Log)
	process := exec.CommandContext(h.context(), "sleep", "1000")
	ok(t, process.Start())
	c := &client{principal: authz.LocalPrincipal(listener.Peer{PID: int32(process.Process.Pid), UID: 1002}), polkitTurn: make(chan struct{}, 1)}
	c.findProcess(r)
	ok(t, process.Process.Kill())
	_ = process.Wait() // an error, because it was killed
	if err := c.authenticate(h.context(), r); err == nil || strings.Contains(err.Error(), "cannot look at process") {
		t.Errorf("polkit is asked about another process: %v", err)
	}
	if c.process.Started == 0 {
		t.Error("it is not known when it was started")
	}
}

// TestLimits_ConnectionsWithoutCall opens connections without a call.
// Promise: A9
func TestLimits_ConnectionsWithoutCall(t *testing.T) {
	h := serve(t, 0, func(l *limits) { l.unadmittedEach = 2 })
	dial := func() net.Conn {
		conn, err := new(net.Dialer).DialContext(h.context(), "unix", h.path)
		ok(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	watch, err := h.client().Watch(h.context(), &lodgev1.WatchRequest{})
	ok(t, err)
	defer func() { _ = watch.Close() }()
	next(t, watch) // it has called, so it counts as a client
	dial()
	dial()
	h.until(func() bool { return h.server.unadmitted.count() == 2 }, "connections without a call are not counted")
	third := dial()
	ok(t, third.SetReadDeadline(time.Now().Add(patience)))
	if _, err := third.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a third one: %v", err)
	}
	if n := h.server.conns.count(); n != 3 {
		t.Errorf("%d connections are counted", n)
	}
}

// TestLimits_PerClient has one client open as many sets and long answers as it can.
// Promise: A9
func TestLimits_PerClient(t *testing.T) {
	h := serve(t, 1, func(l *limits) { l.setsEach, l.largeCallsEach = 1, 1 })
	exhausted := func(what string, err error) {
		t.Helper()
		if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("%s too many: %v", what, err)
		}
	}
	end := make(chan struct{})
	stream := h.hold(h.context(), func(_ context.Context, to *setMessages) (fleet.Summary, error) {
		to.addPlan(fleet.Plan{Total: 1})
		<-end
		return fleet.Summary{}, nil
	})
	second, err := h.client().Act(h.context(), &lodgev1.ActRequest{Verb: "set", Select: []string{"all"}, Options: &lodgev1.Options{Settings: map[string]string{"title": "x"}}})
	ok(t, err)
	defer func() { _ = second.Close() }()
	for second.Receive() {
	}
	exhausted("a set", second.Err())
	close(end)
	take(t, stream)
	h.until(func() bool { return h.server.running.count() == 0 }, "a place is not given back")

	me := authz.Owner{PID: int32(os.Getpid())}
	h.server.largeCalls.take(me, 1)
	_, err = h.client().ListGuests(h.context(), &lodgev1.ListGuestsRequest{})
	exhausted("a list", err)
	h.server.largeCalls.release(me, 1)
	_, err = h.client().ListGuests(h.context(), &lodgev1.ListGuestsRequest{})
	ok(t, err)
	h.until(func() bool { return h.server.largeCalls.count() == 0 }, "a place is not given back")
}
