package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// queryLimit bounds a query to QEMU that a client waits for.
const queryLimit = 5 * time.Second

// Stats is one sample of what a guest uses. Counters count from its start. Samples are immutable: a reader
// may keep one, and must not change it.
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

	// def and threads are the definition and threads at the time of the sample. thorough is when QEMU was
	// last asked for what changes slowly. The next sample builds on them.
	def      *domain.Definition
	threads  []vcpuThread
	thorough time.Time
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

	balloonFigures
)

// qemuFigures are QEMU's names of the figures.
var qemuFigures = [balloonFigures]string{
	"stat-swap-in", "stat-swap-out", "stat-major-faults", "stat-minor-faults", "stat-free-memory", "stat-total-memory",
	"stat-available-memory", "stat-disk-caches", "stat-htlb-pgalloc", "stat-htlb-pgfail",
}

// Balloon holds the known figures of the guest's memory. The guest's own figures are of the time Updated. A
// guest may report false ones.
type Balloon struct {
	Current uint64 // bytes
	Updated time.Time

	figures [balloonFigures]uint64
	known   uint16 // one bit per figure that the guest reported
}

// Figure returns a figure. ok is false if the guest did not report it.
func (b *Balloon) Figure(f BalloonFigure) (value uint64, ok bool) {
	return b.figures[f], b.known&(1<<f) != 0
}

// Report sets a figure.
func (b *Balloon) Report(f BalloonFigure, value uint64) {
	b.figures[f] = value
	b.known |= 1 << f
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

	counted // for the next sample
}

// counted is the link where the host counts an interface's traffic: its index, and whether its direction is
// the guest's.
type counted struct {
	index   int
	asGuest bool
}

// Sample returns the newest sample without waiting. Nil: there is none yet, or the guest does not run. The
// sampler decides when samples are taken: see Registry.Refresh.
func (g *Guest) Sample() *Stats {
	r := g.live.Load()
	if r == nil {
		return nil
	}
	return g.gauge.newest()
}

// Stats returns a sample not older than maxAge, and takes one if needed. If QEMU does not answer within ctx
// or queryLimit, it returns the newest sample with the reason in Stale. It fails only if there is no
// sample.
func (g *Guest) Stats(ctx context.Context, maxAge time.Duration) (*Stats, error) {
	if g.live.Load() == nil {
		return nil, errNotRunning()
	}
	ctx, stop := context.WithTimeoutCause(ctx, queryLimit, fault.New(fault.Timeout, fault.Monitor, "QEMU did not answer within %v", queryLimit))
	defer stop()
	return g.gauge.fresh(ctx, g.reg.life, maxAge)
}

func errNotRunning() error {
	return fault.New(fault.WrongState, fault.Domain, "domain is not running")
}
