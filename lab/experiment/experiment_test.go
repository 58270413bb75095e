package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

func TestArmsStandSideBySideAndTakeTurnsInBeingFirst(t *testing.T) {
	b := newBench(t)
	turns := Describe(b.plan, []string{"a", "b"}, 7).Turns
	if len(turns) != 4*2*2 {
		t.Fatalf("%d turns", len(turns))
	}
	firsts := map[string][]string{}
	for i := 0; i < len(turns); i += 4 {
		seen := map[string]bool{}
		for _, turn := range turns[i : i+4] {
			if turn.Step != turns[i].Step || turn.Repetition != turns[i].Repetition || seen[turn.Arm] {
				t.Errorf("turn %v is not among those of %v", turn, turns[i])
			}
			seen[turn.Arm] = true
		}
		firsts[turns[i].Step] = append(firsts[turns[i].Step], turns[i].Arm)
		// The next time all goes backwards.
		if back := turns[len(turns)-1-i]; i < 8 && (turns[i].Arm != back.Arm || turns[i].Step != back.Step) {
			t.Errorf("%v is first, and not last the next time: that is %v", turns[i], back)
		}
	}
	seen := map[string]bool{}
	for seed := range uint64(16) {
		seen[Describe(b.plan, []string{"a", "b"}, seed).Turns[0].Step] = true
	}
	if len(seen) != 2 {
		t.Errorf("of two steps, %v come first in sixteen runs", seen)
	}
	again := Describe(b.plan, []string{"a", "b"}, 7).Turns
	for i := range turns {
		if turns[i] != again[i] {
			t.Fatal("the same seed gives another order")
		}
	}
}

func TestARunIsMeasuredWindowByWindow(t *testing.T) {
	b := newBench(t)
	r := b.do(t)
	if r.Outcome != record.Complete || len(events(r, record.Done)) != 8 {
		t.Fatalf("%s with %d turns", r.Outcome, len(events(r, record.Done)))
	}
	for _, kind := range []record.Kind{record.Failed, record.Bad, record.Skipped} {
		if found := events(r, kind); len(found) > 0 {
			t.Errorf("%s: %+v", kind, found)
		}
	}
	// Twelve loads of two windows with five seconds, and a warm-up that never counts.
	done := values(r, record.MetricDone)
	if len(done) != 24 {
		t.Errorf("%d windows", len(done))
	}
	for _, value := range done {
		if value != 50 {
			t.Errorf("%v done in a window", value)
		}
	}
	for _, value := range values(r, record.MetricRate) {
		if value != 10 {
			t.Errorf("%v a second", value)
		}
	}
	for _, value := range values(r, "latency.p99") {
		if value < 0.0019 || value > 0.0021 {
			t.Errorf("%v s", value)
		}
	}
	sent, served := values(r, record.MetricSent), values(r, record.MetricServed)
	if len(sent) != 12 || sent[0] != 130 || served[0] != 130 {
		t.Errorf("sent %v, served %v", sent, served)
	}
	if b.site.opened != 1 || b.site.closed != 1 {
		t.Errorf("opened %d times, closed %d times", b.site.opened, b.site.closed)
	}
	if text, err := r.Command("before tiles=1 1 lab-x-t1-web.xml"); err != nil || text != "<domain/>" {
		t.Errorf("%q, %v", text, err)
	}
}

// Promise: L22
func TestErrorsAreNoThroughputAndBooksMustAgree(t *testing.T) {
	b := newBench(t)
	b.site.errors = 3
	b.site.count = func(done, _ int64) int64 { return done + 1 } // one of those that failed was served
	r := b.do(t)
	for _, value := range values(r, record.MetricRate) {
		if value != 10 {
			t.Errorf("%v a second of 10 that went well", value)
		}
	}
	if value := values(r, record.MetricErrors)[0]; value != 15 {
		t.Errorf("%v errors", value)
	}
	for _, e := range events(r, record.Bad) {
		if e.What != "bound" {
			t.Errorf("%+v", e)
		}
	}
	if len(events(r, record.Bad)) != 24 {
		t.Errorf("%d windows break the bound of no errors", len(events(r, record.Bad)))
	}

	b = newBench(t)
	b.site.count = func(done, _ int64) int64 { return done - 1 }
	found := events(b.do(t), record.Bad)
	if len(found) != 12 || found[0].What != "books" || !strings.Contains(found[0].Text, "130 done and 0 failed, the server 117") {
		t.Errorf("%d: %+v", len(found), found)
	}
}

