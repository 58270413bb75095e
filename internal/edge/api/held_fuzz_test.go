package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

// FuzzHeld sends arbitrary dry runs for a client limited to one guest, on a host with that guest only and on a
// host with others. Both answers are the same, except that a UUID is taken by another object, which is not
// named.
// Promise: A1
func FuzzHeld(f *testing.F) {
	_, _, mine := document(0)
	_, _, theirs := document(1)
	for _, r := range []*lodgev1.ActRequest{
		{Verb: "start", Select: []string{"all"}},
		{Verb: "start", Select: []string{"web-1"}},
		{Verb: "start", Select: []string{"web-0", "!uuid=00000000-0000-4000-8000-000000000001"}},
		{Verb: "destroy", Select: []string{"label=app:v*", "state=shutoff"}, Parallel: 3, StopAtFailure: true},
		{Verb: "set", Select: []string{"all"}, Options: &lodgev1.Options{Settings: map[string]string{"memory": "8MiB", "label.app": "v1", "after": "web-1", "priority": "1"}}},
		{Verb: "define", Documents: []string{mine, theirs}},
		{Verb: "define", Documents: []string{strings.Replace(mine, "000000000000", "000000000002", 1), strings.Replace(theirs, "web-1", "web-0", 1)}},
		{Verb: "define", Documents: []string{strings.Replace(mine, "8000-000000000000", "8000-000000000002", 1)}},
		{Verb: "undefine", Select: []string{"web-*", "tile=a/*"}, Options: &lodgev1.Options{Nvram: true}},
	} {
		text, err := jsonCodec{"json"}.Marshal(r)
		ok(f, err)
		f.Add(text)
	}
	alone, among := serve(f, 1), serve(f, 3)
	for _, h := range []*testServer{alone, among} {
		h.held("may: [read, start, stop, save, define, change], guests: web-0")
	}
	ctx := context.WithValue(context.Background(), principalKey{}, authz.LocalPrincipal(listener.Peer{PID: 7, UID: 1002, GID: 1002}))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r lodgev1.ActRequest
		if (jsonCodec{"json"}).Unmarshal(body, &r) != nil {
			return
		}
		once, twice := alone.tells(ctx, &r), among.tells(ctx, &r)
		taken := strings.Contains(twice, "the UUID")
		for _, other := range []string{"web-1", "web-2"} {
			taken = taken && strings.Contains(once, other) == strings.Contains(twice, other)
		}
		if once != twice && !taken {
			t.Fatalf("alone the client gets\n%s\namong other guests\n%s", once, twice)
		}
	})
}

// tells returns all that a client learns from a request, in a fixed order.
func (h *testServer) tells(ctx context.Context, r *lodgev1.ActRequest) string {
	var said []string
	note := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	if q, err := toRequest(r); err == nil {
		q.DryRun = true
		sc, done := h.server.restrict(ctx, &q)
		defer done()
		sum, err := h.server.Fleet.Run(ctx, sc, q, func(p fleet.Plan) { note("planned: %+v", p) }, func(r fleet.Result) {
			note("%s %s %v %s wave %d: %v %v", r.Name, r.UUID, r.Outcome, r.Note, r.Wave, fault.Of(r.Error), r.Error)
		})
		sum.Took = 0
		note("%+v: %v %v", sum, fault.Of(err), err)
	}
	list, err := h.server.ListGuests(ctx, &lodgev1.ListGuestsRequest{Select: r.GetSelect()})
	for _, g := range list.GetGuests() {
		note("listed %s", g.GetName())
	}
	note("%v", err)
	stats, err := h.server.Stats(ctx, &lodgev1.StatsRequest{Select: r.GetSelect()})
	for _, s := range stats.GetGuests() {
		note("sampled %s", s.GetName())
	}
	note("%v", err)
	slices.Sort(said)
	return strings.ReplaceAll(strings.Join(said, "\n"), h.server.Authorizer.File, "the rules")
}
