package target

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

// mover is a daemon that takes part in migrations. Every phase wants the cookie
// that the one before has given.
type mover struct {
	targettest.Daemon
	fails int32 // the procedure that it refuses; 0: none

	mu    sync.Mutex
	calls []string
}

// made are the phases that it went through.
func (m *mover) made() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

func (m *mover) answer(proc int32, args xdr.Message) (xdr.Message, error) {
	note := func(what string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.calls = append(m.calls, what)
	}
	refused := func(what string) error {
		note(what + " refused")
		return &remote.Error{Code: 9, Message: "no, " + what}
	}
	must := func(what, cookie, want string) error {
		if cookie != want {
			return refused(what + " with cookie " + cookie)
		}
		if m.fails == proc {
			return refused(what)
		}
		note(what)
		return nil
	}
	switch a := args.(type) {
	case *xdr.ConnectSupportsFeatureArgs:
		return &xdr.ConnectSupportsFeatureRet{Supported: m.fails != proc || a.Feature != featureParams}, nil
	case *xdr.DomainMigrateBegin3ParamsArgs:
		return &xdr.DomainMigrateBegin3ParamsRet{CookieOut: []byte("begun"), XML: "<domain/>"}, must("begin", "", "")
	case *xdr.DomainMigratePrepare3ParamsArgs:
		place := param(a.Params, "migrate_uri") + ":49152"
		if param(a.Params, "destination_xml") != "<domain/>" {
			return nil, refused("prepare without the guest")
		}
		return &xdr.DomainMigratePrepare3ParamsRet{CookieOut: []byte("prepared"), URIOut: &place}, must("prepare", string(a.CookieIn), "begun")
	case *xdr.DomainMigratePerform3ParamsArgs:
		if place := param(a.Params, "migrate_uri"); place != "tcp://127.0.0.1:49152" {
			return nil, refused("perform to " + place)
		}
		return &xdr.DomainMigratePerform3ParamsRet{CookieOut: []byte("performed")}, must("perform", string(a.CookieIn), "prepared")
	case *xdr.DomainMigrateFinish3ParamsArgs:
		if a.Cancelled {
			note("finish: cancelled")
			return nil, &remote.Error{Code: 1, Message: "cancelled"}
		}
		name := param(a.Params, "destination_name")
		return &xdr.DomainMigrateFinish3ParamsRet{CookieOut: []byte("finished"), Domain: xdr.Domain{Name: name, ID: 7}}, must("finish", string(a.CookieIn), "performed")
	case *xdr.DomainMigrateConfirm3ParamsArgs:
		if a.Cancelled {
			note("confirm: cancelled")
			return nil, nil
		}
		return nil, must("confirm", string(a.CookieIn), "finished")
	case *xdr.DomainGetJobStatsArgs:
		return &xdr.DomainGetJobStatsRet{Type: 1, Params: []xdr.TypedParam{
			{Field: "downtime", Value: xdr.Uint64(33)}, {Field: "time_elapsed", Value: xdr.Uint64(1500)}, {Field: "operation", Value: xdr.Int(5)},
		}}, nil
	}
	if proc == xdr.ProcDomainAbortJob {
		return nil, nil
	}
	return m.Answer(proc, args)
}

func param(params []xdr.TypedParam, name string) string {
	for _, p := range params {
		if p.Field == name {
			return p.Value.Text()
		}
	}
	return ""
}

// movers are a guest at one daemon, and another daemon.
func movers(t *testing.T, from, to *mover) (*Guest, *Target) {
	t.Helper()
	here, there := connectTo(t, remotetest.Listen(t, from.answer)), connectTo(t, remotetest.Listen(t, to.answer))
	plain := spec
	plain.Node = ""
	g, err := open(t, here).Start(t.Context(), "lab-abc-t1-db", 1, 1, plain)
	if err != nil {
		t.Fatal(err)
	}
	return g, there
}

