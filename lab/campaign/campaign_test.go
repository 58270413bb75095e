package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/storm"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

const small = `schema: lodge.lab/1
name: small
profiles:
  mini: {memory: 64MiB}
  huge: {memory: 1024TiB}
steps: [{threads: 1}, {threads: 2}]
measure: 1s
guests:
  - {role: cpu, memory: $memory}
load:
  - {name: jobs, kind: mix-cpu, from: cpu, config: {users: $threads, megabytes: 1, interval: 200ms}}
`

// options are of a run of the small scenario at targets, with an image that
// nobody boots.
func options(t *testing.T, targets ...storm.Target) Options {
	t.Helper()
	dir := t.TempDir()
	scenario := filepath.Join(dir, "small.yaml")
	if err := os.WriteFile(scenario, []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{
		Scenario: scenario, Profile: "mini", Targets: targets, Dir: filepath.Join(dir, "run"), Images: filepath.Join(dir, "images"),
		Files: filepath.Join(dir, "files"), Seed: 7, Command: "lodge lab run", Version: "1",
	}
	putImage(t, o.Images, "sha256:one")
	return o
}

// putImage makes one that can be found.
func putImage(t *testing.T, cache, digest string) {
	t.Helper()
	dir := filepath.Join(cache, strings.TrimPrefix(digest, "sha256:"))
	facts := map[string]string{"kernel": "vmlinuz", "initrd": "initrd", "usr": "usr.erofs", "root": "root.raw", "digest": digest}
	text, err := json.Marshal(facts)
	failed := errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "image.json"), text, 0o644))
	for _, name := range []string{"vmlinuz", "initrd", "usr.erofs", "root.raw"} {
		failed = errors.Join(failed, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	_ = os.Remove(filepath.Join(cache, "current"))
	if failed = errors.Join(failed, os.Symlink(filepath.Base(dir), filepath.Join(cache, "current"))); failed != nil {
		t.Fatal(failed)
	}
}

func at(t *testing.T, name string, d *targettest.Daemon) storm.Target {
	t.Helper()
	return storm.Target{Name: name, Address: d.Listen(t)}
}

func load(t *testing.T, dir string) *record.Run {
	t.Helper()
	r, err := record.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func count(r *record.Run, kind record.Kind) (n int) {
	for _, e := range r.Events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// A daemon that is named twice and another one are measured in turns, and nothing
// is left at either.
// Promise: L42
func TestARunFromItsBeginningToItsEnd(t *testing.T) {
	one, other := &targettest.Daemon{}, &targettest.Daemon{}
	first := at(t, "first", one)
	o := options(t, first, storm.Target{Name: "again", Address: first.Address}, at(t, "other", other))
	o.Only = map[string][]string{"threads": {"1"}}
	o.Repetitions = 2
	told := 0
	o.Say = func(experiment.Progress) { told++ }
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r := load(t, o.Dir)
	if r.Outcome != record.Complete || count(r, record.Done) != 6 || told != 6 || count(r, record.Failed)+count(r, record.Skipped) > 0 {
		t.Errorf("%s, %d turns, %d told, events %+v", r.Outcome, count(r, record.Done), told, r.Events)
	}
	if want := []string{"only threads=1", "2 repetitions instead of 1"}; !slices.Equal(r.Deviations, want) {
		t.Errorf("it deviates in %q", r.Deviations)
	}
	if len(r.Targets) != 3 || r.Targets[1].URI != first.Address || r.Image.Digest != "sha256:one" || r.Scenario.Text != small {
		t.Errorf("its header is %+v", r.Header)
	}
	done := map[string]float64{}
	for _, s := range r.Samples {
		if s.Metric == record.MetricDone && s.Window > 0 {
			done[s.Arm] += s.Value
		}
	}
	for _, arm := range []string{"plain@first", "plain@again", "plain@other"} {
		if done[arm] == 0 {
			t.Errorf("%s did nothing: %v", arm, done)
		}
	}
	if left := append(one.Left(), other.Left()...); len(left) > 0 {
		t.Errorf("left at the daemons: %v", left)
	}
	if left, _ := os.ReadDir(o.Files); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	found, err := List(filepath.Dir(o.Dir))
	if err != nil || len(found) != 1 || found[0].Left || found[0].ID != r.ID {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := Run(t.Context(), o); err == nil {
		t.Error("a second run went into the same directory")
	}
}

// Promise: L42
func TestWhatCannotBeRunIsRefusedBeforeAnythingIsMade(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"scenario":    {func(o *Options) { o.Scenario = "none" }, "none"},
		"profile":     {func(o *Options) { o.Profile = "none" }, `no profile "none"`},
		"axis":        {func(o *Options) { o.Only = map[string][]string{"none": {"1"}} }, `no axis "none"`},
		"value":       {func(o *Options) { o.Only = map[string][]string{"threads": {"9"}} }, "no step"},
		"repetitions": {func(o *Options) { o.Repetitions = -1 }, "repetitions are -1"},
		"image":       {func(o *Options) { o.Images = o.Dir }, "no guest image"},
		"daemon":      {func(o *Options) { o.Targets[0].Address = o.Dir }, "target a"},
		"room":        {func(o *Options) { o.Profile = "huge" }, "of memory is available"},
	} {
		d := &targettest.Daemon{}
		o := options(t, at(t, "a", d))
		c.change(&o)
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(o.Dir); err == nil || len(d.Left()) > 0 {
			t.Errorf("%s: something was made: %v", what, d.Left())
		}
	}
}

// killed makes the record of a run that began at a daemon and was killed.
func killed(t *testing.T, o Options) {
	t.Helper()
	h := record.Header{
		ID: "lab-x", Started: time.Now().UTC(), Scenario: record.NewScenario("small", "", "mini", small), Image: record.Image{Digest: "sha256:one"},
		Targets: []record.Target{{Name: o.Targets[0].Name, URI: o.Targets[0].Address, Accelerator: "kvm"}},
		Plan: record.Plan{
			Arms: []record.Arm{{Name: "plain", Target: o.Targets[0].Name}}, Steps: []record.Step{{Name: "threads=1"}},
			Repetitions: 1, Windows: 1, Measure: 1, Turns: []record.Turn{{Arm: "plain", Repetition: 1, Step: "threads=1"}},
		},
	}
	w, err := record.Create(o.Dir, h)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	journal, err := experiment.OpenJournal(o.Dir)
	if err == nil {
		err = journal.Made(h.Targets[0])
	}
	if err = errors.Join(err, os.MkdirAll(filepath.Join(o.Files, h.ID, "1"), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func leavings() *targettest.Daemon {
	return &targettest.Daemon{
		Domains: []xdr.Domain{{Name: "lab-x-t1-cpu"}, {Name: "mine"}}, Pools: []xdr.StoragePool{{Name: "lab-x-1-files"}}, Nets: []xdr.Network{{Name: "lab-x-1"}},
	}
}

// Promise: L42
func TestCleanTakesBackWhatAKilledRunHasLeft(t *testing.T) {
	d := leavings()
	o := options(t, at(t, "a", d))
	killed(t, o)
	if found, err := List(filepath.Dir(o.Dir)); err != nil || len(found) != 1 || !found[0].Left {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := Clean(t.Context(), o.Dir, o.Files, unsaid(t)); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(o.Files); len(left) > 0 || !slices.Equal(d.Left(), []string{"domain mine"}) {
		t.Errorf("left: %v, %v", left, d.Left())
	}
	calls := len(d.Calls())
	if err := Clean(t.Context(), o.Dir, o.Files, unsaid(t)); err != nil || len(d.Calls()) != calls {
		t.Errorf("cleaned again: %v, %v", err, d.Calls()[calls:])
	}
}

// unsaid fails for settings that are left: the run has changed none.
func unsaid(t *testing.T) func(string) {
	return func(text string) { t.Errorf("told: %s", text) }
}

// A run that was done and could not take everything back is cleaned up after, too.
func TestCleanTakesBackWhatACompleteRunHasLeft(t *testing.T) {
	d := leavings()
	o := options(t, at(t, "a", d))
	killed(t, o)
	w, err := record.Resume(o.Dir)
	if err == nil {
		err = w.Seal(record.Complete)
	}
	if err == nil {
		err = Clean(t.Context(), o.Dir, o.Files, unsaid(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := load(t, o.Dir); r.Outcome != record.Complete || !slices.Equal(d.Left(), []string{"domain mine"}) {
		t.Errorf("%s, left %v", r.Outcome, d.Left())
	}
}

func TestARunThatGoesOnIsNotCleaned(t *testing.T) {
	d := leavings()
	o := options(t, at(t, "a", d))
	killed(t, o)
	w, err := record.Resume(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := Clean(t.Context(), o.Dir, o.Files, unsaid(t)); !fault.Is(err, fault.Busy) || len(d.Left()) != 4 {
		t.Errorf("%v, left %v", err, d.Left())
	}
}

func TestWhatCannotBeCleanedIsKeptForTheNextTime(t *testing.T) {
	o := options(t, storm.Target{Name: "a", Address: filepath.Join(t.TempDir(), "nobody")})
	killed(t, o)
	if err := Clean(t.Context(), o.Dir, o.Files, unsaid(t)); err == nil || !strings.Contains(err.Error(), "cannot take away all that lab-x has left") {
		t.Errorf("got %v", err)
	}
	journal, err := experiment.OpenJournal(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, left := journal.Left(); !left {
		t.Error("the journal has forgotten")
	}
}

func TestAKilledRunGoesOn(t *testing.T) {
	d := leavings()
	o := options(t, at(t, "a", d))
	killed(t, o)
	putImage(t, o.Images, "sha256:two")
	if err := Resume(t.Context(), o); !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "sha256:two") {
		t.Errorf("with another image: %v", err)
	}
	putImage(t, o.Images, "sha256:one")
	if err := Resume(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if r := load(t, o.Dir); r.Outcome != record.Complete || count(r, record.Done) != 1 {
		t.Errorf("%s with %d turns", r.Outcome, count(r, record.Done))
	}
	if !slices.Equal(d.Left(), []string{"domain mine"}) {
		t.Errorf("left: %v", d.Left())
	}
}

// Promise: L42
func TestARunThatIsToldToStopLeavesNothing(t *testing.T) {
	d := &targettest.Daemon{}
	o := options(t, at(t, "a", d))
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Say = func(experiment.Progress) { cancel(errors.New("told to stop")) }
	if err := Run(ctx, o); err == nil || !strings.Contains(err.Error(), "told to stop") {
		t.Errorf("got %v", err)
	}
	if r := load(t, o.Dir); r.Outcome != record.Interrupted || len(d.Left()) > 0 {
		t.Errorf("%s, left %v", r.Outcome, d.Left())
	}
}

// besideText is the small scenario with an arm outside of a guest.
var besideText = strings.Replace(small, "steps:", "arms: [{name: guest}, {name: native, native: true}]\nsteps:", 1)

// A daemon of another host has nothing to stand beside it outside of a guest: that is
// said, once for each turn, and its guests are measured.
// Promise: L46
func TestOfAnotherHostNothingIsRunOutsideOfAGuest(t *testing.T) {
	d := &targettest.Daemon{}
	o := options(t, at(t, "far", d))
	if err := os.WriteFile(o.Scenario, []byte(besideText), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r := load(t, o.Dir)
	for _, e := range r.Events {
		if e.Kind == record.Skipped && (e.Arm != "native" || e.What != record.WhatOutside || !strings.Contains(e.Text, "target far is on another host (big)")) {
			t.Errorf("skipped: %+v", e)
		}
	}
	if count(r, record.Skipped) != 2 || count(r, record.Done) != 4 || count(r, record.Failed) > 0 || len(r.Targets) != 1 {
		t.Errorf("%d turns are done and %d skipped: %+v", count(r, record.Done), count(r, record.Skipped), r.Events)
	}
	if left, _ := os.ReadDir(o.Files); len(left) > 0 || len(d.Left()) > 0 {
		t.Errorf("left: %v, %v", left, d.Left())
	}
}

// What a killed run leaves outside of guests is control groups and files.
// Promise: L46
func TestCleanTakesBackWhatWasOutsideOfGuests(t *testing.T) {
	var groups []string
	for _, tree := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		dir := filepath.Join(tree, "lodge-lab-lab-x-t1-cpu")
		if err := os.Mkdir(dir, 0o755); err == nil {
			groups = append(groups, dir)
			t.Cleanup(func() { _ = os.Remove(dir) })
			break
		}
	}
	o := options(t, at(t, "a", &targettest.Daemon{}))
	killed(t, o)
	journal, err := experiment.OpenJournal(o.Dir)
	if err == nil {
		err = errors.Join(journal.Forget(), journal.MadeOutside()) // and nothing at the daemon
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := Clean(t.Context(), o.Dir, o.Files, unsaid(t)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range groups {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	if left, _ := os.ReadDir(o.Files); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}
