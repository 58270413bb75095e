package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// roomForGarbage is how large the heap may become in any case before it is
// collected, in bytes. A daemon with few guests has little that lives, and would
// collect dozens of times in a storm; one with many collects at twice of what
// lives, as ever.
const roomForGarbage = 24 << 20

// sentinel is an object that nobody holds, so that each collection finds it.
type sentinel struct{ live []metrics.Sample }

// collectLess has the collector's pace set anew after each collection.
func collectLess() {
	s := &sentinel{live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	s.pace()
}

func (s *sentinel) pace() {
	metrics.Read(s.live)
	debug.SetGCPercent(pace(s.live[0].Value.Uint64()))
	runtime.SetFinalizer(s, (*sentinel).pace)
}

// pace is how much garbage there may be, in percent of what lives.
func pace(live uint64) int {
	const usual = 100
	if live >= roomForGarbage/2 {
		return usual
	}
	return int(roomForGarbage*100/max(live, 1<<20)) - 100
}