// Promise: L21
func TestAGuestThatDoesNotBootIsSaidAndTheRunGoesOn(t *testing.T) {
	b := newBench(t)
	b.site.boot = func(s Spec) error {
		if s.Tile == 2 && s.Role == "web" {
			return errors.New("its agent does not answer")
		}
		return nil
	}
	r := b.do(t)
	failed, skipped := events(r, record.Failed), events(r, record.Skipped)
	if len(failed) != 4 || failed[0].What != "boot" || failed[0].Guest != "lab-x-t2-web" {
		t.Errorf("failed: %+v", failed)
	}
	if len(skipped) != 4 || !strings.Contains(skipped[0].Text, "web is not there") {
		t.Errorf("skipped: %+v", skipped)
	}
	if n := len(values(r, record.MetricDone)); n != 16 || r.Outcome != record.Complete {
		t.Errorf("%d windows of the first tile, %s", n, r.Outcome)
	}
}

// Promise: L21
func TestAServiceThatDiesIsSaid(t *testing.T) {
	b := newBench(t)
	b.site.errors = 7 // what it was asked after its death
	b.site.count = func(done, _ int64) int64 { return done }
	b.site.dead = func(name string) error {
		if name == "lab-x-t1-web" {
			return errors.New("nginx does not run in it; its log ends: bus error")
		}
		return nil
	}
	r := b.do(t)
	var said []record.Event
	for _, e := range events(r, record.Failed) {
		if e.What == "service" {
			said = append(said, e)
		}
	}
	if len(said) != 8 || said[0].Guest != "lab-x-t1-web" || !strings.Contains(said[0].Text, "bus error") {
		t.Errorf("%d: %+v", len(said), said)
	}
	// Its log is there still, and agrees with what was done before.
	if sent, served := values(r, record.MetricSent), values(r, record.MetricServed); len(sent) != 12 || !slices.Equal(sent, served) {
		t.Errorf("sent %v, served %v", sent, served)
	}
	if rates := values(r, record.MetricRate); rates[0] != 10 || r.Outcome != record.Complete {
		t.Errorf("%s with rates %v", r.Outcome, rates)
	}
}

// Promise: L21
func TestAGuestThatIsLostIsSaidOnce(t *testing.T) {
	b := newBench(t)
	b.site.dead = func(name string) error {
		if name == "lab-x-t2-web" {
			return fault.New(fault.Unresponsive, fault.Agent, "the guest is lost")
		}
		return nil
	}
	r := b.do(t)
	if failed := events(r, record.Failed); len(failed) != 4 || failed[0].Guest != "lab-x-t2-web" {
		t.Errorf("failed: %+v", failed)
	}
	// Nobody asks it what it has counted.
	if sent := values(r, record.MetricSent); len(sent) != 8 || r.Outcome != record.Complete {
		t.Errorf("%s, sent %v", r.Outcome, sent)
	}
}

