package campaign

import (
	"os"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/storm"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

// A run at a daemon of another host has that host's facts, and leaves nothing at it.
func TestARunAtAnotherHost(t *testing.T) {
	d := &targettest.Daemon{}
	o := options(t, storm.Target{Name: "far", Address: d.ListenAfar(t)})
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r := load(t, o.Dir)
	if r.Outcome != record.Complete || count(r, record.Failed) > 0 || count(r, record.Skipped) > 0 {
		t.Errorf("%s: %+v", r.Outcome, r.Events)
	}
	if h := r.Host; h.Processors != 4 || h.Memory != 8<<30 || h.Kernel != "" || h.Settings != nil {
		t.Errorf("the facts are of another host: %+v", h)
	}
	if left := d.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := os.Stat(o.Files); err == nil {
		t.Error("the directory of the other host was made on this one")
	}
}

// Promise: L74
func TestDaemonsOfARunAreOnOneHost(t *testing.T) {
	here, there := &targettest.Daemon{}, &targettest.Daemon{Hostname: "another"}
	for name, c := range map[string]struct {
		targets []storm.Target
		says    string
	}{
		"here and there": {[]storm.Target{at(t, "here", here), {Name: "far", Address: there.ListenAfar(t)}}, "here is reached by a socket of this host and far is not"},
		"two others":     {[]storm.Target{{Name: "one", Address: here.ListenAfar(t)}, {Name: "two", Address: there.ListenAfar(t)}}, "one is on host big and two on another"},
	} {
		o := options(t, c.targets...)
		if err := Run(t.Context(), o); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(o.Dir); err == nil {
			t.Errorf("%s: a record was made", name)
		}
	}
	if err := CleanImages(t.Context(), at(t, "here", here).Address, "/srv"); !fault.Is(err, fault.Invalid) {
		t.Errorf("images of a daemon of this host: %v", err)
	}
}
