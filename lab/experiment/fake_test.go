package experiment

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// fake is a site whose guests do in no time what is asked of them.
type fake struct {
	mu      sync.Mutex
	running map[string]bool
	booted  []string
	opened  int
	closed  int

	boot   func(Spec) error                   // may refuse
	lacks  func([]scenario.Guest) error       // what there is not
	hold   chan struct{}                      // loads wait for it, where there is one
	held   chan struct{}                      // told when one waits
	count  func(done, errors int64) int64     // what a server's log says of a load
	does   func(second int) int64             // what a load does in a second; 10 without
	change func(string, scenario.Event) error // may refuse
	errors int64                              // of a load, in each interval
	dead   func(string) error                 // why a guest does not serve any more
	stop   func() error                       // why a guest cannot be destroyed
	lost   error                              // why nothing can be asked any more
	counts map[string]int64                   // by address
	// what a guest's kernel has counted
	counters func(context.Context) (map[string]float64, error)
	given    []string // configurations of loads
}

func newFake() *fake { return &fake{running: map[string]bool{}, counts: map[string]int64{}} }

func (f *fake) Describe() []record.Target {
	return []record.Target{{Name: "a", URI: "/a", Accelerator: "tcg"}}
}

func (f *fake) Open(context.Context, string) error { f.opened++; return nil }

func (f *fake) Lacks(_ context.Context, guests []scenario.Guest) error {
	if f.lacks == nil {
		return nil
	}
	return f.lacks(guests)
}

func (f *fake) Close(context.Context) error { f.closed++; return nil }

func (f *fake) Boot(_ context.Context, s Spec) (Guest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.boot != nil {
		if err := f.boot(s); err != nil {
			return nil, err
		}
	}
	f.running[s.Name] = true
	f.booted = append(f.booted, s.Name)
	return &fakeGuest{f, s}, nil
}

func (f *fake) Reach(context.Context) error { return f.lost }

func (f *fake) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.running)
}

type fakeGuest struct {
	site *fake
	spec Spec
}

func (g *fakeGuest) Address() string                                 { return g.spec.Name }
func (g *fakeGuest) Definition() string                              { return "<domain/>" }
func (g *fakeGuest) Prepare(context.Context, scenario.Service) error { return nil }

func (g *fakeGuest) Close(context.Context) error {
	g.site.mu.Lock()
	defer g.site.mu.Unlock()
	if g.site.stop != nil {
		return g.site.stop()
	}
	delete(g.site.running, g.spec.Name)
	return nil
}

func (g *fakeGuest) Serving(context.Context) error {
	if g.site.dead != nil {
		return g.site.dead(g.spec.Name)
	}
	return nil
}

func (g *fakeGuest) Clock(context.Context) (Clock, error) {
	now := time.Now()
	return Clock{At: now, Up: time.Duration(now.UnixNano())}, nil
}

func (g *fakeGuest) Counters(ctx context.Context) (map[string]float64, error) {
	if g.site.counters == nil {
		return nil, nil
	}
	return g.site.counters(ctx)
}

func (g *fakeGuest) Counted(context.Context) (map[string]int64, error) {
	g.site.mu.Lock()
	defer g.site.mu.Unlock()
	return map[string]int64{"requests": g.site.counts[g.spec.Name]}, nil
}

func (g *fakeGuest) Change(_ context.Context, e scenario.Event) (map[string]float64, error) {
	if g.site.change != nil {
		return map[string]float64{"told_s": 3}, g.site.change(g.spec.Name, e)
	}
	return nil, nil
}

