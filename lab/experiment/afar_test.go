package experiment

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// farFake is a fake on another host.
type farFake struct {
	*fake
	unreached error // why guests do not answer the lab
	asked     int   // whether they do
}

func (f *farFake) Away() bool { return true }

func (f *farFake) HostCounters(context.Context) (map[string]float64, error) {
	return map[string]float64{"memory_available_bytes": 42, "cpu_user_s": float64(time.Now().Unix())}, nil
}

func (f *farFake) Reaches(context.Context, Guest) error { f.asked++; return f.unreached }

const farText = `schema: lodge.lab/1
name: small
profiles: {mini: {}}
arms: [{name: before, set: {nf: as-found}}, {name: after, set: {nf: "off"}}]
repetitions: 2
measure: 2s
host: {bridge-netfilter: $nf}
guests:
  - {role: web, count: 2, memory: 128MiB}
load:
  - {name: outside, kind: web, from: host, to: web, counted: requests, config: {address: "${web.address}"}}
`

// Loads from the host run beside guests that the lab does not reach, one guest for
// each tile, and the record says so once; the settings of this host are not touched,
// and the telemetry is what the daemon tells.
// Promise: L73, L74
func TestLoadsFromTheHostRunBesideGuestsThatAreNotReached(t *testing.T) {
	b := newBenchOf(t, farText)
	far := &farFake{fake: b.site, unreached: errors.New("no way there")}
	o := b.options()
	o.Sites = map[string]Site{"a": far}
	if err := Do(t.Context(), b.create(t), o); err != nil {
		t.Fatal(err)
	}
	r := b.load(t, b.dir)
	if !slices.Equal(r.Deviations, []string{Outside}) || far.asked != 1 {
		t.Errorf("asked %d times, it deviates in %q", far.asked, r.Deviations)
	}
	want := []string{"lab-x-t1-outside", "lab-x-t1-web", "lab-x-t2-outside", "lab-x-t2-web"}
	if got := slices.Sorted(slices.Values(b.site.booted)); !slices.Equal(slices.Compact(got), want) || len(b.site.booted) != 8 {
		t.Errorf("booted %q", b.site.booted)
	}
	if notes := events(r, record.Note); len(notes) != 1 || !strings.Contains(notes[0].Text, "no way there") {
		t.Errorf("told %+v", notes)
	}
	skipped := events(r, record.Skipped)
	if len(skipped) != 2 || !strings.Contains(skipped[0].Text, "settings of another host are not changed") || skipped[0].Arm != "after" {
		t.Errorf("skipped %+v", skipped)
	}
	for _, value := range values(r, record.MetricDone) {
		if value != 20 {
			t.Errorf("%v done in a window", value)
		}
	}
	if sent, served := values(r, record.MetricSent), values(r, record.MetricServed); len(sent) != 4 || !slices.Equal(sent, served) {
		t.Errorf("sent %v, served %v", sent, served)
	}
	told := 0
	for _, line := range r.Telemetry {
		if line.Source != "host" {
			continue
		}
		if told++; line.Values["memory_available_bytes"] != 42 || len(line.Values) > 3 {
			t.Errorf("the host does %v", line.Values)
		}
	}
	if told == 0 {
		t.Error("nothing is told of the host")
	}
}

// Promise: L73
func TestALoadFromTheHostStaysThereWhereGuestsAnswer(t *testing.T) {
	b := newBenchOf(t, strings.Replace(farText, "kind: web", "kind: none-of-these", 1))
	far := &farFake{fake: b.site}
	o := b.options()
	o.Sites = map[string]Site{"a": far}
	if err := Do(t.Context(), b.create(t), o); err != nil {
		t.Fatal(err)
	}
	r := b.load(t, b.dir)
	if len(r.Deviations) > 0 || len(b.site.booted) != 4 {
		t.Errorf("booted %q, it deviates in %q", b.site.booted, r.Deviations)
	}
	for _, e := range events(r, record.Failed) {
		if !strings.Contains(e.Text, `"none-of-these"`) { // which the lab itself does not know
			t.Errorf("%+v", e)
		}
	}
}

// Promise: L73
func TestGuestsForLoadsFromTheHostMustFit(t *testing.T) {
	room := Room{Memory: reserve + 2*(128+120)*scenario.MiB, Disk: scenario.TiB, Processors: 8}
	if _, err := Fit(newBenchOf(t, farText).plan, room, false); err != nil {
		t.Error(err)
	}
	room.Afar = true
	if _, err := Fit(newBenchOf(t, farText).plan, room, false); !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "2 × outside") {
		t.Errorf("got %v", err)
	}
}
