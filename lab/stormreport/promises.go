package stormreport

import (
	"fmt"

	"github.com/lodge-kvm/lodge/lab/storm"
)

// promise is one line of the table of what Lodge says it reaches.
type promise struct {
	what  string // %d: the number of guests
	place place
	value quantity
	to    yardstick
	limit float64
}

// quantity says which figure of a place is meant.
type quantity int

const (
	whole   quantity = iota // of the sample: the whole storm, in seconds
	typical                 // p50 of single calls
	tail                    // p99 of single calls
)

// yardstick says what a promise is held against.
type yardstick int

const (
	toDirect yardstick = iota // times the bare command line
	toOthers                  // times the first other daemon
	toClock                   // seconds
	toIdle                    // times the same when nothing is stopped
	toLine                    // power with which the cost of all grows
	toBudget                  // bytes of memory: a part for itself and one for each guest
	toNone                    // threads for each guest
	toCore                    // share of a core
)

// The budget of a daemon's memory, in bytes.
const (
	budget     = 64 << 20
	budgetEach = 64 << 10
)

// flat is the slope of a line, in threads a guest, that counts as level: one
// thread more for fifty guests.
const flat = 0.02

// promises are those of the project, in the order in which they are shown.
var promises = []promise{
	{"start %d guest", place{storm.Start, 1, 0, "", storm.MetricStart}, whole, toDirect, 1.3},
	{"start %d guests", place{storm.Start, 256, 0, "", storm.MetricStart}, whole, toDirect, 1.15},
	{"start %d guests with 16 disks", place{storm.Start, 64, 16, "", storm.MetricStart}, whole, toDirect, 1.2},
	{"destroy %d guest", place{storm.Start, 1, 0, "", storm.MetricDestroy}, whole, toDirect, 3},
	{"destroy %d guests", place{storm.Start, 256, 0, "", storm.MetricDestroy}, whole, toDirect, 2},
	{"destroy %d guests with 16 disks", place{storm.Start, 64, 16, "", storm.MetricDestroy}, whole, toDirect, 3},
	{"define %d guests with 16 disks", place{storm.Define, 64, 16, "", storm.MetricDefine}, whole, toOthers, 0.5},
	{"statistics of all, %d guests, p50", place{storm.Stats, 256, 0, storm.Idle, storm.MetricStats}, typical, toClock, 0.005},
	{"the same, a tenth stopped, p50", place{storm.Stats, 256, 0, storm.Stopped, storm.MetricStats}, typical, toClock, 0.005},
	{"the same, with NOWAIT, p50", place{storm.Stats, 256, 0, storm.StoppedNoWait, storm.MetricStats}, typical, toClock, 0.005},
	{"resume one while callers hang, p99", place{storm.Wedge, 64, 0, storm.Wedged, storm.MetricResume}, tail, toClock, 0.020},
	{"other calls while callers hang, worst p99", place{storm.Wedge, 64, 0, storm.Wedged, ""}, tail, toIdle, disturbed},
	{"adopt %d guests after kill -9", place{storm.Adopt, 128, 0, "", storm.MetricAdopt}, whole, toClock, 0.25},
	{"memory of the daemon at %d guests", place{storm.Start, 256, 0, "", storm.MetricResident}, whole, toBudget, 1},
	{"threads of the daemon, up to %d guests", place{storm.Thousand, 1000, 0, "", storm.MetricThreads}, whole, toNone, flat},
	{"growth of a start's cost, up to %d guests", place{storm.Thousand, 1000, 0, "", storm.MetricStart + "." + storm.MetricEach}, whole, toLine, 1.1},
	{"idle daemon with %d guests", place{storm.Thousand, 1000, 0, storm.Idle, storm.MetricProcessor}, whole, toCore, 0.01},
}

// said is how a promise reads in its table.
func (p promise) said() string {
	switch p.to {
	case toDirect:
		return "≤ " + timesTick(p.limit) + " direct"
	case toOthers:
		return "≤ " + timesTick(p.limit) + " the other"
	case toIdle:
		return "≤ " + timesTick(p.limit) + " idle"
	case toLine:
		return fmt.Sprintf("power ≤ %.4g", p.limit)
	case toBudget:
		return "≤ 64 MiB + 64 KiB a guest"
	case toNone:
		return fmt.Sprintf("≤ %.4g a guest", p.limit)
	case toCore:
		return fmt.Sprintf("≤ %.4g %% of a core", 100*p.limit)
	case toClock:
	}
	return "≤ " + tick(p.limit)
}
