package kernel

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// tick is the unit of times in /proc: USER_HZ is 100 on every architecture that
// runs KVM guests, whatever the kernel's own clock rate is.
const tick = 10 * time.Millisecond

// CPUTimes is the time of the processors since boot, by kind.
type CPUTimes struct {
	// Total is the sum, offline time left out.
	Total CPUTime
	// Each is by number of the processor; offline ones are missing.
	Each map[int]CPUTime
}

// CPUTime is the time of one processor since boot, by kind. Time for guests is within
// User and Nice.
type CPUTime struct {
	User, Nice, System, Idle, IOWait, IRQ, SoftIRQ, Steal time.Duration
}

// CPUTimes reads /proc/stat.
func (r Root) CPUTimes() (CPUTimes, error) {
	text, err := r.read("proc/stat")
	if err != nil {
		return CPUTimes{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the processors' times")
	}
	times := CPUTimes{Each: map[int]CPUTime{}}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		t := cpuTime(fields[1:])
		if number := fields[0][3:]; number == "" {
			times.Total = t
		} else if id, err := strconv.Atoi(number); err == nil {
			times.Each[id] = t
		}
	}
	return times, nil
}

func cpuTime(fields []string) CPUTime {
	var t CPUTime
	into := []*time.Duration{&t.User, &t.Nice, &t.System, &t.Idle, &t.IOWait, &t.IRQ, &t.SoftIRQ, &t.Steal}
	for i, field := range fields[:min(len(fields), len(into))] {
		*into[i] = ticks(field)
	}
	return t
}

// ticks reads a count of ticks.
func ticks(text string) time.Duration {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(tick) {
		return 0
	}
	return time.Duration(n) * tick
}

// Processor is the kernel's description of the first processor.
type Processor struct {
	// Vendor is the kernel's spelling, such as GenuineIntel.
	Vendor, Model string
	// Family, ModelNumber and Stepping are x86's signature; -1 elsewhere.
	Family, ModelNumber, Stepping int
	Microcode                     uint64
	// MHz is the clock rate at the time of reading; 0: the kernel does not report it.
	MHz float64
	// PhysicalBits is the width of physical addresses; 0: the kernel does not report it.
	PhysicalBits int
	// Flags are the features in the kernel's spelling and order.
	Flags []string
	// CPUID are the leaves of x86 that list features; nil on other architectures, and
	// in a recorded tree. Flags lacks the features that the kernel itself does not use.
	CPUID []CPUIDLeaf
}

// Processor reads /proc/cpuinfo.
func (r Root) Processor() (Processor, error) {
	text, err := r.read("proc/cpuinfo")
	if err != nil {
		return Processor{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the processor's description")
	}
	// The file lists one processor after the other, with an empty line between them.
	first, _, _ := strings.Cut(text, "\n\n")
	p := Processor{Family: -1, ModelNumber: -1, Stepping: -1}
	keyed(first, ":", func(key, value string) { p.take(key, value) })
	if p.MHz == 0 {
		p.MHz = float64(r.size(cpuDir, "cpu0/cpufreq/cpuinfo_max_freq")) / 1000
	}
	if r.isLive() {
		p.CPUID = cpuidLeaves()
	}
	return p, nil
}

func (p *Processor) take(key, value string) {
	number, err := strconv.Atoi(value)
	if err != nil {
		number = -1
	}
	switch key {
	case "vendor_id":
		p.Vendor = value
	case "model name":
		p.Model = value
	case "cpu family":
		p.Family = number
	case "model":
		p.ModelNumber = number
	case "stepping":
		p.Stepping = number
	case "microcode":
		p.Microcode, _ = strconv.ParseUint(value, 0, 64)
	case "cpu MHz":
		p.MHz, _ = strconv.ParseFloat(value, 64)
	case "address sizes":
		bits, _, _ := strings.Cut(value, " ")
		p.PhysicalBits, _ = strconv.Atoi(bits)
	case "flags", "Features":
		p.Flags = strings.Fields(value)
	}
}
