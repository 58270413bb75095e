package kernel

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Process is one process or one thread at the moment of reading.
type Process struct {
	// ID is the process's number, or the thread's.
	ID int
	// Name is the command name, at most 15 bytes; QEMU's threads carry theirs
	// ("CPU 0/KVM"). It is the process's own choice: do not trust it.
	Name string
	// State is the kernel's letter: R, S, D, Z, T, ...
	State byte
	// Start is when it started, in ticks after boot. With the number it names a
	// process for the time of one boot.
	Start uint64
	// User and System are the processor time spent. For a process they cover all
	// its threads, ended ones included.
	User, System time.Duration
	// Processor is the number of the processor it last ran on.
	Processor int
	Threads   int
	// Resident is the RAM it holds, in bytes, shared pages included.
	Resident uint64
}

// Process reads /proc/PID/stat; NotFound when there is no such process.
func (r Root) Process(pid int) (Process, error) {
	return r.stat("proc", strconv.Itoa(pid))
}

// Thread reads one thread of a process.
func (r Root) Thread(pid, tid int) (Process, error) {
	return r.stat("proc", strconv.Itoa(pid), "task", strconv.Itoa(tid))
}

// HasThread reports whether a thread belongs to a process. On the running host it sends the
// thread signal 0.
func (r Root) HasThread(pid, tid int) bool {
	if !r.isLive() {
		return r.exists("proc", strconv.Itoa(pid), "task", strconv.Itoa(tid))
	}
	err := unix.Tgkill(pid, tid, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}

// Threads reads every thread of a process, by ascending number. Threads that end
// meanwhile are left out.
func (r Root) Threads(pid int) ([]Process, error) {
	tids, err := r.ThreadIDs(pid)
	if err != nil {
		return nil, err
	}
	threads := make([]Process, 0, len(tids))
	for _, tid := range tids {
		if t, err := r.Thread(pid, tid); err == nil {
			threads = append(threads, t)
		}
	}
	return threads, nil
}

// ThreadIDs lists the numbers of a process's threads, ascending.
func (r Root) ThreadIDs(pid int) ([]int, error) {
	tids := sortedNumbers(r.list("proc", strconv.Itoa(pid), "task"), "")
	if len(tids) == 0 {
		return nil, fault.New(fault.NotFound, fault.Host, "there is no process %d", pid)
	}
	return slices.Compact(tids), nil
}

// The fields of stat that are read, counted from the state, which follows the
// name.
const (
	statState     = 0
	statUser      = 11
	statSystem    = 12
	statThreads   = 17
	statStart     = 19
	statRSS       = 21
	statProcessor = 36
)

func (r Root) stat(elem ...string) (Process, error) {
	id := elem[len(elem)-1]
	var line [brief]byte
	text, err := r.readBrief(line[:], append(elem, "stat")...)
	if err != nil {
		return Process{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read process %s", id)
	}
	p, ok := parseStat(text)
	if !ok {
		return Process{}, fault.New(fault.Failed, fault.Host, "cannot understand the kernel's line about process %s", id)
	}
	return p, nil
}

// parseStat parses the one line. The name is in parentheses and may contain any byte,
// also parentheses: it ends at the last one.
func parseStat(text string) (Process, bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return Process{}, false
	}
	id, err := strconv.Atoi(strings.TrimSpace(text[:open]))
	var fields [statProcessor + 1]string
	found := 0
	for field := range strings.FieldsSeq(text[end+1:]) {
		if found == len(fields) {
			break
		}
		fields[found] = field
		found++
	}
	if err != nil || found < len(fields) {
		return Process{}, false
	}
	p := Process{
		ID:     id,
		Name:   text[open+1 : end],
		State:  fields[statState][0],
		User:   ticks(fields[statUser]),
		System: ticks(fields[statSystem]),
	}
	p.Start, err = strconv.ParseUint(fields[statStart], 10, 64)
	if err != nil {
		return Process{}, false
	}
	p.Threads, _ = strconv.Atoi(fields[statThreads])
	p.Processor, _ = strconv.Atoi(fields[statProcessor])
	if pages, err := strconv.ParseInt(fields[statRSS], 10, 64); err == nil && pages > 0 {
		p.Resident = uint64(pages) * uint64(os.Getpagesize())
	}
	return p, true
}

// Schedule is the scheduler's account of a thread since its start.
type Schedule struct {
	// Run is the time on a processor, to the nanosecond; Wait is the time it was
	// ready and had none.
	Run, Wait time.Duration
	// Slices is how often it got a processor.
	Slices uint64
}

// Schedule reads the scheduler's account of one thread; NotFound on kernels
// without it. A process's own number gives its first thread alone.
//
// The account of a living thread is read below the thread's own number, not below
// its process's. Every name below /proc/PID/task that was ever read stays in the kernel's
// cache, and many processes that end at once compete for the lock of those names.
func (r Root) Schedule(pid, tid int) (Schedule, error) {
	place := []string{"proc", strconv.Itoa(pid), "task", strconv.Itoa(tid), "schedstat"}
	if r.isLive() {
		if !r.HasThread(pid, tid) {
			return Schedule{}, fault.New(fault.NotFound, fault.Host, "process %d has no thread %d", pid, tid)
		}
		place = []string{"proc", strconv.Itoa(tid), "schedstat"}
	}
	var line [brief]byte
	text, err := r.readBrief(line[:], place...)
	if err != nil {
		return Schedule{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read how thread %d was scheduled", tid)
	}
	var numbers [3]uint64
	i := 0
	for field := range strings.FieldsSeq(text) {
		if i == len(numbers) {
			break
		}
		if numbers[i], err = strconv.ParseUint(field, 10, 63); err != nil {
			return Schedule{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot understand the scheduler's account of thread %d", tid)
		}
		i++
	}
	return Schedule{time.Duration(numbers[0]), time.Duration(numbers[1]), numbers[2]}, nil
}

// ProcessMemory is the memory of one process, in bytes.
type ProcessMemory struct {
	// Virtual is the size of the address space, Resident the part in RAM, Peak the
	// largest Resident so far, Swapped the part in swap, Locked the part that must stay in RAM.
	Virtual, Resident, Peak, Swapped, Locked uint64
	// Anonymous, File and Shared are the kinds of resident memory.
	Anonymous, File, Shared uint64
}

// ProcessMemory reads the counters in /proc/PID/status, which need no lock.
func (r Root) ProcessMemory(pid int) (ProcessMemory, error) {
	text, err := r.read("proc", strconv.Itoa(pid), "status")
	if err != nil {
		return ProcessMemory{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the memory of process %d", pid)
	}
	var m ProcessMemory
	fields := map[string]*uint64{
		"VmSize": &m.Virtual, "VmRSS": &m.Resident, "VmHWM": &m.Peak, "VmSwap": &m.Swapped, "VmLck": &m.Locked,
		"RssAnon": &m.Anonymous, "RssFile": &m.File, "RssShmem": &m.Shared,
	}
	keyed(text, ":", func(key, value string) {
		if into, ok := fields[key]; ok {
			if kib, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54); err == nil {
				*into = kib << 10
			}
		}
	})
	return m, nil
}

// ProcessIO counts the bytes that a process read and wrote since it started.
type ProcessIO struct {
	// ReadBytes and WriteBytes went through system calls; DiskReadBytes and
	// DiskWriteBytes reached a block device or will.
	ReadBytes, WriteBytes         uint64
	DiskReadBytes, DiskWriteBytes uint64
}

// ProcessIO reads /proc/PID/io, which needs root or the process's own user.
func (r Root) ProcessIO(pid int) (ProcessIO, error) {
	text, err := r.read("proc", strconv.Itoa(pid), "io")
	if err != nil {
		return ProcessIO{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the I/O of process %d", pid)
	}
	var p ProcessIO
	fields := map[string]*uint64{
		"rchar": &p.ReadBytes, "wchar": &p.WriteBytes, "read_bytes": &p.DiskReadBytes, "write_bytes": &p.DiskWriteBytes,
	}
	keyed(text, ":", func(key, value string) {
		if into, ok := fields[key]; ok {
			*into, _ = strconv.ParseUint(value, 10, 64) // 0 when unreadable
		}
	})
	return p, nil
}
