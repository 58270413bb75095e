// Package machine reads what the kernel tells of the host and of single
// processes, for the lab: what a measured value depends on besides the daemon,
// and what a daemon takes for itself.
//
// What belongs here: facts as the kernel gives them, in plain units. What does
// not: opinions about them.
package machine

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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

// Machine reads what the kernel tells of itself, below Root: "/" of this host.
type Machine struct{ Root string }

func (m Machine) text(path ...string) string {
	data, err := os.ReadFile(filepath.Join(m.Root, filepath.Join(path...)))
	if err != nil {
		return "" // not every kernel tells everything
	}
	return strings.TrimSpace(string(data))
}

// Host gathers the facts that are known before QEMU has run.
func (m Machine) Host() Host {
	h := Host{
		Processors: runtime.NumCPU(),
		Kernel:     m.text("proc/sys/kernel/osrelease"),
		Governor:   m.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Memory:     m.Memory("MemTotal"),
		Load:       m.Load(),
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

// Memory is a line of /proc/meminfo, in bytes; 0 where it is not told.
func (m Machine) Memory(key string) uint64 {
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

// Load is the load average of the last minute.
func (m Machine) Load() float64 {
	first, _, _ := strings.Cut(m.text("proc/loadavg"), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// Ticks is the time of all processors since boot, and that which was stolen
// from them.
type Ticks struct{ All, Stolen uint64 }

// Ticks reads them.
func (m Machine) Ticks() (t Ticks) {
	first, _, _ := strings.Cut(m.text("proc/stat"), "\n")
	const steal, guest = 7, 8 // columns; what is behind steal is contained in others
	for i, word := range strings.Fields(strings.TrimPrefix(first, "cpu")) {
		n, _ := strconv.ParseUint(word, 10, 64)
		if i < guest {
			t.All += n
		}
		if i == steal {
			t.Stolen = n
		}
	}
	return t
}

// StealSince is the part of the time since before that was stolen.
func (t Ticks) StealSince(before Ticks) float64 {
	if t.All == before.All {
		return 0
	}
	return float64(t.Stolen-before.Stolen) / float64(t.All-before.All)
}

// Process is what the kernel tells of a process.
type Process struct {
	Name              string
	Resident, Private uint64 // bytes
	Threads           uint64
}

// Process looks at one.
func (m Machine) Process(pid int) (Process, error) {
	status, err := os.ReadFile(filepath.Join(m.Root, "proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot look at the daemon's process")
	}
	text := string(bytes.TrimSpace(status))
	p := Process{Resident: number(text, "VmRSS") << 10, Private: number(text, "RssAnon") << 10, Threads: number(text, "Threads")}
	if p.Resident == 0 {
		return p, fault.New(fault.Failed, fault.Host, "process %d has no memory: it has ended, or the kernel does not tell", pid)
	}
	_, name, _ := strings.Cut(text, "Name:")
	name, _, _ = strings.Cut(name, "\n")
	p.Name = strings.TrimSpace(name)
	return p, nil
}

// ProcessorTime is what a process has taken of the processors, in seconds, to
// the nanosecond.
func ProcessorTime(pid int) (float64, error) {
	const scheduled = 2 // the kind of clock: time on a processor
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the processor time of process %d", pid)
	}
	return time.Duration(t.Nano()).Seconds(), nil
}

// Files is how many descriptors a process has open.
func (m Machine) Files(pid int) (int, error) {
	files, err := os.ReadDir(filepath.Join(m.Root, "proc", strconv.Itoa(pid), "fd"))
	return len(files), fault.Wrap(err, fault.Failed, fault.Host, "cannot count the daemon's open files")
}

// OwnMemory is what one more such process takes, in bytes: not what files back,
// which all of them share, and of what is shared else its part.
func (m Machine) OwnMemory(pid int) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(m.Root, "proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0, fault.Wrap(err, fault.Failed, fault.Host, "cannot look at a process's memory")
	}
	return (number(string(text), "Pss") - number(string(text), "Pss_File")) << 10, nil
}

// Number reads a file below Root that holds one number; 0 where there is none.
func (m Machine) Number(path string) uint64 {
	n, _ := strconv.ParseUint(m.text(path), 10, 64)
	return n
}

// Accelerator is what QEMU's arguments say about it.
func Accelerator(args []string) string {
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