// What a daemon that died could not do is no result.
// Promise: L21
func TestATurnThatLosesItsDaemonIsDoneAgain(t *testing.T) {
	b := newBench(t)
	boots := 0
	b.site.boot = func(Spec) error {
		if boots++; boots > 3 { // the second guest of the second turn
			b.site.lost = errors.New("connection closed")
		}
		return b.site.lost
	}
	err := Do(t.Context(), b.create(t), b.options())
	if !fault.Is(err, fault.Unresponsive) || !strings.Contains(err.Error(), "its daemon is lost amid step tiles=") {
		t.Errorf("got %v", err)
	}
	if r := b.load(t, b.dir); r.Outcome != record.Interrupted || len(events(r, record.Done)) != 1 {
		t.Errorf("%s with %d turns", r.Outcome, len(events(r, record.Done)))
	}
	b.site.boot, b.site.lost = nil, nil
	again, err := record.Resume(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Do(t.Context(), again, b.options()); err != nil {
		t.Fatal(err)
	}
	r := b.load(t, b.dir)
	booted := 0
	for _, s := range r.Samples {
		if s.Metric == record.MetricBoot {
			booted++
		}
	}
	if r.Outcome != record.Complete || len(events(r, record.Done)) != 8 || booted != 24 {
		t.Errorf("resumed it is %s with %d turns and %d guests that booted", r.Outcome, len(events(r, record.Done)), booted)
	}
}

// A daemon that does not answer is not waited for as often as it has guests.
// Promise: L42
func TestADaemonThatDoesNotAnswerIsNotAskedForEachGuest(t *testing.T) {
	b := newBenchOf(t, strings.Replace(text, "[{tiles: 1}, {tiles: 2}]", "[{tiles: 8}]", 1))
	asked := 0
	b.site.stop = func() error {
		asked++
		return fault.New(fault.Timeout, fault.Call, "no answer")
	}
	o := b.options()
	o.Booting = 1 // and so two are destroyed at once
	err := Do(t.Context(), b.create(t), o)
	if !fault.Is(err, fault.Unresponsive) || !strings.Contains(err.Error(), "guests of the turn are left") || asked > 2 {
		t.Errorf("%v, and was asked %d times", err, asked)
	}
	if r, err := record.Load(b.dir); err != nil || r.Outcome != record.Interrupted || b.setting(t) != "1" {
		t.Errorf("%v: it is %s, and the host's setting %s", err, r.Outcome, b.setting(t))
	}
}

func TestWhatASiteDoesNotDoIsSkipped(t *testing.T) {
	b := newBench(t)
	b.site.boot = func(Spec) error { return &Unavailable{"no such bus"} }
	r := b.do(t)
	if len(events(r, record.Failed)) != 0 || len(events(r, record.Skipped)) == 0 || r.Outcome != record.Complete {
		t.Errorf("%s: %+v", r.Outcome, r.Events)
	}
}

// What can be known to be missing is told before anything is made or changed for it.
// Promise: L33
func TestWhatAHostLacksIsSkippedBeforeAnythingIsMade(t *testing.T) {
	b := newBench(t)
	b.site.lacks = func(guests []scenario.Guest) error {
		if guests[0].Role != "web" || b.site.opened > 0 || b.setting(t) != "1" {
			t.Errorf("asked about %+v with the site open %d times and a setting at %s", guests, b.site.opened, b.setting(t))
		}
		return &Unavailable{"192 huge pages are wanted, and 0 are free"}
	}
	r := b.do(t)
	skipped := events(r, record.Skipped)
	if len(skipped) != 8 || !strings.Contains(skipped[0].Text, "192 huge pages") || len(events(r, record.Failed)) > 0 || r.Outcome != record.Complete {
		t.Errorf("%s: %+v", r.Outcome, r.Events)
	}
	if b.site.opened > 0 || len(b.site.booted) > 0 {
		t.Errorf("opened %d times, booted %v", b.site.opened, b.site.booted)
	}
	b = newBench(t)
	b.site.lacks = func([]scenario.Guest) error { return errors.New("connection closed") }
	if err := Do(t.Context(), b.create(t), b.options()); err == nil || !strings.Contains(err.Error(), "connection closed") {
		t.Errorf("a daemon that is lost: %v", err)
	}
	if r := b.load(t, b.dir); r.Outcome != record.Interrupted || len(events(r, record.Done)) > 0 {
		t.Errorf("%s with %d turns", r.Outcome, len(events(r, record.Done)))
	}
}

// Promise: L36
func TestSettingsAreOtherOnlyInTheirArm(t *testing.T) {
	b := newBench(t)
	seen := map[string]bool{}
	b.site.boot = func(s Spec) error { seen[b.setting(t)] = true; return nil }
	r := b.do(t)
	if !seen["0"] || !seen["1"] {
		t.Errorf("values seen: %v", seen)
	}
	if changes := events(r, record.Change); len(changes) != 4 || changes[0].Arm != "after" {
		t.Errorf("%+v", changes)
	}
}

func TestAStepMayNameADevice(t *testing.T) {
	b := newBenchOf(t, strings.Replace(text, "{tiles: 2}]", "{tiles: 2, store: /dev/loop0}]", 1))
	r := b.do(t)
	if len(events(r, record.Done)) != 8 || r.Outcome != record.Complete {
		t.Errorf("%s, %d turns", r.Outcome, len(events(r, record.Done)))
	}
	if text, err := r.Command("before store=-dev-loop0 tiles=2 1 lab-x-t1-web.xml"); err != nil || text != "<domain/>" {
		t.Errorf("its definition is %q, %v", text, err)
	}
}

// A device that comes with a guest's disk is on the host only once the guest is: its
// settings are those of the turn too, and are put back.
// Promise: L53
func TestSettingsOfWhatComesWithAGuestArePutBack(t *testing.T) {
	b := newBench(t)
	late := filepath.Join(b.root, filepath.Dir(setting), "bridge-nf-call-arptables")
	if err := os.Remove(late); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		text, err := os.ReadFile(late)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(text))
	}
	b.site.boot = func(Spec) error {
		if _, err := os.Stat(late); err == nil {
			return nil
		}
		return os.WriteFile(late, []byte("1\n"), 0o644)
	}
	var mu sync.Mutex
	seen := map[string]bool{}
	b.site.count = func(done, errors int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		seen[b.setting(t)+read()] = true
		return done + errors
	}
	b.do(t)
	if len(seen) != 2 || !seen["00"] || !seen["11"] {
		t.Errorf("while loads went, both were %v", seen)
	}
	if read() != "1" {
		t.Errorf("it is left at %s", read())
	}
}

