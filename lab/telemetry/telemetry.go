// Package telemetry reads, once a second, what the host does while something is
// measured on it: processors, pressure, memory, page sharing, disks, links. Of
// guests it makes the same from what they say that they have counted.
//
// What belongs here: counters of kernels made into what happened in a second.
// What does not: opinions, and how guests are asked.
package telemetry

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Host reads a kernel's counters below a root: "/" is this host.
type Host struct {
	Root string

	at   time.Time
	last map[string]float64
}

// sector is the unit of disks' counters, in bytes, whatever the disk's own is.
const sector = 512

// Read gives what has happened since the last call, by second where it flows,
// and how things stand. The first call gives how things stand only.
func (h *Host) Read(now time.Time) map[string]float64 {
	values := h.levels()
	counters := h.counters()
	if h.last != nil && now.After(h.at) {
		maps.Copy(values, rates(counters, h.last, now.Sub(h.at).Seconds()))
	}
	h.at, h.last = now, counters
	return values
}

func (h *Host) text(path string) string {
	text, err := os.ReadFile(filepath.Join(h.Root, path))
	if err != nil {
		return "" // not every kernel tells everything
	}
	return string(text)
}

// levels are what is so now.
func (h *Host) levels() map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(h.text("proc/meminfo")) {
		name, rest, _ := strings.Cut(line, ":")
		if key, ok := memory[name]; ok {
			all[key] = first(rest) * 1024
		}
	}
	for file, key := range map[string]string{"pages_sharing": "ksm_sharing_bytes", "pages_shared": "ksm_shared_bytes"} {
		if text := h.text("sys/kernel/mm/ksm/" + file); text != "" {
			all[key] = first(text) * float64(os.Getpagesize())
		}
	}
	if text := h.text("proc/loadavg"); text != "" {
		all["load"] = first(text)
	}
	return all
}

var memory = map[string]string{
	"MemFree": "memory_free_bytes", "MemAvailable": "memory_available_bytes", "Cached": "memory_cached_bytes",
	"AnonPages": "memory_anonymous_bytes", "SwapFree": "swap_free_bytes", "Dirty": "memory_dirty_bytes",
}

// counters only grow. The names are of their rates.
func (h *Host) counters() map[string]float64 {
	all := map[string]float64{}
	h.processors(all)
	for _, what := range []string{"cpu", "memory", "io"} {
		for line := range strings.Lines(h.text("proc/pressure/" + what)) {
			kind, _, _ := strings.Cut(line, " ")
			if _, total, ok := strings.Cut(line, "total="); ok {
				all["pressure_"+what+"_"+kind+"_share"] = first(total) / 1e6
			}
		}
	}
	h.disks(all)
	h.links(all)
	return all
}

// processors are told in ticks of 1/100 s.
func (h *Host) processors(all map[string]float64) {
	names := []string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"}
	for line := range strings.Lines(h.text("proc/stat")) {
		words := strings.Fields(line)
		if len(words) > len(names) && words[0] == "cpu" {
			for i, name := range names {
				ticks, _ := strconv.ParseFloat(words[1+i], 64)
				all["cpu_"+name+"_cores"] = ticks / 100
				if name != "idle" && name != "iowait" && name != "steal" {
					all["cpu_busy_cores"] += ticks / 100
				}
			}
		}
		if len(words) == 2 && words[0] == "ctxt" {
			all["context_switches"], _ = strconv.ParseFloat(words[1], 64)
		}
	}
}

// disks adds up whole devices: partitions are parts of them.
func (h *Host) disks(all map[string]float64) {
	for line := range strings.Lines(h.text("proc/diskstats")) {
		words := strings.Fields(line)
		if len(words) < 13 {
			continue
		}
		if _, err := os.Stat(filepath.Join(h.Root, "sys/block", words[2])); err != nil || strings.HasPrefix(words[2], "loop") || strings.HasPrefix(words[2], "dm-") {
			continue
		}
		add := func(name string, column int, unit float64) {
			value, _ := strconv.ParseFloat(words[column], 64)
			all[name] += value * unit
		}
		add("disk_reads", 3, 1)
		add("disk_read_bytes", 5, sector)
		add("disk_writes", 7, 1)
		add("disk_written_bytes", 9, sector)
		add("disk_busy_share", 12, 1e-3)
	}
}

// links adds up all but the loop.
func (h *Host) links(all map[string]float64) {
	for line := range strings.Lines(h.text("proc/net/dev")) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		words := strings.Fields(rest)
		if !ok || name == "lo" || len(words) < 16 {
			continue
		}
		for column, key := range map[int]string{0: "net_in_bytes", 1: "net_in_packets", 3: "net_in_drops", 8: "net_out_bytes", 9: "net_out_packets", 11: "net_out_drops"} {
			value, _ := strconv.ParseFloat(words[column], 64)
			all[key] += value
		}
	}
}

// rates are by second. A counter that fell, as that of a device that went, tells
// nothing.
func rates(now, before map[string]float64, seconds float64) map[string]float64 {
	all := map[string]float64{}
	for name, value := range now {
		if old, ok := before[name]; ok && value >= old {
			all[name] = (value - old) / seconds
		}
	}
	return all
}

func first(text string) float64 {
	words := strings.Fields(text)
	if len(words) == 0 {
		return 0
	}
	value, _ := strconv.ParseFloat(words[0], 64)
	return value
}
