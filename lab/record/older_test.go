package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Promise: L16
func TestBoundsOfOlderLabsAreRead(t *testing.T) {
	second, three := 1.0, 3.0
	tight := Bound{Metric: "latency.p99", Labels: Labels{"load": "web"}, Below: &second}
	loose := Bound{Metric: "latency.p99", Below: &three}
	for _, c := range []struct {
		event        Event
		tight, loose bool
	}{
		{Event{Kind: Bad, What: WhatBound, Text: "web of tile 2: latency.p99 is 1.2 s"}, true, false},
		{Event{Kind: Bad, What: WhatBound, Text: "web of tile 2: latency.p99 is 3.5 s"}, true, true},
		{Event{Kind: Bad, What: WhatBound, Text: "web of tile 12: latency.p95 is 4 s"}, false, false},
		{Event{Kind: Bad, What: WhatBound, Text: "orders of tile 1: latency.p99 is 4 s"}, false, true},
		{Event{Kind: Bad, What: WhatBound, Text: "nobody knows"}, false, false},
		{Event{Kind: Failed, What: WhatBound, Text: "web of tile 2: latency.p99 is 4 s"}, false, false},
		// What says by itself what it is of is not read from its words.
		{Event{Kind: Bad, What: WhatBound, Text: "web of tile 2: latency.p99 is 4 s", Labels: Labels{"load": "web", "metric": "latency.p99"}, Values: map[string]float64{ValueBound: 2}}, true, false},
	} {
		w := create(t)
		if err := w.Event(c.event); err != nil {
			t.Fatal(err)
		}
		if err := w.Seal(Complete); err != nil {
			t.Fatal(err)
		}
		e := load(t, w.Dir()).Events[0]
		if got := [2]bool{tight.BrokenBy(e), loose.BrokenBy(e)}; got != [2]bool{c.tight, c.loose} {
			t.Errorf("%q with %v breaks the bounds %v", c.event.Text, e.Labels, got)
		}
	}
}

// A run of the older form is read. It is not gone on with, and not compared with a run
// that counts otherwise.
// Promise: L59
func TestOlder_IsReadAndNotMixedWithTheNew(t *testing.T) {
	w := create(t)
	sample(t, w, first, 7)
	if err := errors.Join(w.Finish(first), w.Seal(Interrupted)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.Dir(), headerFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	age := func(schema string) {
		t.Helper()
		aged := strings.Replace(string(text), Schema, schema, 1)
		if err := errors.Join(os.WriteFile(path, []byte(aged), 0o600), os.Remove(filepath.Join(w.Dir(), sumsFile))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	newer := load(t, w.Dir())
	age(olderSchema)
	older := load(t, w.Dir())
	if !older.Older() || newer.Older() || len(older.Samples) != 1 {
		t.Errorf("%+v", older.Header)
	}
	if why := Incomparable(&newer.Header, &older.Header); len(why) != 1 || why[0].What != "form of the record" || why[0].Host {
		t.Errorf("they may not be compared for %v", why)
	}
	if _, err := Resume(w.Dir()); !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "older lab") {
		t.Errorf("it is resumed: %v", err)
	}
	age("lodge.lab/99")
	if _, err := Load(w.Dir()); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"lodge.lab/99"`) {
		t.Errorf("a form of tomorrow is read: %v", err)
	}
}