// Promise: L30
func TestAGuestIsMovedInFivePhases(t *testing.T) {
	from, to := &mover{}, &mover{}
	g, there := movers(t, from, to)
	if err := g.at.Migrates(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	figures, err := g.Migrate(t.Context(), there)
	if err != nil || figures["downtime_s"] != 0.033 || figures["daemon_s"] != 1.5 || len(figures) != 2 {
		t.Fatalf("%v, %v", figures, err)
	}
	if !slices.Equal(from.made(), []string{"begin", "perform", "confirm"}) || !slices.Equal(to.made(), []string{"prepare", "finish"}) {
		t.Errorf("%v there %v", from.made(), to.made())
	}
	if err := g.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if calls := to.Calls(); len(calls) == 0 || calls[len(calls)-1] != "DOMAIN_DESTROY lab-abc-t1-db" {
		t.Errorf("the moved guest was not destroyed where it ran: %v", calls)
	}
	if calls := from.Calls(); !strings.HasPrefix(calls[len(calls)-1], "STORAGE_VOL_DELETE") {
		t.Errorf("its files were not deleted where they were made: %v", calls)
	}
}

// Promise: L30
func TestAMoveThatFailsLeavesTheGuest(t *testing.T) {
	for name, c := range map[string]struct {
		fails       int32
		there       bool
		here, other []string
	}{
		"prepare": {xdr.ProcDomainMigratePrepare3Params, true, []string{"begin"}, []string{"prepare refused"}},
		"perform": {xdr.ProcDomainMigratePerform3Params, false, []string{"begin", "perform refused"}, []string{"prepare", "finish: cancelled"}},
		"finish":  {xdr.ProcDomainMigrateFinish3Params, true, []string{"begin", "perform", "confirm: cancelled"}, []string{"prepare", "finish refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := &mover{}, &mover{}
			if c.there {
				to.fails = c.fails
			} else {
				from.fails = c.fails
			}
			g, there := movers(t, from, to)
			here := g.at
			_, err := g.Migrate(t.Context(), there)
			if refused, ok := errors.AsType[*remote.Error](err); !ok || refused.Message != "no, "+name {
				t.Errorf("got %v", err)
			}
			if g.at != here {
				t.Error("the guest is looked for where it is not")
			}
			if !slices.Equal(from.made(), c.here) || !slices.Equal(to.made(), c.other) {
				t.Errorf("%v there %v", from.made(), to.made())
			}
		})
	}
}

// Promise: L30
func TestADaemonThatDoesNotMigrateIsToldBeforehand(t *testing.T) {
	from, to := &mover{}, &mover{fails: xdr.ProcConnectSupportsFeature}
	g, there := movers(t, from, to)
	if err := g.at.Migrates(t.Context(), there); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "does not migrate guests") {
		t.Errorf("got %v", err)
	}
	if err := g.at.Migrates(t.Context(), g.at); !fault.Is(err, fault.Invalid) {
		t.Errorf("to itself: %v", err)
	}
}

func TestMemoryIsAddedUpToASize(t *testing.T) {
	d := &grower{}
	s := open(t, connectTo(t, remotetest.Listen(t, d.answer)))
	growing := spec
	growing.Node, growing.CPU, growing.MaxMemory = "", "", scenario.GiB
	g, err := s.Start(t.Context(), "lab-abc-t1-db", 1, 1, growing)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<maxMemory slots='16' unit='KiB'>1048576</maxMemory>", "<cpu><numa><cell id='0' cpus='0-3' memory='262144' unit='KiB'/></numa></cpu>", "swiotlb=512"} {
		if !strings.Contains(g.XML, want) {
			t.Errorf("the definition lacks %s:\n%s", want, g.XML)
		}
	}
	if err := g.Change(t.Context(), scenario.Event{Do: scenario.DoMemory, To: "512MiB"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(d.plugged, "<size unit='KiB'>262144</size>") {
		t.Errorf("plugged in: %s", d.plugged)
	}
	if err := g.Change(t.Context(), scenario.Event{Do: scenario.DoMemory, To: "256MiB"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("to less than there is: %v", err)
	}
}

// grower is a daemon with a guest of 256 MiB.
type grower struct {
	targettest.Daemon
	plugged string
}

func (d *grower) answer(proc int32, args xdr.Message) (xdr.Message, error) {
	switch a := args.(type) {
	case *xdr.DomainAttachDeviceFlagsArgs:
		d.plugged = a.XML
		return nil, nil
	}
	if proc == xdr.ProcDomainGetInfo {
		return &xdr.DomainGetInfoRet{MaxMemory: 256 << 10}, nil
	}
	return d.Answer(proc, args)
}
