package target

import (
	"errors"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

// The daemon's host has two nodes with a hundred huge pages each.
// Promise: L33
func TestWhatGuestsWantAndAHostLacksIsKnownBeforehand(t *testing.T) {
	db := func(change func(*scenario.Guest)) scenario.Guest {
		g := scenario.Guest{Role: "db", Count: 1, Memory: 100 * scenario.MiB}
		change(&g)
		return g
	}
	huge := func(g *scenario.Guest) { g.Pages = "2MiB" }
	for _, c := range []struct {
		what        string
		accelerator string
		guests      []scenario.Guest
		want        string
	}{
		{"nothing", "tcg", []scenario.Guest{db(func(*scenario.Guest) {})}, ""},
		{"enough pages", "tcg", []scenario.Guest{db(huge), db(huge)}, ""},
		{"pages of two nodes", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { huge(g); g.Count = 4 })}, ""},
		{"too many pages", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { huge(g); g.Count = 3 }), {Role: "web", Count: 2, Memory: 51 * scenario.MiB, Pages: "2MiB"}}, "202 huge pages of 2 MiB are wanted (db 150, web 52), and 200 are free on the host"},
		{"too many of a node", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { huge(g); g.Count, g.Node = 3, "1" })}, "150 huge pages of 2 MiB are wanted (db 150), and 100 are free on node 1"},
		{"spread over nodes", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { huge(g); g.Count, g.Node = 4, "spread" })}, ""},
		{"no such node", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { g.Node = "7" })}, "no node 7"},
		{"of none nobody is bound", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { g.Node, g.Count = "7", 0 })}, ""},
		{"own processor", "kvm", []scenario.Guest{db(func(g *scenario.Guest) { g.CPU = "host-passthrough" })}, ""},
		{"none of its own", "tcg", []scenario.Guest{db(func(g *scenario.Guest) { g.CPU = "host-passthrough" })}, "only KVM can give it"},
	} {
		d := &targettest.Daemon{Pages: 100}
		target := connect(t, d)
		target.Accelerator = c.accelerator
		err := target.Lacks(t.Context(), c.guests)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if skipped, ok := errors.AsType[*Skipped](err); c.want != "" && (!ok || !strings.Contains(skipped.Reason, c.want)) {
			t.Errorf("%s: %v", c.what, err)
		}
		if calls := d.Calls(); len(calls) > 0 {
			t.Errorf("%s: it made %v", c.what, calls)
		}
	}
	refusing := &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcNodeGetFreePages: {Code: 38, Message: "page size 1048576 is not available on node 0"}}}
	err := connect(t, refusing).Lacks(t.Context(), []scenario.Guest{db(func(g *scenario.Guest) { g.Pages = "1GiB" })})
	if skipped, ok := errors.AsType[*Skipped](err); !ok || !strings.Contains(skipped.Reason, "no huge pages of 1 GiB: page size 1048576") {
		t.Errorf("a size that there is not: %v", err)
	}
}
