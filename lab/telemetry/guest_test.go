package telemetry

import (
	"maps"
	"testing"
	"time"
)

// Promise: L16
func TestAGuestsCountersBecomeWhatHappened(t *testing.T) {
	var g Guest
	at := time.Unix(1000, 0)
	counted := map[string]float64{"cpus": 2, "load": 0.5, "memory_available_bytes": 1000, "cpu_user_s": 10, "cpu_system_s": 5, "cpu_idle_s": 100, "disk_read_bytes": 4096}
	first := g.Read(at, counted)
	if want := map[string]float64{"cpus": 2, "load": 0.5, "memory_available_bytes": 1000}; !maps.Equal(first, want) {
		t.Errorf("the first time: %v", first)
	}
	counted = map[string]float64{"cpus": 2, "load": 0.6, "memory_available_bytes": -1, "cpu_user_s": 13, "cpu_system_s": 6, "cpu_idle_s": 90, "disk_read_bytes": 8192}
	got := g.Read(at.Add(2*time.Second), counted)
	// The idle time fell, as after the guest has begun anew, and memory is nonsense.
	want := map[string]float64{"cpus": 2, "load": 0.6, "cpu_user_cores": 1.5, "cpu_system_cores": 0.5, "cpu_busy_cores": 2, "disk_read_bytes": 2048}
	if !maps.Equal(got, want) {
		t.Errorf("two seconds later: %v", got)
	}
}
