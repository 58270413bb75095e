package kernel

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// RunQueue is how many threads the host has at one moment.
type RunQueue struct {
	// Runnable threads are on a processor or wait for one; the reader is among
	// them.
	Runnable uint64
	All      uint64
}

// RunQueue reads /proc/loadavg; its fourth field is "runnable/all".
func (r Root) RunQueue() (RunQueue, error) {
	text, err := r.read("proc/loadavg")
	if err != nil {
		return RunQueue{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot count the host's threads")
	}
	if fields := strings.Fields(text); len(fields) > 3 {
		runnable, all, _ := strings.Cut(fields[3], "/")
		var q RunQueue
		var errs [2]error
		q.Runnable, errs[0] = strconv.ParseUint(runnable, 10, 64)
		q.All, errs[1] = strconv.ParseUint(all, 10, 64)
		if errs[0] == nil && errs[1] == nil {
			return q, nil
		}
	}
	return RunQueue{}, fault.New(fault.Failed, fault.Host, "cannot understand /proc/loadavg: %.64q", strings.TrimSpace(text))
}

// Resource is a resource that a process may have to wait for.
type Resource string

// The resources with a pressure file in the kernel.
const (
	CPUPressure    Resource = "cpu"
	MemoryPressure Resource = "memory"
)

// Pressure is how much time is lost waiting for a resource.
type Pressure struct {
	// Some is lost by at least one process, Full by all of them at once.
	Some, Full Stall
}

// Stall is a share of time in percent, over windows, and the sum since boot.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Pressure reads /proc/pressure; NotFound on kernels without it.
func (r Root) Pressure(of Resource) (Pressure, error) {
	text, err := r.read("proc/pressure", string(of))
	if err != nil {
		return Pressure{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the pressure on %s", of)
	}
	return parsePressure(text), nil
}

func parsePressure(text string) (p Pressure) {
	keyed(text, " ", func(key, value string) {
		switch key {
		case "some":
			p.Some = parseStall(value)
		case "full":
			p.Full = parseStall(value)
		}
	})
	return p
}

// longestStall is the longest time that a time.Duration holds, in µs.
const longestStall = float64(math.MaxInt64 / int64(time.Microsecond))

func parseStall(text string) Stall {
	var s Stall
	for field := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(field, "=")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil || !(number >= 0 && number <= longestStall) {
			continue // NaN, too
		}
		switch key {
		case "avg10":
			s.Avg10 = number
		case "avg60":
			s.Avg60 = number
		case "avg300":
			s.Avg300 = number
		case "total":
			s.Total = time.Duration(number) * time.Microsecond
		}
	}
	return s
}

// AllocationStalls counts how often since boot a thread that needed memory had to
// free some first. It shows memory pressure on kernels without pressure files.
// NotFound if the kernel does not count it.
func (r Root) AllocationStalls() (uint64, error) {
	text, err := r.read("proc/vmstat")
	if err != nil {
		return 0, fault.Wrap(err, fault.Of(err), fault.Host, "cannot count the host's waits for memory")
	}
	var sum uint64
	found := false
	keyed(text, " ", func(key, value string) {
		if strings.HasPrefix(key, "allocstall") { // one for each zone of memory
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				sum, found = sum+n, true
			}
		}
	})
	if !found {
		return 0, fault.New(fault.NotFound, fault.Host, "the kernel does not count waits for memory")
	}
	return sum, nil
}