// Load does ten pieces of work a second, each of 2 ms, for its duration, at once.
func (g *fakeGuest) Load(ctx context.Context, _ string, config json.RawMessage, out func(workload.Interval) bool) error {
	var c struct{ Duration, Address string }
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	g.site.mu.Lock()
	g.site.given = append(g.site.given, string(config))
	g.site.mu.Unlock()
	if g.site.hold != nil {
		g.site.held <- struct{}{}
		select {
		case <-g.site.hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	length, err := time.ParseDuration(c.Duration)
	start := time.Unix(1000, 0) // of a clock of its own
	for at := time.Duration(0); at < length; at += time.Second {
		h := hdrhistogram.New(1, 3600e6, 3)
		done := int64(10)
		if g.site.does != nil {
			done = g.site.does(int(at / time.Second))
		}
		_ = h.RecordValues(2000, done)
		more := out(workload.Interval{Start: start.Add(at), Length: time.Second, Ops: map[string]workload.Count{"page": {Done: done, Errors: g.site.errors, Latency: h}}})
		served := done + g.site.errors
		if g.site.count != nil {
			served = g.site.count(done, g.site.errors)
		}
		g.site.mu.Lock()
		g.site.counts[c.Address] += served
		g.site.mu.Unlock()
		if !more {
			break
		}
	}
	return err
}

const text = `schema: lodge.lab/1
name: small
profiles: {mini: {tiles: [{tiles: 1}, {tiles: 2}]}}
arms: [{name: before, set: {nf: as-found}}, {name: after, set: {nf: "off"}}]
steps: $tiles
repetitions: 2
windows: 2
warmup: 3s
measure: 5s
host: {bridge-netfilter: $nf}
guests:
  - {role: web, count: $tiles, memory: 128MiB}
  - {role: client, count: $tiles, memory: 128MiB}
load:
  - {name: inside, kind: web, from: client, to: web, counted: requests, config: {address: "${web.address}"}}
bounds: [{metric: errors, below: 1}]
`

const setting = "proc/sys/net/bridge/bridge-nf-call-iptables"

// bench is a run about to be done against a fake.
type bench struct {
	site *fake
	dir  string
	root string
	plan *scenario.Plan
	scn  *scenario.Scenario
}

func newBench(t *testing.T) *bench { t.Helper(); return newBenchOf(t, text) }

func newBenchOf(t *testing.T, text string) *bench {
	t.Helper()
	b := &bench{site: newFake(), dir: filepath.Join(t.TempDir(), "run"), root: t.TempDir()}
	path := filepath.Join(b.root, setting)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, value := range map[string]string{path: "1\n", filepath.Dir(path) + "/bridge-nf-call-ip6tables": "0\n", filepath.Dir(path) + "/bridge-nf-call-arptables": "0\n"} {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if b.scn, err = scenario.Parse([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if b.plan, err = b.scn.Plan("mini"); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) options() Options {
	return Options{Scenario: b.scn, Plan: b.plan, Sites: map[string]Site{"a": b.site}, Root: b.root}
}

// oneTileFirst is a seed by which the turns with one tile come first.
const oneTileFirst = 15

func (b *bench) create(t *testing.T) *record.Writer {
	t.Helper()
	w, err := record.Create(b.dir, record.Header{ID: "lab-x", Scenario: record.NewScenario("small", "", "mini", text), Plan: Describe(b.plan, []string{"a"}, oneTileFirst)})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// do runs the whole and reads what was kept.
func (b *bench) do(t *testing.T) *record.Run {
	t.Helper()
	if err := Do(t.Context(), b.create(t), b.options()); err != nil {
		t.Fatal(err)
	}
	return b.load(t, b.dir)
}

func (b *bench) load(t *testing.T, dir string) *record.Run {
	t.Helper()
	r, err := record.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left := b.site.left(); left > 0 {
		t.Errorf("%d guests are left", left)
	}
	if _, left := mustJournal(t, dir).Left(); left {
		t.Error("the journal says that something is left")
	}
	if got := b.setting(t); got != "1" {
		t.Errorf("the host's setting is left at %s", got)
	}
	return r
}

func (b *bench) setting(t *testing.T) string {
	t.Helper()
	value, err := os.ReadFile(filepath.Join(b.root, setting))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}

func mustJournal(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// events picks those of a kind.
func events(r *record.Run, kind record.Kind) (all []record.Event) {
	for _, e := range r.Events {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// values picks a metric's, in counting windows.
func values(r *record.Run, metric string) (all []float64) {
	for _, s := range r.Samples {
		if s.Metric == metric && s.Window > 0 {
			all = append(all, s.Value)
		}
	}
	return all
}