// What this host lacks of a setting is told, and so is that it was found as wanted.
// Promise: L36
func TestWhatATuningDoesNotChangeIsTold(t *testing.T) {
	b := newBench(t)
	if err := os.Remove(b.root + "/proc/sys/net/bridge/bridge-nf-call-ip6tables"); err != nil {
		t.Fatal(err)
	}
	r := b.do(t)
	if skipped := events(r, record.Skipped); len(skipped) != 4 || skipped[0].Text != "of bridge-netfilter=off: proc/sys/net/bridge/bridge-nf-call-ip6tables is not there" {
		t.Errorf("skipped: %+v", skipped)
	}
	if n := len(values(r, record.MetricDone)); n != 24 {
		t.Errorf("%d windows: a part of a setting holds up nothing", n)
	}
	b = newBench(t)
	for _, row := range b.plan.Setups {
		for _, u := range row {
			u.Host = map[string]string{"bridge-netfilter": "on"}
		}
	}
	for _, name := range []string{"ip6tables", "arptables"} {
		if err := os.WriteFile(b.root+"/proc/sys/net/bridge/bridge-nf-call-"+name, []byte("1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if notes := events(b.do(t), record.Note); len(notes) != 8 || notes[0].Text != "the host was found with bridge-netfilter=on: nothing is changed" {
		t.Errorf("noted: %+v", notes)
	}
}

// A run is killed while its loads go: what is on the disk at that moment is all
// that is left.
// Promise: L36
func TestAKilledRunIsCleanedUpAndGoesOn(t *testing.T) {
	b := newBench(t)
	b.site.hold, b.site.held = make(chan struct{}), make(chan struct{}, 100)
	w := b.create(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Do(ctx, w, b.options()) }()
	<-b.site.held             // the first turn
	b.site.hold <- struct{}{} // goes on to its end
	<-b.site.held             // and the second is in its windows
	killed := b.dir + "-killed"
	if err := os.CopyFS(killed, os.DirFS(b.dir)); err != nil {
		t.Fatal(err)
	}
	settingThen := b.setting(t)
	cancel(context.Canceled)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("told to stop it says %v", err)
	}
	if r := b.load(t, b.dir); r.Outcome != record.Interrupted || len(events(r, record.Done)) != 1 {
		t.Errorf("told to stop it is %s with %d turns", r.Outcome, len(events(r, record.Done)))
	}

	// As it was when killed, with the setting as it was, too.
	host := tuning.Host{Root: b.root}
	if err := os.WriteFile(b.root+"/"+setting, []byte(settingThen+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	j := mustJournal(t, killed)
	targets, left := j.Left()
	if !left || len(targets) != 1 || targets[0].URI != "/a" {
		t.Errorf("the killed run's journal has %v", targets)
	}
	if _, err := j.Restore(host); err != nil || b.setting(t) != "1" {
		t.Errorf("%v: the setting is %s", err, b.setting(t))
	}

	b.site.hold = nil
	again, err := record.Resume(killed)
	if err != nil {
		t.Fatal(err)
	}
	if err := Do(t.Context(), again, b.options()); err != nil {
		t.Fatal(err)
	}
	r := b.load(t, killed)
	if len(events(r, record.Done)) != 8 || len(events(r, record.Begin)) != 8 || len(events(r, record.Resumed)) != 1 || len(values(r, record.MetricDone)) != 24 {
		t.Errorf("resumed it has %d turns, %d windows", len(events(r, record.Done)), len(values(r, record.MetricDone)))
	}
}

func TestWhatDoesNotFitIsRefusedWithTheSums(t *testing.T) {
	room := Room{Memory: 3 * scenario.GiB, Disk: 100 * scenario.GiB, Processors: 2}
	for _, c := range []struct {
		what string
		room func(*Room)
		want string
	}{
		{"fits", func(*Room) {}, ""},
		{"memory", func(r *Room) { r.Memory = scenario.GiB }, "2 × web"},
		{"disk", func(r *Room) { r.Disk = 600 * scenario.MiB }, "of disk is free"},
		{"processors", func(r *Room) { r.Processors = 0 }, "the host 0"},
	} {
		b := newBench(t)
		room := room
		c.room(&room)
		left, err := Fit(b.plan, room, false)
		if c.want == "" {
			if err != nil || len(left) > 0 {
				t.Errorf("%s: %v %v", c.what, err, left)
			}
			continue
		}
		if !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	b := newBench(t)
	room.Memory = scenario.GiB
	left, err := Fit(b.plan, room, true)
	if err != nil || len(left) != 1 || len(b.plan.Steps) != 1 || len(b.plan.Setups[1]) != 1 {
		t.Errorf("to the limit: %v, %v, %d steps", err, left, len(b.plan.Steps))
	}
	room.Memory = 1
	if _, err := Fit(newBench(t).plan, room, true); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("nothing fits: %v", err)
	}
}

func TestEventsAreDoneOnEveryTile(t *testing.T) {
	b := newBench(t)
	for _, row := range b.plan.Setups {
		for _, u := range row {
			u.Events = []scenario.Event{{Do: scenario.DoVCPUs, Guest: "web", To: "2"}}
		}
	}
	b.plan.Warmup = scenario.Warmup{}
	b.plan.Steps, b.plan.Repetitions = b.plan.Steps[1:], 1
	for arm := range b.plan.Setups {
		b.plan.Setups[arm] = b.plan.Setups[arm][1:]
	}
	b.site.hold, b.site.held = make(chan struct{}), make(chan struct{}, 100)
	changed := make(chan string, 100)
	b.site.change = func(name string, e scenario.Event) error {
		changed <- name + " " + e.To
		if len(changed)%2 == 0 { // both tiles have theirs: the loads may end
			b.site.hold <- struct{}{}
			b.site.hold <- struct{}{}
		}
		return nil
	}
	r := b.do(t)
	if n := len(changed); n != 4 {
		t.Errorf("%d changes", n)
	}
	if first := <-changed; first != "lab-x-t1-web 2" {
		t.Errorf("first %s", first)
	}
	if n := len(values(r, record.MetricDuration)); n == 0 && len(events(r, record.Change)) < 4 {
		t.Errorf("%d durations", n)
	}
}

// Promise: L16
func TestGuestsAreAskedWhatTheyHaveCounted(t *testing.T) {
	b := newBench(t)
	b.plan.Steps, b.plan.Repetitions = b.plan.Steps[:1], 1
	b.site.hold, b.site.held = make(chan struct{}), make(chan struct{}, 100)
	b.site.counters = func(ctx context.Context) (map[string]float64, error) {
		select { // the load goes on until one was asked
		case b.site.hold <- struct{}{}:
		case <-ctx.Done():
		}
		return map[string]float64{"load": 0.5, "cpu_user_s": 1}, nil
	}
	turns := map[record.Turn]bool{}
	for _, line := range b.do(t).Telemetry {
		if line.Source != "host" {
			turns[line.Turn] = true
			if role := line.Labels["guest"]; line.Labels["tile"] != "1" || line.Source != "guest:lab-x-t1-"+role || line.Values["load"] != 0.5 {
				t.Errorf("%+v", line)
			}
		}
	}
	if len(turns) != 2 {
		t.Errorf("guests were asked in %d turns of 2", len(turns))
	}
	if few, many := period(8), period(256); few != 2*time.Second || many != 32*time.Second {
		t.Errorf("8 guests are asked every %s and 256 every %s", few, many)
	}
}

// Tiles with one seed would have the same data and come in step. Repetitions with one
// seed would all have the same chance.
// Promise: L44
func TestSeeds_DifferByTileAndRepetition(t *testing.T) {
	seeds := func(seed uint64) map[string]bool {
		b := newBench(t)
		for _, row := range b.plan.Setups {
			for _, u := range row {
				u.Loads[0].Config["seed"] = "${tile.seed}"
			}
		}
		w, err := record.Create(b.dir, record.Header{ID: "lab-x", Seed: seed, Plan: Describe(b.plan, []string{"a"}, seed)})
		if err != nil {
			t.Fatal(err)
		}
		if err := Do(t.Context(), w, b.options()); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, config := range b.site.given {
			var c struct {
				Address string
				Seed    uint64
			}
			if err := json.Unmarshal([]byte(config), &c); err != nil {
				t.Fatalf("%s: %v", config, err)
			}
			seen[fmt.Sprint(c.Address, " ", c.Seed)] = true
		}
		return seen
	}
	// Twelve loads on two tiles in two repetitions: each tile has one seed for all arms and
	// steps of a repetition, and no two have the same.
	one, again, other := seeds(7), seeds(7), seeds(8)
	if len(one) != 4 || !maps.Equal(one, again) || maps.Equal(one, other) {
		t.Errorf("%v, again %v, of another run %v", one, again, other)
	}
	different := map[string]bool{}
	for both := range one {
		_, seed, _ := strings.Cut(both, " ")
		different[seed] = true
	}
	if len(different) != 4 {
		t.Errorf("two tiles or repetitions share a seed: %v", one)
	}
}
