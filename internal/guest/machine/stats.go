package machine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// StatsCache keeps one guest's newest sample and takes the next one. Only one sample is taken at a time, and all
// callers wait for that one. So a stuck guest costs one goroutine and one query, however many clients ask.
type StatsCache struct {
	Sample sampleFunc

	// Mu guards the fields below. It is held for a few assignments only.
	Mu   sync.Mutex
	Last *Stats
	// Early holds the kernel's figures for a guest until QEMU has reported its own.
	Early   *Stats
	Failure *SampleFailure // how the newest sampling failed; nil: it did not
	Current *Sampling
	Begun   time.Time // when the newest sampling began; zero: there was none
	Since   time.Time // when the guest started: older samplings belong to an earlier instance
	// Outdated says that a figure which is sampled rarely has changed.
	Outdated bool
}

// sampleFunc takes a sample. last is the previous sample, if there is one. thorough asks for all figures, also
// those that change slowly. early receives the figures that are known before QEMU is asked.
type sampleFunc func(ctx context.Context, last *Stats, thorough bool, early func(*Stats)) (*Stats, error)

// Sampling is a sample in progress. Done is closed when it has ended.
type Sampling struct {
	Began time.Time
	Done  chan struct{}
	Stats *Stats
	Err   error
}

// SampleFailure is the reason why there is no new sample.
type SampleFailure struct {
	Since time.Time
	Why   error
}

// Restart forgets the samples of an earlier instance.
func (g *StatsCache) Restart(now time.Time) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Last, g.Early, g.Failure, g.Current = nil, nil, nil, nil
	g.Begun, g.Since, g.Outdated = time.Time{}, now, false
}

// VCPUThread is one vCPU of a running guest and its thread on the host.
type VCPUThread struct {
	Index  uint
	Thread int
}

// Sampler takes the samples of all running guests. It is one goroutine that sleeps between rounds, and
// while no guest runs.
//
//	running guests ──▶ those due, oldest first ──▶ as many as the pace allows ──▶ their StatsCache
type Sampler struct {
	Running func() []*StatsCache
	CPU     func() time.Duration // CPU time that the daemon has used
	Made    time.Time
	Asked   atomic.Int64  // when a client last asked for all samples, in nanoseconds after Made: a clock that no one can set
	Wake    chan struct{} // buffered: holds one signal

	// The fields below belong to the sampler's goroutine.

	Cost   Cost
	Credit float64 // how many samples the pace allows by now
	Firsts float64 // the same for first samples
}

// Nudge makes the sampler check now whether there is something to do.
func (s *Sampler) Nudge() {
	select {
	case s.Wake <- struct{}{}:
	default: // it will check in any case
	}
}

// Cost is the CPU time that one sample costs, as far as it is known.
type Cost time.Duration

// QueryLimit bounds a query to QEMU that a client waits for.
const QueryLimit = 5 * time.Second

// Stats is one sample of the host resources that a guest uses. Counters count from its start. Samples are
// immutable: a reader may keep one, and must not change it.
type Stats struct {
	// At is when the sample was taken. Figures that change slowly, or not while the guest is paused, may be
	// older.
	At time.Time
	// Stale says why there is no newer sample although one is due, and StaleSince since when. Nil: the
	// sample is up to date.
	Stale      error
	StaleSince time.Time

	// CPU is the CPU time of the whole process.
	CPU, User, System time.Duration
	Resident          uint64 // bytes of host memory

	Balloon Balloon
	VCPUs   []VCPUStats
	Disks   []DiskStats
	NICs    []NICStats // in the definition's order

	IOThreads []IOThreadStats

	// Def and Threads are the definition and threads at the time of the sample. Thorough is when QEMU was
	// last asked for the figures that change slowly. The next sample builds on them.
	Def      *domain.Definition
	Threads  []VCPUThread
	Thorough time.Time
}

// BalloonFigure is one of the figures that a guest reports on its own memory.
type BalloonFigure uint8

// The figures are in bytes, except for those that count.
const (
	SwappedIn BalloonFigure = iota
	SwappedOut
	MajorFaults // count
	MinorFaults // count
	FreeMemory
	TotalMemory
	AvailableMemory
	DiskCaches
	HugePagesGiven   // count
	HugePagesRefused // count

	BalloonFigures
)

// Balloon holds the known figures of the guest's memory. The guest's own figures are of the time Updated. A
// guest may report false ones.
type Balloon struct {
	Current uint64 // bytes
	Updated time.Time

	Figures [BalloonFigures]uint64
	Known   uint16 // one bit per figure that the guest reported
}

// VCPUStats is the CPU time of one vCPU.
type VCPUStats struct {
	Index   uint
	Time    time.Duration
	Waiting time.Duration // runnable but not running
}

// DiskStats counts one disk's traffic. Times are sums over all requests.
type DiskStats struct {
	Target, Alias, Path                      string
	ReadOps, ReadBytes, WriteOps, WriteBytes uint64
	FlushOps                                 uint64
	ReadTime, WriteTime, FlushTime           time.Duration
	// Allocation is the highest offset written, Capacity the size that the guest sees, and Physical the
	// size on the host. All are in bytes.
	Allocation, Capacity, Physical uint64
	// Index is the number of the top image in the running guest. 0: there is none.
	Index uint
	// Backing are the images below the top one, from the top down. Their traffic is part of the disk's;
	// only their sizes are separate.
	Backing []LayerStats
}

// LayerStats holds the sizes, in bytes, of one image below a disk's top image.
type LayerStats struct {
	Path                           string
	Allocation, Capacity, Physical uint64
	Index                          uint // the number of its block node
}

// NICStats counts one interface's traffic, as the guest sees it. If the host does not count it, IfName is
// empty.
type NICStats struct {
	IfName, MAC string
	hostnet.Counters

	Counted // for the next sample
}

// Counted is the link where the host counts an interface's traffic: its index, and whether its direction is
// the guest's.
type Counted struct {
	Index   int
	AsGuest bool
}
