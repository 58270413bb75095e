package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// Host is what a value depends on besides the daemon. Values of hosts that
// differ are not compared.
type Host struct {
	Processor   string  `json:"processor"`
	Processors  int     `json:"processors"`
	Memory      uint64  `json:"memory"` // bytes
	Kernel      string  `json:"kernel"`
	Governor    string  `json:"governor,omitempty"` // of the first processor's frequency, where it has one
	Virtual     bool    `json:"virtual"`            // it is a guest itself
	Accelerator string  `json:"accelerator"`        // that QEMU ran under
	Load        float64 `json:"load"`               // of the last minute, before
}

// machine reads what the kernel tells of itself, below root.
type machine struct{ root string }

func (m machine) text(path ...string) string {
	data, err := os.ReadFile(filepath.Join(m.root, filepath.Join(path...)))
	if err != nil {
		return "" // not every kernel tells everything
	}
	return strings.TrimSpace(string(data))
}

func (m machine) host() Host {
	h := Host{
		Processors: runtime.NumCPU(),
		Kernel:     m.text("proc/sys/kernel/osrelease"),
		Governor:   m.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Memory:     m.memory("MemTotal"),
		Load:       m.load(),
	}
	for text := range strings.Lines(m.text("proc/cpuinfo")) {
		key, value, _ := strings.Cut(text, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			h.Processor = strings.TrimSpace(value)
		case "flags":
			h.Virtual = strings.Contains(value+" ", " hypervisor ")
		}
	}
	return h
}

// memory is a line of /proc/meminfo, in bytes; 0 where it is not told.
func (m machine) memory(key string) uint64 {
	return number(m.text("proc/meminfo"), key) << 10
}

// number is the value of a line such as "MemTotal: 42 kB", without its unit.
func number(text, key string) uint64 {
	for l := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(l, key+":"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return n
		}
	}
	return 0
}

func (m machine) load() float64 {
	first, _, _ := strings.Cut(m.text("proc/loadavg"), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// ticks is the time of all processors since boot, and that which was stolen
// from them.
type ticks struct{ all, stolen uint64 }

func (m machine) ticks() (t ticks) {
	first, _, _ := strings.Cut(m.text("proc/stat"), "\n")
	const steal, guest = 7, 8 // columns; what is behind steal is contained in others
	for i, word := range strings.Fields(strings.TrimPrefix(first, "cpu")) {
		n, _ := strconv.ParseUint(word, 10, 64)
		if i < guest {
			t.all += n
		}
		if i == steal {
			t.stolen = n
		}
	}
	return t
}

func (t ticks) stealSince(before ticks) float64 {
	if t.all == before.all {
		return 0
	}
	return float64(t.stolen-before.stolen) / float64(t.all-before.all)
}

// process is what the kernel tells of a process.
type process struct {
	name              string
	resident, private uint64 // bytes
	threads           uint64
}

func (m machine) process(pid int) (process, error) {
	status, err := os.ReadFile(filepath.Join(m.root, "proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return process{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot look at the daemon's process")
	}
	text := string(bytes.TrimSpace(status))
	p := process{resident: number(text, "VmRSS") << 10, private: number(text, "RssAnon") << 10, threads: number(text, "Threads")}
	if p.resident == 0 {
		return p, fault.New(fault.Failed, fault.Host, "process %d has no memory: it has ended, or the kernel does not tell", pid)
	}
	_, name, _ := strings.Cut(text, "Name:")
	name, _, _ = strings.Cut(name, "\n")
	p.name = strings.TrimSpace(name)
	return p, nil
}

// accelerator is what QEMU's arguments say about it.
func accelerator(args []string) string {
	for i, arg := range args {
		if i == 0 {
			continue
		}
		switch args[i-1] {
		case "-accel":
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "accel="), ",")
			return name
		case "-machine":
			if _, after, ok := strings.Cut(arg, "accel="); ok {
				name, _, _ := strings.Cut(after, ",")
				return name
			}
		}
	}
	return "tcg" // QEMU's own choice
}
