package storm

import (
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
)

// afar is the fake as a daemon of another host.
func (f *fake) afar() Target {
	socket := remotetest.Listen(f.t, f.answer)
	return Target{Name: f.name, Address: "qemu+tcp://127.0.0.1:" + remotetest.Gate(f.t, socket, remotetest.Open) + "/system"}
}

// What wants the daemon's process is said not to be measured, and the rest is; the
// facts are those of the daemon's host, and the guests' disks are volumes there.
// Promise: L71
func TestADaemonOfAnotherHost(t *testing.T) {
	f := newFake(t, "far")
	o := options(t, []Step{{Start, 2, 0}, {Start, 2, 1}, {Define, 2, 1}, {Adopt, 2, 0}}, f.afar())
	run, err := do(t.Context(), t, o)
	if err != nil {
		t.Fatal(err)
	}
	f.leftAlone()
	if run.Host.Processors != 40 || run.Host.Processor != "AMD EPYC" || run.Host.Memory != f.memory || run.Host.Kernel != "" {
		t.Errorf("the host's facts are %+v", run.Host)
	}
	said := map[Scenario]string{}
	for _, s := range run.Skipped {
		said[s.Scenario] += s.Reason + "\n"
	}
	for scenario, wants := range map[Scenario][]string{
		Start: {"only a local socket tells the daemon's process"}, Adopt: {"not killed"}, Define: nil,
	} {
		for _, want := range wants {
			if !strings.Contains(said[scenario], want) {
				t.Errorf("%s: nothing of %q in %q", scenario, want, said[scenario])
			}
		}
		if wants == nil && said[scenario] != "" {
			t.Errorf("%s: %s", scenario, said[scenario])
		}
	}
	var measured []string
	for _, s := range run.Samples {
		if s.Metric == MetricResident {
			t.Errorf("memory of a process that is not known: %+v", s)
		}
		measured = append(measured, string(s.Scenario)+" "+string(s.Metric))
	}
	calls, found := map[string]int{}, false
	for _, call := range f.pools.Calls() {
		verb, name, _ := strings.Cut(call, " ")
		calls[verb]++
		found = found || strings.Contains(run.Documents[1].XML, "-far/"+name+"'")
	}
	// Disks of two guests, and of spares.
	if want := 2 + spares; !found || calls["STORAGE_VOL_CREATE_XML"] != want || calls["STORAGE_VOL_DELETE"] != want || calls["STORAGE_POOL_DELETE"] != 1 {
		t.Errorf("disks: %v, where guests look for them: %s", f.pools.Calls(), run.Documents[1].XML)
	}
	for _, want := range []string{"start start", "define define"} {
		if !slices.Contains(measured, want) {
			t.Errorf("%s is not measured: there are %v", want, measured)
		}
	}
}

// Promise: L71
func TestAnotherHostMustCarryItsGuests(t *testing.T) {
	f := newFake(t, "far")
	f.memory = 2 << 30
	run, err := do(t.Context(), t, options(t, []Step{{Start, 20, 0}}, f.afar()))
	if err != nil || len(run.Samples) > 0 || len(run.Skipped) != 1 || !strings.Contains(run.Skipped[0].Reason, "20 guests of 100 MiB") {
		t.Errorf("%v: %+v", err, run)
	}
	f.leftAlone()
}

// Promise: L71
func TestWhatAnotherHostCannotBeAskedIsRefusedFirst(t *testing.T) {
	f := newFake(t, "far")
	f.before = func(proc int32, _ string) error { t.Errorf("it was asked %d", proc); return nil }
	o := options(t, []Step{{Start, 1, 0}}, f.afar())
	o.Direct = true
	if _, err := do(t.Context(), t, o); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "without a daemon on this host only") {
		t.Errorf("direct: %v", err)
	}
	o = options(t, []Step{{Start, 1, 0}}, Target{Name: "odd", Address: "qemu+ext:///system"})
	if _, err := do(t.Context(), t, o); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "target odd") {
		t.Errorf("an unknown transport: %v", err)
	}
}

// Promise: L71
func TestHostsAreNotMixed(t *testing.T) {
	a, b := newFake(t, "a"), newFake(t, "b")
	b.host = "there"
	if _, err := do(t.Context(), t, options(t, []Step{{Start, 1, 0}}, a.target(), b.afar())); err == nil || !strings.Contains(err.Error(), "values of hosts that differ are not compared") {
		t.Errorf("got %v", err)
	}
}
