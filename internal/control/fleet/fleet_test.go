package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const emulator = "/usr/bin/qemu-system-x86_64"

// herd is a fleet over a registry with all packages below it, as in lodged.
type herd struct {
	*Fleet
	t      testing.TB
	dir    string
	pools  *volume.Pools
	starts *resources.StartQueue
}

// OpenDaemon opens a whole daemon in a directory and returns its fleet. The external tests set it: package
// daemon imports this package, so these tests cannot import it.
var OpenDaemon func(t testing.TB, dir string, log *slog.Logger) (f *Fleet, closeDaemon func())

// newHerd makes a fleet without guests. Guests that are added later end with the test.
func newHerd(t testing.TB) *herd {
	t.Helper()
	if testing.Short() {
		t.Skip("asks QEMU what it can do: not among the short tests")
	}
	if _, err := os.Stat(emulator); err != nil {
		t.Skipf("no QEMU: %v", err)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for networks and control groups")
	}
	// Socket paths are bounded, and t.TempDir can be long.
	dir, err := os.MkdirTemp("", "lodge-fleet-") //nolint:usetesting // as said
	ok(t, err)
	f, closeDaemon := OpenDaemon(t, dir, slog.New(slog.NewTextHandler(testLog{t}, nil)))
	h := &herd{Fleet: f, t: t, dir: dir, pools: f.pools, starts: f.guests.Starts}
	t.Cleanup(func() {
		h.destroyAll()
		h.Close()
		closeDaemon()
		if left := f.guests.Cgroups.Guests(); len(left) > 0 {
			t.Errorf("control groups are left: %v", left)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *herd) destroyAll() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	for _, g := range h.guests.All() {
		if err := guest.Destroy(ctx, g, scope.Daemon("a test"), false); err != nil && !fault.Is(err, fault.WrongState) && !fault.Is(err, fault.NotFound) {
			h.t.Errorf("cannot destroy %s: %v", g.Name(), err)
		}
	}
}

// testLog writes the daemon's log to the test's.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t testing.TB, err error, kind fault.Kind, says string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), says) {
		t.Fatalf("got %v (%v), want %v saying %q", err, fault.Of(err), kind, says)
	}
}

