package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
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
	f.Add([]byte("{}"), []byte("null"), []byte{})
	f.Fuzz(func(t *testing.T, head, mark, lines []byte) {
		dir := t.TempDir()
		for name, text := range map[string][]byte{headerFile: head, checkpointFile: mark, samplesFile: lines, histogramsFile: lines, eventsFile: lines} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Load(dir)
		if err != nil {
			return
		}
		counted, _, err := readCheckpoint(dir)
		if err != nil {
			t.Fatal(err)
		}
		if size := counted.Sizes[samplesFile]; size >= 0 && int64(len(r.Samples))*2 > size {
			t.Fatalf("%d samples of %d bytes that count", len(r.Samples), size)
		}
		for _, h := range r.Histograms {
			_, _ = h.Times()
		}
	})
}
