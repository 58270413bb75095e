package record

import "testing"

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
