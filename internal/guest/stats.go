package guest

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// queryLimit bounds a question to QEMU that somebody waits for.
const queryLimit = 5 * time.Second

// Stats is one sample of what a guest uses. Counters count from its start.
// Samples are immutable: whoever holds one may keep it, and must not change it.
type Stats struct {
	// At is when the sample was taken: no figure in it is older, but for those of
	// which the sampler knows that they change slowly, or not while the guest is
	// paused.
	At time.Time
	// Stale says why there is no newer sample though there should be one, and
	// StaleSince since when that is so; nil where all is well.
	Stale      error
	StaleSince time.Time

	// CPU is the processor time of the whole process.
	CPU, User, System time.Duration
	Resident          uint64 // bytes of host memory

	Balloon Balloon
	VCPUs   []VCPUStats
	Disks   []DiskStats
	NICs    []NICStats // in the definition's order

	IOThreads []IOThreadStats

	// def and threads are what the sample was taken by; thorough is when QEMU was
	// last asked for what changes slowly. The next sample builds on them.
	def      *domain.Definition
	threads  []vcpuThread
	thorough time.Time
}

// BalloonFigure is one of the figures that a guest reports on its own memory.
type BalloonFigure uint8

// The figures: bytes, and counts where the name says so.
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

// qemuFigures are QEMU's names for them.
var qemuFigures = [balloonFigures]string{
	"stat-swap-in", "stat-swap-out", "stat-major-faults", "stat-minor-faults", "stat-free-memory", "stat-total-memory",
	"stat-available-memory", "stat-disk-caches", "stat-htlb-pgalloc", "stat-htlb-pgfail",
}

// Balloon is what is known of the guest's memory. The guest's own figures are of
// the time Updated, and only as true as the guest is honest.
type Balloon struct {
	Current uint64 // bytes
	Updated time.Time

	figures [balloonFigures]uint64
	known   uint16 // a bit for each figure that the guest reported
}

// Figure gives a figure, if the guest reported it.
func (b *Balloon) Figure(f BalloonFigure) (value uint64, ok bool) {
	return b.figures[f], b.known&(1<<f) != 0
}

// Report enters a figure.
func (b *Balloon) Report(f BalloonFigure, value uint64) {
	b.figures[f] = value
	b.known |= 1 << f
}

// VCPUStats is the processor time of one vCPU.
type VCPUStats struct {
	Index   uint
	Time    time.Duration
	Waiting time.Duration // runnable and not running
}

// DiskStats counts one disk's traffic. Times are sums over requests.
type DiskStats struct {
	Target, Alias, Path                      string
	ReadOps, ReadBytes, WriteOps, WriteBytes uint64
	FlushOps                                 uint64
	ReadTime, WriteTime, FlushTime           time.Duration
	// Allocation is the highest offset written; Capacity is the guest's size;
	// Physical is the size on the host. Bytes.
	Allocation, Capacity, Physical uint64
	// Index numbers the top image in the running guest; 0 where there is none.
	Index uint
	// Backing are the images below the top one, from above. Their traffic is
	// counted with the disk's; of theirs alone there are the sizes.
	Backing []LayerStats
}

// LayerStats is one image below a disk's top image. Bytes.
type LayerStats struct {
	Path                           string
	Allocation, Capacity, Physical uint64
	Index                          uint // the number of its block node
}

// NICStats counts one interface's traffic, from the guest's point of view. One that
// the host does not count has no name.
type NICStats struct {
	IfName, MAC string
	hostnet.Counters

	counted // for the next sample
}

// counted is the link that the host counts an interface's traffic at: its number, and whether it
// counts as the guest does.
type counted struct {
	index   int
	asGuest bool
}

// Sample gives the newest sample there is, at once: nil where none was taken
// yet, or the guest does not run. The sampler decides when samples are taken;
// see Registry.Refresh.
func (g *Guest) Sample() *Stats {
	r := g.live.Load()
	if r == nil {
		return nil
	}
	return g.gauge.newest()
}

// Stats gives a sample not older than maxAge, taking one if need be. Where
// QEMU does not answer within ctx or queryLimit, the newest sample there is
// comes back with the reason in Stale; only without any is that an error.
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
