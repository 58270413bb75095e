package kernel

import (
	"math"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Ceiling is a limit of the kernel for the whole host, and how much of it is used.
type Ceiling struct {
	// Name is the sysctl's, as an administrator writes it: fs.aio-max-nr.
	Name      string
	Max, Used uint64
}

// Left returns the amount that the ceiling still allows.
func (c Ceiling) Left() uint64 { return c.Max - min(c.Used, c.Max) }

// counters are the ceilings with a usage count in the kernel, by name: the files below
// /proc/sys that hold the bound and the usage. The usage is the first number of its file.
var counters = []struct{ name, max, used string }{
	{"fs.aio-max-nr", "fs/aio-max-nr", "fs/aio-nr"},
	{"fs.file-max", "fs/file-max", "fs/file-nr"},
	{"kernel.pty.max", "kernel/pty/max", "kernel/pty/nr"},
}

// Ceilings reads the bounds on asynchronous I/O, open files, ptys and threads.
// One that this kernel does not have is left out.
func (r Root) Ceilings() ([]Ceiling, error) {
	var all []Ceiling
	for _, c := range counters {
		limit, err := r.sysctl(c.max)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		used, err := r.sysctl(c.used)
		if err != nil {
			return nil, err
		}
		all = append(all, Ceiling{c.name, limit, used})
	}
	queue, err := r.RunQueue()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"kernel.threads-max", "kernel.pid_max"} {
		limit, err := r.sysctl(sysctlFile(name))
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, Ceiling{name, limit, queue.All})
	}
	return all, nil
}

// sysctl reads the first number of a file below /proc/sys. A number beyond 64 bits
// counts as no bound.
func (r Root) sysctl(file string) (uint64, error) {
	text, err := r.read("proc/sys", file)
	if err != nil {
		return 0, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read /proc/sys/%s", file)
	}
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return 0, fault.New(fault.Failed, fault.Host, "/proc/sys/%s is empty", file)
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || n < 0 {
		return math.MaxUint64, nil
	}
	return uint64(n), nil
}

func sysctlFile(name string) string { return strings.ReplaceAll(name, ".", "/") }
