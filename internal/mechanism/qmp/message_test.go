package qmp

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestLineReader_Lines(t *testing.T) {
	long := strings.Repeat("x", 20<<10)
	for _, c := range []struct {
		name, in string
		want     []string
		err      error
	}{
		{"ordinary", "a\r\nb\n", []string{"a", "b"}, io.EOF},
		{"empty lines", "\n\r\n \na\n", []string{"a"}, io.EOF},
		{"longer than the buffer", long + "\nb\n", []string{long, "b"}, io.EOF},
		{"at the bound", strings.Repeat("x", 32<<10-1) + "\n", []string{strings.Repeat("x", 32<<10-1)}, io.EOF},
		{"beyond the bound", strings.Repeat("x", 32<<10) + "\nb\n", nil, errLineTooLong},
		{"without end", strings.Repeat("x", 1<<20), nil, errLineTooLong},
		{"cut off", "a\nb", []string{"a"}, io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := newLineReader(strings.NewReader(c.in), 32<<10, nil)
			for _, want := range c.want {
				if got, err := lines.next(); err != nil || string(got) != want {
					t.Fatalf("got %s, %v", excerpt(got), err)
				}
			}
			if _, err := lines.next(); !errors.Is(err, c.err) {
				t.Fatalf("ended by %v, want %v", err, c.err)
			}
		})
	}
}

// FuzzLines: for any input the reader ends, keeps its bound, and returns lines
// that decode or are refused.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		`{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}`,
		`{"return": {}, "id": 1}`,
		`{"error": {"class": "GenericError", "desc": "no"}, "id": 18446744073709551616}`,
		`{"timestamp": {"seconds": -1, "microseconds": -1}, "event": "VSERPORT_CHANGE", "data": {"id": 7}}`,
		"{\n\n", "[[[[", "{\"event\":\"\x00\"}",
	} {
		f.Add([]byte(seed + "\r\n"))
	}
	stopped := make(chan struct{})
	close(stopped) // no rests
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit = 1 << 10
		lines := newLineReader(bytes.NewReader(in), limit, stopped)
		queue := newEventQueue()
		for {
			line, err := lines.next()
			if err != nil {
				return
			}
			if len(line) > limit || len(line) == 0 {
				t.Fatalf("a line of %d bytes", len(line))
			}
			m, err := decode(line)
			if err != nil {
				continue
			}
			m.commandID()
			if m.Event != "" {
				queue.put(Event{Name: m.Event, Data: m.Data, Time: m.time()})
				if e, ok, _ := queue.take(); !ok || e.Name != m.Event {
					t.Fatalf("event %q came out as %q", m.Event, e.Name)
				}
			}
		}
	})
}
