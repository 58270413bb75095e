package lab

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
)

// daemon remembers domains and starts none. It is asked by one client at a time.
type daemon struct {
	t       *testing.T
	domains map[string]bool // runs
	most    int             // that ran at once
	before  func(proc int32) error
}

func newDaemon(t *testing.T) *daemon {
	return &daemon{t: t, domains: map[string]bool{"somebody-elses": true}, before: func(int32) error { return nil }}
}

func (d *daemon) answer(proc int32, args xdr.Message) (xdr.Message, error) {
	if err := d.before(proc); err != nil {
		return nil, err
	}
	switch proc {
	case xdr.ProcAuthList:
		return &xdr.AuthListRet{}, nil
	case xdr.ProcConnectOpen:
		return nil, nil
	case xdr.ProcConnectGetLibVersion:
		return &xdr.WithVersion{Version: 9000001}, nil
	case xdr.ProcConnectGetVersion:
		return &xdr.WithVersion{Version: 7002022}, nil
	case xdr.ProcConnectListAllDomains:
		return &xdr.ConnectListAllDomainsRet{Domains: make([]xdr.Domain, len(d.domains)), Count: uint32(len(d.domains))}, nil
	case xdr.ProcDomainLookupByName:
		name := args.(*xdr.DomainLookupByNameArgs).Name
		if _, exists := d.domains[name]; !exists {
			return nil, &remote.Error{Code: 42, Domain: 10, Message: "no domain with that name"}
		}
		return &xdr.DomainLookupByNameRet{Domain: xdr.Domain{Name: name}}, nil
	case xdr.ProcDomainDefineXML:
		_, rest, _ := strings.Cut(args.(*xdr.DomainDefineXMLArgs).XML, "<name>")
		name, _, _ := strings.Cut(rest, "</name>")
		if running, exists := d.domains[name]; exists {
			d.t.Errorf("domain %s is defined again while it is there, running %v", name, running)
		}
		d.domains[name] = false
		return &xdr.DomainDefineXMLRet{Domain: xdr.Domain{Name: name}}, nil
	}
	return d.act(proc, args)
}

// act is what is done to a domain that is there.
func (d *daemon) act(proc int32, args xdr.Message) (xdr.Message, error) {
	var domain xdr.Domain
	switch args := args.(type) {
	case *xdr.DomainCreateWithFlagsArgs: // also that of undefine
		domain = args.Domain
	case *xdr.DomainDestroyArgs:
		domain = args.Domain
	}
	running, exists := d.domains[domain.Name]
	if !exists {
		d.t.Errorf("call %d on domain %q, which is not there", proc, domain.Name)
	}
	switch proc {
	case xdr.ProcDomainCreateWithFlags:
		if flags := args.(*xdr.DomainCreateWithFlagsArgs).Flags; running || flags != startPaused {
			d.t.Errorf("start of %s with flags %d, running %v", domain.Name, flags, running)
		}
		d.domains[domain.Name] = true
		d.most = max(d.most, d.running())
		return &xdr.DomainCreateWithFlagsRet{Domain: domain}, nil
	case xdr.ProcDomainDestroy:
		if !running {
			return nil, &remote.Error{Code: 55, Domain: 10, Message: "domain is not running"}
		}
		d.domains[domain.Name] = false
		return nil, nil
	case xdr.ProcDomainUndefineFlags:
		if running {
			d.t.Errorf("undefine of %s, which runs", domain.Name)
		}
		delete(d.domains, domain.Name)
		return nil, nil
	}
	d.t.Errorf("nobody needs call %d", proc)
	return nil, &remote.Error{Code: 3, Domain: 7, Message: "unknown procedure"}
}

func (d *daemon) running() (n int) {
	for running := range maps.Values(d.domains) {
		if running {
			n++
		}
	}
	return n
}

// leftAlone fails when a domain of the lab's is left, or one of others is not.
func (d *daemon) leftAlone() {
	d.t.Helper()
	if names := slices.Collect(maps.Keys(d.domains)); !slices.Equal(names, []string{"somebody-elses"}) || !d.domains["somebody-elses"] {
		d.t.Errorf("afterwards there are %v", d.domains)
	}
}

