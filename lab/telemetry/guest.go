package telemetry

import (
	"maps"
	"strings"
	"time"
)

// Guest makes of what a guest's kernel has counted since its boot what has
// happened in it by second. The zero value is one that was not looked at yet.
type Guest struct {
	at   time.Time
	last map[string]float64
}

// stands are what a guest tells that is no counter.
var stands = map[string]bool{
	"cpus": true, "load": true, "memory_available_bytes": true, "memory_total_bytes": true, "swap_used_bytes": true,
}

// Read takes what the guest has counted, and gives what has happened since the last
// time, by second where it flows, and how things stand. The first time it gives how
// things stand only. Seconds of processors become cores. What a guest says below zero
// is left out.
func (g *Guest) Read(now time.Time, counted map[string]float64) map[string]float64 {
	values, counters := map[string]float64{}, map[string]float64{}
	for name, value := range counted {
		switch {
		case value < 0:
		case stands[name]:
			values[name] = value
		default:
			if cores, ok := strings.CutSuffix(name, "_s"); ok {
				name = cores + "_cores"
			}
			counters[name] = value
		}
	}
	if user, ok := counters["cpu_user_cores"]; ok {
		counters["cpu_busy_cores"] = user + counters["cpu_system_cores"]
	}
	if g.last != nil && now.After(g.at) {
		maps.Copy(values, rates(counters, g.last, now.Sub(g.at).Seconds()))
	}
	g.at, g.last = now, counters
	return values
}
