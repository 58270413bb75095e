package kernel

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// GroupStats is what a group used since it was made. What the host does not
// count is 0.
type GroupStats struct {
	// CPU is the processor time; User and System are its parts, counted more
	// coarsely in version 1.
	CPU, User, System time.Duration
	// PerCPU is the time on each processor, in version 1 only.
	PerCPU []time.Duration
	// Throttled is how long the quota held threads back.
	Throttled time.Duration
	// Memory and Swap are in bytes now, caches included.
	Memory, Swap uint64
	// Threads is how many there are now.
	Threads uint64
}

// Stats reads the amounts that the group has used.
func (g *Group) Stats() (GroupStats, error) {
	if err := g.checkExists(); err != nil {
		return GroupStats{}, err
	}
	var s GroupStats
	s.Threads, _ = g.count(PIDsController, "pids.current")
	if g.cgroups.v2 {
		g.readTimes(map[string]*time.Duration{
			"usage_usec": &s.CPU, "user_usec": &s.User, "system_usec": &s.System, "throttled_usec": &s.Throttled,
		}, time.Microsecond, CPUAccounting, "cpu.stat")
		s.Memory, _ = g.count(MemoryController, "memory.current")
		s.Swap, _ = g.count(MemoryController, "memory.swap.current")
		return s, nil
	}
	g.readTimes(map[string]*time.Duration{"throttled_time": &s.Throttled}, 1, CPUController, "cpu.stat")
	g.readTimes(map[string]*time.Duration{"user": &s.User, "system": &s.System}, tick, CPUAccounting, "cpuacct.stat")
	if ns, ok := g.count(CPUAccounting, "cpuacct.usage"); ok {
		s.CPU = time.Duration(min(ns, math.MaxInt64))
	}
	for field := range strings.FieldsSeq(g.value(CPUAccounting, "cpuacct.usage_percpu")) {
		if ns, err := strconv.ParseInt(field, 10, 64); err == nil {
			s.PerCPU = append(s.PerCPU, time.Duration(ns))
		}
	}
	s.Memory, _ = g.count(MemoryController, "memory.usage_in_bytes")
	if both, ok := g.count(MemoryController, "memory.memsw.usage_in_bytes"); ok {
		s.Swap = both - min(both, s.Memory)
	}
	return s, nil
}

// readTimes reads lines "key number" in the given unit.
func (g *Group) readTimes(into map[string]*time.Duration, unit time.Duration, c Controller, name string) {
	keyed(g.value(c, name), " ", func(key, value string) {
		if d := into[key]; d != nil {
			if n, err := strconv.ParseUint(value, 10, 63); err == nil && n <= uint64(math.MaxInt64/unit) {
				*d = time.Duration(n) * unit
			}
		}
	})
}