func (d *daemon) measure(ctx context.Context) (*Run, error) {
	return Measure(ctx, Options{
		Address: remotetest.Listen(d.t, d.answer), Name: "tested", Command: "go test", Samples: 3, Guests: []int{2, 5},
		Log: slog.New(slog.DiscardHandler),
	})
}

func TestMeasure(t *testing.T) {
	d := newDaemon(t)
	run, err := d.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.leftAlone()
	for _, metric := range []Metric{StartGuest, EndGuest, DefineDisks, UndefineDisks} {
		if values := run.Values(metric, ByDaemon, 0); len(values) != 3 || slices.Min(values) <= 0 {
			t.Errorf("%s: %v", metric, values)
		}
		if values := run.Values(metric, ByBare, 0); values != nil {
			t.Errorf("%s without the daemon: %v, which was not asked for", metric, values)
		}
	}
	for _, guests := range []int{0, 2, 5} {
		for _, metric := range []Metric{Resident, Private, Threads} {
			if values := run.Values(metric, ByDaemon, guests); len(values) != 1 || values[0] <= 0 {
				t.Errorf("%s with %d guests: %v", metric, guests, values)
			}
		}
	}
	if d.most != 5+1 { // and that of somebody else
		t.Errorf("at most %d guests ran at once", d.most)
	}
	want := Server{Process: run.Server.Process, Library: "9.0.1", Hypervisor: "7.2.22", Domains: 1}
	if run.Server != want || run.Name != "tested" || run.Skipped != nil {
		t.Errorf("server %+v, name %s, skipped %v", run.Server, run.Name, run.Skipped)
	}
}

func TestWhatADaemonLacksIsSkippedWithItsReason(t *testing.T) {
	d := newDaemon(t)
	d.before = func(proc int32) error {
		if proc == xdr.ProcDomainCreateWithFlags {
			return &remote.Error{Code: 3, Domain: 7, Message: "unknown procedure: 196"}
		}
		return nil
	}
	run, err := d.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.leftAlone()
	if len(run.Values(DefineDisks, ByDaemon, 0)) != 3 {
		t.Error("definitions were not measured, although they work")
	}
	var what []string
	for _, s := range run.Skipped {
		what = append(what, s.What)
		if !strings.Contains(s.Reason, "unknown procedure: 196") {
			t.Errorf("%s is skipped because %s", s.What, s.Reason)
		}
	}
	if !slices.Equal(what, []string{"starts", "memory"}) {
		t.Errorf("skipped %v", what)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	for name, fail := range map[string]struct {
		proc  int32
		after int // calls that succeed
	}{
		"first start": {xdr.ProcDomainCreateWithFlags, 0},
		"many run":    {xdr.ProcDomainCreateWithFlags, warmUps + 3 + 4},
		"destroy":     {xdr.ProcDomainDestroy, 1},
		"undefine":    {xdr.ProcDomainUndefineFlags, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			calls := 0
			d.before = func(proc int32) error {
				if proc != fail.proc {
					return nil
				}
				if calls++; calls == fail.after+1 {
					return &remote.Error{Code: 1, Domain: 10, Message: "broken on purpose"}
				}
				return nil
			}
			if _, err := d.measure(t.Context()); err == nil || !strings.Contains(err.Error(), "broken on purpose") {
				t.Errorf("got %v", err)
			}
			d.leftAlone()
		})
	}
}

// Whoever interrupts does so during a call, whose answer nobody takes any more.
func TestNothingIsLeftBehindAfterAnInterrupt(t *testing.T) {
	for name, proc := range map[string]int32{
		"define": xdr.ProcDomainDefineXML, "start": xdr.ProcDomainCreateWithFlags, "destroy": xdr.ProcDomainDestroy,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			d.before = func(called int32) error {
				if called == proc {
					cancel(enough)
				}
				return nil
			}
			if _, err := d.measure(ctx); !errors.Is(err, enough) {
				t.Errorf("got %v", err)
			}
			d.leftAlone()
		})
	}
}
