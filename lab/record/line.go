package record

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// WarmUp is the number of the window that never counts. Those that do are
// numbered from 1.
const WarmUp = 0

// Labels say of what in the turn a line is. Which exist: tile, guest, load, op,
// and what a kind of load has of its own.
type Labels map[string]string

// Key is the same for same labels.
func (l Labels) Key() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l)) {
		b.WriteString(name + "=" + l[name] + " ")
	}
	return strings.TrimSpace(b.String())
}

// Sample is one value.
type Sample struct {
	Time time.Time `json:"time"`
	Turn
	Window int     `json:"window"`
	Metric string  `json:"metric"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Labels Labels  `json:"labels,omitempty"`
}

// The metrics of every load. Operations belong to the window in which they were meant
// to begin, but on the time line, which has them when they ended. A rate is of what
// went well: errors are counted beside and never in it. Others have the names that
// their load gives them.
const (
	MetricDone     = "done"     // operations in the window that went well, count
	MetricErrors   = "errors"   // and those that did not, count
	MetricRate     = "rate"     // done by the length of the window, 1/s
	MetricSecond   = "second"   // done in one interval of about a second, 1/s: the time line
	MetricLength   = "length"   // of the window of one load, s
	MetricOffered  = "offered"  // arrivals of an open load that were meant to begin in the window, count
	MetricAnswered = "answered" // those of them that were done without an error, whenever that was, count
	MetricServed   = "served"   // done as the server's own log has it over the turn, count
	MetricSent     = "sent"     // done as the load has it over the same time, count
	MetricLatency  = "latency"  // of one operation, from when it was meant to begin
	MetricService  = "service"  // of one operation, from when it did begin
	MetricBoot     = "boot"     // from the start until the guest's agent answered, s
	MetricDrift    = "drift"    // of a guest's clock against the host's over the turn, part
	MetricOutage   = "outage"   // longest time without an operation that went well, s
	MetricDuration = "duration" // of an event, s

	// What an event meant for a load: its rate before, while and after the event,
	// what it did less than it would have done meanwhile at the rate before, and the
	// longest that it waited then.
	MetricBefore = "rate.before" // 1/s
	MetricDuring = "rate.during" // 1/s
	MetricAfter  = "rate.after"  // 1/s
	MetricLost   = "lost"        // count
	MetricPause  = "pause"       // s
)

// Histogram is a distribution of times of one window.
type Histogram struct {
	Time time.Time `json:"time"`
	Turn
	Window int    `json:"window"`
	Metric string `json:"metric"` // MetricLatency or MetricService
	Unit   string `json:"unit"`   // µs
	Labels Labels `json:"labels,omitempty"`
	Values string `json:"values"` // an HdrHistogram, version 2, compressed, base64
}

// Pack puts times into the line.
func (h *Histogram) Pack(times *hdrhistogram.Histogram) (err error) {
	h.Values, err = histogram.Encode(times)
	return err
}

// Times takes them out again.
func (h *Histogram) Times() (*hdrhistogram.Histogram, error) {
	times, err := histogram.Decode(h.Values)
	return times, fault.Wrap(err, fault.Invalid, fault.Host, "times of %s", h.Metric)
}

// Telemetry is what something did in about one second.
type Telemetry struct {
	Time time.Time `json:"time"`
	Turn
	Source string             `json:"source"`           // host, or guest:NAME
	Labels Labels             `json:"labels,omitempty"` // of a guest: its tile and role
	Values map[string]float64 `json:"values"`           // names end in their unit: cpu_busy_share, net_rx_bytes
}

// Kind says what an event is.
type Kind string

// The kinds of events.
const (
	Begin   Kind = "begin"   // a turn begins
	Done    Kind = "done"    // a turn has ended, and counts
	Window  Kind = "window"  // a window begins; its number in Window
	Change  Kind = "change"  // something was changed on purpose, in the run or in the host's settings
	Skipped Kind = "skipped" // something cannot be done here, and why
	Failed  Kind = "failed"  // something went wrong; the run went on
	Bad     Kind = "bad"     // something does not hold that has to: a count that differs, a bound, a clock
	Resumed Kind = "resumed" // the run was killed or stopped before, and goes on here
	Note    Kind = "note"    // worth knowing
)

// WhatBound is the word of an event that says that a bound was broken: its labels
// are load, tile and metric, and ValueBound is what was measured instead.
const (
	WhatBound  = "bound"
	ValueBound = "value"
)

// WhatWarmup is the word of the event with which the first window begins where nobody
// knew beforehand when: its values are how long the warm-up was and whether the loads
// were steady then, 1, or not, 0. Loads that were not are told by a bad event of that
// word, too.
const (
	WhatWarmup  = "warmup"
	ValueWarmup = "warmup_s"
	ValueSteady = "steady"
)

// WhatOutside is the word of an event that says why an arm outside of a guest cannot
// be run here.
const WhatOutside = "outside"

// Event is what happened.
type Event struct {
	Time time.Time `json:"time"`
	Turn
	Window int                `json:"window,omitempty"`
	Kind   Kind               `json:"kind"`
	What   string             `json:"what,omitempty"`   // one word: vcpus, migrate, boot, tuning
	Guest  string             `json:"guest,omitempty"`  // whose
	Text   string             `json:"text,omitempty"`   // for people
	Labels Labels             `json:"labels,omitempty"` // of what, and of a bound the metric
	Values map[string]float64 `json:"values,omitempty"`
}
