package workload

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// Load is work that runs until its own bound or until ctx ends, which is no
// error, but for errands: one that did not come to its end has failed. out is called by one goroutine at a time, in the order of time, and at
// least once; what it is given is its own. While out does not return, the load goes
// on and the next interval grows longer.
type Load interface {
	Run(ctx context.Context, out func(Interval)) error
}

// Interval is what happened in one stretch of time. Ops are the operations that
// were meant to begin in it and ended in it. Those that ended in it and were meant
// to begin earlier are in Late, one entry for each earlier interval. So a reader can
// count by the time an operation ended, or by the time it was meant to begin.
type Interval struct {
	Start    time.Time        `json:"start"`
	Length   time.Duration    `json:"length"` // ns
	Ops      map[string]Count `json:"ops"`
	Arrivals                  // none of closed loops
	Late     []Interval       `json:"late,omitempty"`
}

// Arrivals are pieces of work that an open loop begins by its schedule. A piece may
// be several operations: the pages of one visit. Each that is offered is served or
// failed in the end.
type Arrivals struct {
	Offered int64 `json:"offered,omitempty"` // meant to begin in the interval, whether or not they did
	Served  int64 `json:"served,omitempty"`  // done without an error
	Failed  int64 `json:"failed,omitempty"`  // given up, or done with an error
}

func (a *Arrivals) add(more Arrivals) {
	a.Offered, a.Served, a.Failed = a.Offered+more.Offered, a.Served+more.Served, a.Failed+more.Failed
}

// Open tells whether a schedule made any arrival.
func (a Arrivals) Open() bool { return a != Arrivals{} }

// Count is what became of the operations of one name.
type Count struct {
	Done   int64
	Errors int64
	Bytes  int64 // of payload, in those done
	// Of those done, in µs; nil where they are not timed one by one. Latency counts
	// from the intended start. Service, from the real one, is nil where the two are
	// the same: in closed loops. A program that tells no times before its end tells
	// those of all its operations with its last interval, which did only some of them.
	Latency, Service *hdrhistogram.Histogram
	Example          string // one of the errors, in words
}

// The bounds of what an interval may hold. Intervals come from guests.
const (
	MaxOps     = 64
	MaxLate    = 1024
	maxName    = 64
	maxExample = 300
	maxCount   = 1 << 53
	maxLength  = 30 * 24 * time.Hour
)

