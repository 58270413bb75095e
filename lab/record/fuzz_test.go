package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// FuzzLoad reads a run whose files hold whatever bytes: what is understood of its
// samples is within what the run's checkpoint counts.
func FuzzLoad(f *testing.F) {
	h := header()
	h.Schema = Schema
	text, err := json.Marshal(h)
	if err != nil {
		f.Fatal(err)
	}
	line := []byte(`{"time":"2026-01-01T00:00:00Z","window":1,"metric":"done","value":42,"unit":"count","labels":{"guest":"web"}}` + "\n")
	f.Add(text, []byte(`{"sizes":{"samples.ndjson":200}}`), line)
	f.Add(text, []byte(`{"sizes":{"samples.ndjson":-1}}`), append(line, '{'))
	f.Add([]byte(`{"schema":"`+Schema+`","outcome":"complete"}`), []byte("{}"), line)
	var times Histogram
	if err := times.Pack(histogram.New()); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"schema":"`+Schema+`"}`), []byte(`{"sizes":{"histograms.ndjson":999}}`), []byte(`{"values":"`+times.Values+`"}`))
	f.Add([]byte("{}"), []byte("null"), []byte{})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, head, mark, lines []byte) {
		for name, text := range map[string][]byte{headerFile: head, checkpointFile: mark, samplesFile: lines, histogramsFile: lines, eventsFile: lines} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Load(dir)
		if err != nil {
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.NotFound) {
				t.Fatal(err)
			}
			return
		}
		if peeked, err := Peek(dir); err != nil || !reflect.DeepEqual(peeked, r.Header) {
			t.Fatalf("%+v is peeked at, and %+v loaded (%v)", peeked, r.Header, err)
		}
		counted, _, err := readCheckpoint(dir)
		if err != nil {
			t.Fatal(err)
		}
		// A line has two bytes at least.
		for name, got := range map[string]int{samplesFile: len(r.Samples), histogramsFile: len(r.Histograms), eventsFile: len(r.Events)} {
			if size := min(max(counted.Sizes[name], 0), int64(len(lines))); int64(got)*2 > size+1 {
				t.Fatalf("%d values of %s, of %d bytes that count", got, name, size)
			}
		}
		for _, h := range r.Histograms {
			times, err := h.Times()
			if err != nil {
				continue
			}
			if err := h.Pack(times); err != nil {
				t.Fatal(err)
			}
			if again, err := h.Times(); err != nil || !again.Equals(times) {
				t.Fatalf("times of %d are read again as %d, %v", times.TotalCount(), again.TotalCount(), err)
			}
		}
	})
}