// small is a guest with nothing to boot.
func small(name string, more ...string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>
		<devices><serial type='pty'/></devices>%s</domain>`, name, strings.Join(more, ""))
}

// marked is the metadata that a client adds to mark a guest.
func marked(priority int, inner ...string) string {
	return fmt.Sprintf(`<metadata><x:guest xmlns:x='%s' priority='%d'>%s</x:guest></metadata>`, Namespace, priority, strings.Join(inner, ""))
}

func selectors(t testing.TB, texts ...string) []Selector {
	t.Helper()
	var all []Selector
	for _, text := range texts {
		s, err := ParseSelector(text)
		ok(t, err)
		all = append(all, s)
	}
	return all
}

// try runs a request and returns its results, as "name outcome wave".
func (h *herd) try(q Request, texts ...string) (Summary, []Result, error) {
	h.t.Helper()
	q.Select = selectors(h.t, texts...)
	q.KeepGoing = true
	ctx, stop := context.WithTimeout(h.t.Context(), time.Minute)
	defer stop()
	var results []Result
	planned := -1
	sum, err := h.Run(ctx, scope.Daemon("a test"), q, func(p Plan) { planned = p.Total }, func(r Result) { results = append(results, r) })
	if err == nil && planned != len(results) {
		h.t.Errorf("%d guests were planned and %d reported", planned, len(results))
	}
	return sum, results, err
}

// run is try for a request that may not fail for any guest.
func (h *herd) run(q Request, texts ...string) []string {
	h.t.Helper()
	_, results, err := h.try(q, texts...)
	ok(h.t, err)
	var told []string
	for _, r := range results {
		if r.Outcome == Failed {
			h.t.Errorf("%s of %s: %v", q.Verb, r.Name, r.Error)
		}
		told = append(told, fmt.Sprintf("%s %s %d", r.Name, r.Outcome, r.Wave))
	}
	return told
}

func (h *herd) define(docs ...string) {
	h.t.Helper()
	h.run(Request{Verb: Define, Documents: docs})
}

func (h *herd) wants(what string, got []string, want ...string) {
	h.t.Helper()
	if !slices.Equal(got, want) {
		h.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// chosen returns the names that selectors match.
func (h *herd) chosen(texts ...string) []string {
	h.t.Helper()
	var names []string
	all, chosen := h.Select(selectors(h.t, "all")), selectors(h.t, texts...)
	for _, m := range h.Select(chosen) {
		names = append(names, m.View.Name)
	}
	for _, m := range all {
		if h.Matches(chosen, m) != slices.Contains(names, m.View.Name) {
			h.t.Errorf("%q: %s is chosen or not, by itself and among all", texts, m.View.Name)
		}
	}
	return names
}

func (h *herd) view(name string) *guest.View {
	h.t.Helper()
	g, err := h.guests.ByName(name)
	ok(h.t, err)
	return g.View()
}

// Promise: A14
func TestRun_DefineSelectSetUndefine(t *testing.T) {
	h := newHerd(t)
	h.define(small("web-1", marked(5, `<x:label name='app' value='shop'/><x:after guest='db'/>`)), small("web-2"), small("db", marked(0)))
	h.wants("all", h.chosen("all"), "db", "web-1", "web-2")
	h.wants("glob", h.chosen("web-*"), "web-1", "web-2")
	h.wants("label", h.chosen("label=app:sh*"), "web-1")
	h.wants("not", h.chosen("!label=app,state=shutoff"), "db", "web-2")
	h.wants("either", h.chosen("db", "label=app"), "db", "web-1")
	if got := h.run(Request{Verb: Define, Documents: []string{strings.Replace(small("web-2"), "<name>", "<uuid>"+h.view("web-2").UUID+"</uuid><name>", 1)}}); !slices.Equal(got, []string{"web-2 unchanged 1"}) {
		t.Errorf("defining the same again: %v", got)
	}

	set := Request{Verb: Set, Options: Options{Settings: map[string]string{
		"label.app": "", "label.team": "blue", "priority": "-3", "after": "db", "memory": "32MiB", "vcpus": "2", "autostart": "yes", "title": "a title",
	}}}
	dry := set
	dry.DryRun = true
	h.wants("dry run", h.run(dry, "web-*"), "web-1 would 1", "web-2 would 1")
	if v := h.view("web-2"); v.Autostart || v.Inactive.Memory != 64<<20 || v.Inactive.Metadata != "" {
		t.Fatal("a dry run has changed a guest")
	}
	if got := h.run(set, "web-*"); len(got) != 2 || strings.Contains(strings.Join(got, " "), string(Unchanged)) {
		t.Errorf("set: %v", got)
	}
	for _, m := range h.Select(selectors(t, "label=team:blue")) {
		d := m.View.Inactive
		if m.Marks.Priority != -3 || !slices.Equal(m.Marks.After, []string{"db"}) || len(m.Labels) != 1 ||
			d.Memory != 32<<20 || d.CurrentMemory != 32<<20 || d.VCPUs.Current != 2 || d.Title != "a title" || !m.View.Autostart {
			t.Errorf("%s has %+v, %d bytes, %d vCPUs, title %q", m.View.Name, m.Marks, d.Memory, d.VCPUs.Current, d.Title)
		}
	}
	if got := h.chosen("label=team", "label=app"); len(got) != 2 {
		t.Errorf("labelled guests: %v", got)
	}
	h.wants("order", h.run(Request{Verb: Start, DryRun: true}, "all"), "db would 1", "web-1 would 2", "web-2 would 2")
	h.wants("reverse", h.run(Request{Verb: Destroy, DryRun: true}, "all"), "web-1 unchanged 1", "web-2 unchanged 1", "db unchanged 2")
	sum, _, err := h.try(set, "web-*")
	if ok(t, err); sum.Unchanged != 2 {
		t.Errorf("setting the same again: %+v", sum)
	}
	_, _, err = h.try(Request{Verb: Set, Options: Options{Settings: map[string]string{"colour": "blue"}}}, "all")
	refused(t, err, fault.Invalid, "label.NAME")
	_, _, err = h.try(Request{Verb: Start}, "web-3", "all")
	refused(t, err, fault.NotFound, "web-3")
	h.run(Request{Verb: Set, Options: Options{Settings: map[string]string{"after": "web-1"}}}, "db")
	h.run(Request{Verb: Set, Options: Options{Settings: map[string]string{"after": "db"}}}, "web-2")
	h.define(small("other", marked(7)))
	_, results, err := h.try(Request{Verb: Start, DryRun: true, KeepGoing: true}, "all")
	ok(t, err)
	var outcomes []string
	for _, r := range results {
		outcomes = append(outcomes, r.Name+" "+string(r.Outcome))
	}
	h.wants("a circle", outcomes, "db failed", "web-2 skipped", "web-1 failed", "other would")
	refused(t, results[0].Error, fault.Invalid, "db after web-1 after db")
	h.run(Request{Verb: Undefine}, "other")
	h.wants("end of a circle", h.run(Request{Verb: Destroy, DryRun: true}, "all"), "web-1 unchanged 1", "web-2 unchanged 1", "db unchanged 2")

	if sum, _, err = h.try(Request{Verb: Undefine}, "all"); err != nil || sum.Done != 3 || len(h.chosen("all")) != 0 {
		t.Errorf("undefine: %+v, %v; left %v", sum, err, h.chosen("all"))
	}
}

func TestSelect_UnreadableMarksReported(t *testing.T) {
	h := newHerd(t)
	h.define(small("odd", `<metadata><x:guest xmlns:x='`+Namespace+`' priority='first'/></metadata>`))
	m := h.Select(selectors(t, "all"))
	if len(m) != 1 || !strings.Contains(m[0].Problem, "priority") {
		t.Fatalf("got %+v", m)
	}
	for _, q := range []Request{{Verb: Start}, {Verb: Set, Options: Options{Settings: map[string]string{"label.a": "b"}}}} {
		sum, results, err := h.try(q, "odd")
		ok(t, err)
		if sum.Failed != 1 {
			t.Fatalf("%s: %+v", q.Verb, sum)
		}
		refused(t, results[0].Error, fault.Invalid, "priority")
	}
	h.wants("undefine", h.run(Request{Verb: Undefine}, "odd"), "odd done 1")
}

func TestAll_ParsesOnlyChangedMarks(t *testing.T) {
	h := newHerd(t)
	h.define(small("a", marked(1, `<x:label name='n' value='1'/>`)))
	first := h.Select(selectors(t, "all"))[0]
	if second := h.Select(selectors(t, "all"))[0]; second.Marks != first.Marks {
		t.Error("marks that have not changed were read again")
	}
	h.run(Request{Verb: Set, Options: Options{Settings: map[string]string{"label.n": "2"}}}, "a")
	if third := h.Select(selectors(t, "label=n:2")); len(third) != 1 {
		t.Error("a changed label is not seen")
	}
	h.run(Request{Verb: Undefine}, "a")
}

func TestRun_LifeCycleOfSet(t *testing.T) {
	h := newHerd(t)
	h.define(small("db", marked(0)), small("web", marked(0, `<x:after guest='db'/>`)), small("late", marked(9)))
	start := Request{Verb: Start}
	h.wants("start", h.run(start, "all"), "db done 1", "web done 2", "late done 3")
	h.wants("start again", h.run(start, "db"), "db unchanged 1")
	h.wants("suspend", h.run(Request{Verb: Suspend}, "db"), "db done 1")
	h.wants("suspend again", h.run(Request{Verb: Suspend}, "db"), "db unchanged 1")
	h.wants("paused", h.chosen("state=paused"), "db")
	h.wants("resume", h.run(Request{Verb: Resume}, "state=paused"), "db done 1")
	h.run(Request{Verb: Set, Options: Options{Settings: map[string]string{"label.live": "yes"}}}, "db")
	if d := h.view("db").Active; !strings.Contains(d.Metadata, "live") {
		t.Error("a running guest's own definition has not got the label")
	}
	_, results, err := h.try(Request{Verb: Set, Options: Options{Settings: map[string]string{"memory": "128MiB"}}}, "db")
	if ok(t, err); results[0].Outcome != Done || !strings.Contains(results[0].Note, "next start") {
		t.Errorf("more memory than a running guest can have: %+v", results[0])
	}
	h.wants("save", h.run(Request{Verb: Save}, "web"), "web done 1")
	h.wants("saved", h.chosen("saved=yes"), "web")
	h.wants("restore", h.run(Request{Verb: Restore}, "web"), "web done 1")
	// These guests run no system that would react to the power button.
	_, results, err = h.try(Request{Verb: Shutdown, Timeout: 100 * time.Millisecond}, "late")
	ok(t, err)
	refused(t, results[0].Error, fault.Timeout, "shutdown of domain")
	stop := Request{Verb: Shutdown, Options: Options{Grace: 100 * time.Millisecond}}
	h.wants("stop", h.run(stop, "all"), "late done 1", "web done 2", "db done 3")
	h.wants("stopped", h.chosen("state=inactive"), "db", "late", "web")
	if v := h.view("db"); v.Reason != domain.ReasonDestroyed {
		t.Errorf("db ended as %s", v.Reason)
	}
}

func TestRun_FailedStartSkipsDependents(t *testing.T) {
	h := newHerd(t)
	broken := strings.Replace(small("db"), "<serial type='pty'/>", `<disk type='file' device='disk'><source file='/nowhere/at-all.raw'/><target dev='vda' bus='virtio'/></disk>`, 1)
	h.define(broken, small("web", marked(0, `<x:after guest='db'/>`)))
	sum, results, err := h.try(Request{Verb: Start}, "all")
	ok(t, err)
	if sum.Failed != 1 || sum.Skipped != 1 || !strings.Contains(results[1].Note, "db") {
		t.Errorf("got %+v: %+v", sum, results)
	}
	if h.view("web").State.Active() {
		t.Error("a guest was started without what it depends on")
	}
	// A start of this guest alone is the user's own choice.
	h.wants("alone", h.run(Request{Verb: Start, Options: Options{Paused: true}}, "web"), "web done 1")
}

func TestRun_CancelledShutdownDestroysNothing(t *testing.T) {
	h := newHerd(t)
	h.define(small("slow"))
	h.run(Request{Verb: Start}, "all")
	g, err := h.guests.ByName("slow")
	ok(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fault.New(fault.Aborted, fault.Call, "the client has gone"))
	r := &run{fleet: h.Fleet, request: Request{Verb: Shutdown, Options: Options{Grace: time.Minute}}, action: actions[Shutdown]}
	defer r.watchEnds()()
	if got := r.perform(ctx, h.MemberOf(g), nil); got.Outcome != Cancelled || !strings.Contains(got.Note, "was asked") {
		t.Errorf("got %+v", got)
	}
	if !g.View().State.Active() {
		t.Error("the guest was destroyed")
	}
}

func TestRun_StuckGuestDelaysNoOther(t *testing.T) {
	h := newHerd(t)
	h.define(small("stuck"), small("well-1"), small("well-2"))
	h.run(Request{Verb: Start}, "all")
	ok(t, syscall.Kill(h.pid("stuck"), syscall.SIGSTOP))
	limit := 500 * time.Millisecond
	_, results, err := h.try(Request{Verb: Suspend, Parallel: 2, Timeout: limit}, "all")
	ok(t, err)
	for _, r := range results[:2] {
		if r.Outcome != Done || r.Queued+r.Took >= limit {
			t.Errorf("%s is %s after %v: %v", r.Name, r.Outcome, r.Queued+r.Took, r.Error)
		}
	}
	refused(t, results[2].Error, fault.Timeout, `"stuck"`)
	h.wants("grace", h.run(Request{Verb: Shutdown, Options: Options{Grace: limit}}, "stuck"), "stuck done 1")
}

// A guest that waits for its start can be destroyed, and does not start afterwards.
func TestRun_DestroyCancelsWaitingStart(t *testing.T) {
	h := newHerd(t)
	h.withPool()
	_, err := h.create(template(t, twoGuests), 1, 1)
	ok(t, err)
	h.define(small("waiting", marked(5)))
	for st := h.starts.State(); st.Running < st.Limit; st = h.starts.State() {
		release, err := h.starts.Admit(t.Context(), resources.StartRequest{Paused: true})
		ok(t, err)
		defer release(resources.LaunchOutcome{})
	}
	queued := func(name string) {
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			if slices.ContainsFunc(h.starts.Queue(), func(w resources.WaitingStart) bool { return w.Name == name }) {
				return
			}
			ok(t, t.Context().Err())
		}
	}
	began := make(chan Result, 2)
	for _, name := range []string{"waiting", "lab-1-a"} {
		chosen := selectors(t, name)
		go func() {
			_, err := h.Run(t.Context(), scope.Daemon("a test"), Request{Verb: Start, Select: chosen}, func(Plan) {}, func(r Result) { began <- r })
			if err != nil {
				t.Error(err)
			}
		}()
		queued(name)
	}
	if q := h.starts.Queue(); len(q) != 2 || q[1].Name != "waiting" {
		t.Errorf("the queue does not follow the priority: %+v", q)
	}
	h.wants("foretold", h.run(Request{Verb: Destroy, DryRun: true}, "waiting"), "waiting would 1")
	h.wants("destroy", h.run(Request{Verb: Destroy}, "waiting"), "waiting done 1")
	refused(t, (<-began).Error, fault.Aborted, "destroyed meanwhile")
	got, err := h.remove("lab/1")
	ok(t, err)
	h.wants("remove", got, "lab/1 done")
	refused(t, (<-began).Error, fault.Aborted, "destroyed meanwhile")
	h.wants("left", h.chosen("all"), "waiting")
	if len(h.starts.Queue()) != 0 {
		t.Errorf("still in the queue: %+v", h.starts.Queue())
	}
}

// Changing a guest's marks does not wait for another guest's turn.
func TestRun_SetOfStuckGuestDelaysNoOther(t *testing.T) {
	h := newHerd(t)
	h.define(small("stuck"))
	h.define(small("well"))
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "stuck")
	ok(t, syscall.Kill(h.pid("stuck"), syscall.SIGSTOP))
	over := make(chan Result, 1)
	set := Request{Verb: Set, Select: selectors(t, "stuck"), Timeout: time.Second, Options: Options{Settings: map[string]string{"memory": "32MiB"}}}
	go func() {
		if _, err := h.Run(t.Context(), scope.Daemon("a test"), set, func(Plan) {}, func(r Result) { over <- r }); err != nil {
			t.Error(err)
		}
	}()
	g, err := h.guests.ByName("stuck")
	ok(t, err)
	for tick := time.NewTicker(time.Millisecond); g.Job().Kind == domain.JobNone; <-tick.C {
		ok(t, t.Context().Err())
	}
	_, results, err := h.try(Request{Verb: Set, Timeout: 500 * time.Millisecond, Options: Options{Settings: map[string]string{"label.a": "b"}}}, "well")
	ok(t, err)
	if results[0].Outcome != Done {
		t.Errorf("the other one: %+v", results[0])
	}
	refused(t, (<-over).Error, fault.Timeout, "stuck")
}

// pid finds the QEMU process of a guest by its name, as an administrator does.
func (h *herd) pid(name string) int {
	h.t.Helper()
	out, err := exec.CommandContext(h.t.Context(), "pgrep", "-P", strconv.Itoa(os.Getpid()), "-f", "guest="+name+",").Output()
	ok(h.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	ok(h.t, err)
	return pid
}

// BenchmarkSelect selects among a thousand guests, half of them with marks.
func BenchmarkSelect(b *testing.B) {
	h := newHerd(b)
	docs := make([]string, 1000)
	for i := range docs {
		docs[i] = small(fmt.Sprintf("g%d", i), marked(i%2, fmt.Sprintf(`<x:label name='n' value='%d'/>`, i)))
	}
	h.define(docs...)
	chosen := selectors(b, "label=n:1*", "g9?")
	for b.Loop() {
		if len(h.Select(chosen)) == 0 {
			b.Fatal("nobody")
		}
	}
}