type countText struct {
	Done    int64  `json:"done"`
	Errors  int64  `json:"errors,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	Latency string `json:"latency,omitempty"`
	Service string `json:"service,omitempty"`
	Example string `json:"example,omitempty"`
}

// MarshalJSON keeps histograms as their texts.
func (c Count) MarshalJSON() ([]byte, error) {
	text := countText{Done: c.Done, Errors: c.Errors, Bytes: c.Bytes, Example: c.Example}
	for _, h := range []struct {
		of   *hdrhistogram.Histogram
		into *string
	}{{c.Latency, &text.Latency}, {c.Service, &text.Service}} {
		if h.of == nil {
			continue
		}
		var err error
		if *h.into, err = histogram.Encode(h.of); err != nil {
			return nil, err
		}
	}
	return json.Marshal(text)
}

// UnmarshalJSON refuses counts that cannot be, and times that do not fit them.
func (c *Count) UnmarshalJSON(data []byte) error {
	var text countText
	if err := json.Unmarshal(data, &text); err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Host, "cannot read a count")
	}
	for _, n := range []int64{text.Done, text.Errors, text.Bytes} {
		if n < 0 || n > maxCount {
			return fault.New(fault.Invalid, fault.Host, "cannot read a count: %d is not between 0 and 2^53", n)
		}
	}
	read := Count{Done: text.Done, Errors: text.Errors, Bytes: text.Bytes, Example: clip(text.Example)}
	for _, h := range []struct {
		of   string
		into **hdrhistogram.Histogram
	}{{text.Latency, &read.Latency}, {text.Service, &read.Service}} {
		if h.of == "" {
			continue
		}
		times, err := histogram.Decode(h.of)
		if err != nil {
			return err
		}
		if n := times.TotalCount(); n < text.Done || n > maxCount {
			return fault.New(fault.Invalid, fault.Host, "cannot read a count: %d done and %d times", text.Done, n)
		}
		*h.into = times
	}
	*c = read
	return nil
}

// Check refuses an interval that no load of the lab tells. Whoever reads one from
// a guest asks before it keeps it.
func (i Interval) Check() error {
	switch {
	case i.Length < 0 || i.Length > maxLength:
		return fault.New(fault.Invalid, fault.Host, "an interval of %v", i.Length)
	case len(i.Ops) > MaxOps:
		return fault.New(fault.Invalid, fault.Host, "an interval of %d operations: at most %d are allowed", len(i.Ops), MaxOps)
	}
	for name := range i.Ops {
		if name == "" || len(name) > maxName {
			return fault.New(fault.Invalid, fault.Host, "an operation whose name has %d bytes: 1 to %d are allowed", len(name), maxName)
		}
	}
	for _, n := range []int64{i.Offered, i.Served, i.Failed} {
		if n < 0 || n > maxCount {
			return fault.New(fault.Invalid, fault.Host, "an interval with %d arrivals: 0 to 2^53 are allowed", n)
		}
	}
	return i.checkLate()
}

func (i Interval) checkLate() error {
	if len(i.Late) > MaxLate {
		return fault.New(fault.Invalid, fault.Host, "an interval with work of %d earlier ones: at most %d are allowed", len(i.Late), MaxLate)
	}
	for _, late := range i.Late {
		if len(late.Late) > 0 || late.Offered != 0 || !late.Start.Before(i.Start) {
			return fault.New(fault.Invalid, fault.Host, "late work that is not of an earlier interval")
		}
		if err := late.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Total is the sum of intervals. Its zero is the sum of none.
type Total struct {
	Start  time.Time        `json:"start"`
	Length time.Duration    `json:"length"` // ns, from the first's start to the last's end
	Ops    map[string]Count `json:"ops"`
	Arrivals
}

// Add takes all that ended in an interval into the sum, late work included. What goes
// past MaxOps names, or past what can be counted, is refused.
func (t *Total) Add(i Interval) error {
	if err := i.Check(); err != nil {
		return err
	}
	if t.Ops == nil {
		t.Start, t.Ops = i.Start, map[string]Count{}
	}
	t.Length = max(t.Length, i.Start.Add(i.Length).Sub(t.Start))
	if err := t.take(i); err != nil {
		return err
	}
	for _, late := range i.Late {
		if err := t.take(late); err != nil {
			return err
		}
	}
	return nil
}

// take adds an interval without its late work.
func (t *Total) take(i Interval) error {
	if t.Offered+i.Offered > maxCount || t.Served+i.Served > maxCount || t.Failed+i.Failed > maxCount {
		return fault.New(fault.Invalid, fault.Host, "more than 2^53 arrivals")
	}
	t.add(i.Arrivals)
	for _, name := range slices.Sorted(maps.Keys(i.Ops)) {
		sum, known := t.Ops[name]
		if !known && len(t.Ops) == MaxOps {
			return fault.New(fault.Invalid, fault.Host, "more than %d names of operations", MaxOps)
		}
		more := i.Ops[name]
		if !sum.takes(more) {
			return fault.New(fault.Invalid, fault.Host, "more than 2^53 of %s", name)
		}
		sum.add(more)
		t.Ops[name] = sum
	}
	return nil
}

// All is the sum over the operations that a server would count, too: without
// OpCycle, whose pages are counted one by one, OpUndone and OpSetup.
func (t Total) All() Count {
	var all Count
	for _, name := range slices.Sorted(maps.Keys(t.Ops)) {
		if name != OpCycle && name != OpUndone && name != OpSetup {
			all.add(t.Ops[name])
		}
	}
	return all
}

// takes tells whether the sum of both is one that can be counted.
func (c *Count) takes(more Count) bool {
	times := func(a, b *hdrhistogram.Histogram) bool {
		return a == nil || b == nil || a.TotalCount()+b.TotalCount() <= maxCount
	}
	return c.Done+more.Done <= maxCount && c.Errors+more.Errors <= maxCount && c.Bytes+more.Bytes <= maxCount &&
		times(c.Latency, more.Latency) && times(c.Service, more.Service)
}

// add keeps the sum's histograms its own.
func (c *Count) add(more Count) {
	c.Done += more.Done
	c.Errors += more.Errors
	c.Bytes += more.Bytes
	c.Latency = histogram.Merge(c.Latency, more.Latency)
	c.Service = histogram.Merge(c.Service, more.Service)
	if c.Example == "" {
		c.Example = more.Example
	}
}

// clip keeps a text to what fits an example.
func clip(text string) string {
	if len(text) <= maxExample {
		return text
	}
	return text[:maxExample] + "…"
}
