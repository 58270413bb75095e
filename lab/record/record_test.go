package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

var (
	first  = Turn{"a", 1, "tiles=1"}
	second = Turn{"b", 1, "tiles=1"}
)

func header() Header {
	return Header{
		ID: "lab-x", Started: time.Now().UTC(), Scenario: NewScenario("tile", "Tiles", "mini", "name: tile\n"),
		Image: Image{Digest: "sha256:1"}, Targets: []Target{{Name: "lodged", Accelerator: "tcg"}},
		Plan: Plan{Turns: []Turn{first, second}},
	}
}

func create(t *testing.T) *Writer {
	t.Helper()
	w, err := Create(filepath.Join(t.TempDir(), "run"), header())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func sample(t *testing.T, w *Writer, turn Turn, value float64) {
	t.Helper()
	if err := w.Sample(Sample{Time: time.Now(), Turn: turn, Window: 1, Metric: MetricDone, Value: value, Unit: "count", Labels: Labels{"guest": "web"}}); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, dir string) *Run {
	t.Helper()
	r, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A line of a hundred bytes may ask for a gigabyte of counts, and a checkpoint for no
// bound.
func TestHostileRecordsAreRefused(t *testing.T) {
	var h Histogram
	if err := h.Pack(hdrhistogram.New(1, 1<<62, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Times(); !fault.Is(err, fault.Invalid) {
		t.Errorf("times of another form than the lab's: %v", err)
	}
	w := create(t)
	sample(t, w, first, 42)
	if err := w.Finish(first); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.Dir(), checkpointFile), []byte(`{"sizes":{"samples.ndjson":-1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := load(t, w.Dir()); len(r.Samples) > 0 {
		t.Errorf("%d samples count of a run of which less than nothing does", len(r.Samples))
	}
}

func TestARunComesBackAsItWasWritten(t *testing.T) {
	w := create(t)
	sample(t, w, first, 42)
	times := histogram.New()
	for i := range 1000 {
		if err := times.RecordValue(int64(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	h := Histogram{Turn: first, Window: 1, Metric: MetricLatency, Unit: "µs"}
	if err := h.Pack(times); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		w.Histogram(h), w.Telemetry(Telemetry{Turn: first, Source: "host", Values: map[string]float64{"cpu_busy_share": 0.5}}),
		w.Event(Event{Turn: first, Kind: Skipped, What: "vcpus", Text: "no"}), w.Command("web.xml", "<domain/>"),
		w.Finish(first), w.Seal(Complete),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // as it is, and packed
		r := load(t, w.Dir())
		if len(r.Samples) != 1 || r.Samples[0].Value != 42 || r.Samples[0].Labels.Key() != "guest=web" || r.Outcome != Complete || r.Scenario.Text != "name: tile\n" {
			t.Errorf("got %+v, %+v", r.Samples, r.Header)
		}
		got, err := r.Histograms[0].Times()
		if err != nil || got.TotalCount() != 1000 || got.ValueAtQuantile(50) != times.ValueAtQuantile(50) {
			t.Errorf("times came back otherwise: %v", err)
		}
		if len(r.Telemetry) != 1 || len(r.Events) != 2 {
			t.Errorf("%d seconds and %d events", len(r.Telemetry), len(r.Events))
		}
		if text, err := r.Command("web.xml"); err != nil || text != "<domain/>" {
			t.Errorf("%q, %v", text, err)
		}
		if err := Pack(w.Dir()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(w.Dir(), samplesFile)); err == nil {
		t.Error("packing left the unpacked values")
	}
	if _, err := Resume(w.Dir()); !fault.Is(err, fault.WrongState) {
		t.Errorf("a complete run is resumed: %v", err)
	}
}

// A run is killed amid its second turn, in mid-line.
func TestWhatAKilledRunHadOfAnUnfinishedTurnIsCutOff(t *testing.T) {
	w := create(t)
	sample(t, w, first, 1)
	if err := w.Finish(first); err != nil {
		t.Fatal(err)
	}
	sample(t, w, second, 2)
	w.Close()
	path := filepath.Join(w.Dir(), samplesFile)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2026-`); err != nil {
		t.Fatal(err)
	}
	f.Close()

	if r := load(t, w.Dir()); len(r.Samples) != 1 || r.Samples[0].Value != 1 || r.Outcome != "" {
		t.Errorf("of the killed run %+v is read", r.Samples)
	}
	again, err := Resume(w.Dir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	if done := again.Finished(); len(done) != 1 || done[0] != first {
		t.Errorf("finished: %v", done)
	}
	sample(t, again, second, 3)
	if err := again.Finish(second); err != nil {
		t.Fatal(err)
	}
	if err := again.Seal(Complete); err != nil {
		t.Fatal(err)
	}
	if r := load(t, w.Dir()); len(r.Samples) != 2 || r.Samples[1].Value != 3 {
		t.Errorf("after the resumption %+v", r.Samples)
	}
}

func TestAnInterruptedRunSaysWhyAndIsResumed(t *testing.T) {
	w := create(t)
	if err := w.Event(Event{Kind: Note, Text: "told to stop"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Seal(Interrupted); err != nil {
		t.Fatal(err)
	}
	if r := load(t, w.Dir()); r.Outcome != Interrupted || len(r.Events) != 1 {
		t.Errorf("%s, %+v", r.Outcome, r.Events)
	}
	again, err := Resume(w.Dir())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if r := load(t, w.Dir()); r.Outcome != "" || r.Ended != nil {
		t.Error("a resumed run still says that it was interrupted")
	}
}

func TestOneProcessWrites(t *testing.T) {
	w := create(t)
	if _, err := Resume(w.Dir()); !fault.Is(err, fault.Busy) {
		t.Errorf("resumed while it runs: %v", err)
	}
	if _, err := Create(w.Dir(), header()); !fault.Is(err, fault.Exists) {
		t.Errorf("created over a run: %v", err)
	}
	// Nor has the attempt taken the lock away.
	if _, err := Resume(w.Dir()); !fault.Is(err, fault.Busy) {
		t.Errorf("resumed while it runs: %v", err)
	}
}

func TestAChangedRunIsRefused(t *testing.T) {
	w := create(t)
	sample(t, w, first, 1)
	if err := w.Finish(first); err != nil {
		t.Fatal(err)
	}
	if err := w.Seal(Complete); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.Dir(), samplesFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), `"value":1`, `"value":9`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(w.Dir()); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), samplesFile) {
		t.Errorf("got %v", err)
	}
}

func TestNamesOfTextsStayInTheRun(t *testing.T) {
	w := create(t)
	for _, name := range []string{"", "../x", "a/b", ".hidden"} {
		if err := w.Command(name, "x"); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestWhatMayBeCompared(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*Header)
		host   bool
	}{
		{"", func(h *Header) { h.Targets[0].Library, h.Seed, h.ID = "11.0.0", 7, "y" }, false},
		{"scenario", func(h *Header) { h.Scenario.SHA256 = "x" }, false},
		{"profile", func(h *Header) { h.Scenario.Profile = "paper" }, false},
		{"guests' image", func(h *Header) { h.Image.Digest = "sha256:2" }, false},
		{"accelerator", func(h *Header) { h.Targets[0].Accelerator = "kvm" }, false},
		{"deviations", func(h *Header) { h.Deviations = []string{"half the windows"} }, false},
		{"kernel", func(h *Header) { h.Host.Kernel = "7" }, true},
		{"processors", func(h *Header) { h.Host.Processors = 256 }, true},
	} {
		a, b := header(), header()
		c.change(&b)
		reasons := Incomparable(&a, &b)
		if c.what == "" && len(reasons) == 0 {
			continue
		}
		if len(reasons) != 1 || reasons[0].What != c.what || reasons[0].Host != c.host {
			t.Errorf("%s: %v", c.what, reasons)
		}
	}
}
