package guest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/link"
	"github.com/lodge-kvm/lodge/qmp"
)

// queryLimit bounds a question to QEMU that somebody waits for.
const queryLimit = 5 * time.Second

// hopeless is after how long nobody else begins to wait for the same answer.
const hopeless = time.Second

// Stats is one sample of what a guest uses. Counters count from its start.
type Stats struct {
	At time.Time
	// Stale says why this is an older sample than was asked for; nil when it is not.
	Stale error

	// CPU is the processor time of the whole process.
	CPU, User, System time.Duration
	Resident          uint64 // bytes of host memory

	Balloon Balloon
	VCPUs   []VCPUStats
	Disks   []DiskStats
	NICs    []NICStats

	IOThreads []IOThreadStats
}

// Balloon is what is known of the guest's memory. Guest are the guest's own
// figures by QEMU's names, in bytes or counts, as of Updated; they are only as
// true as the guest is honest.
type Balloon struct {
	Current, Maximum uint64 // bytes
	Guest            map[string]uint64
	Updated          time.Time
}

// VCPUStats is the processor time of one vCPU.
type VCPUStats struct {
	Index   uint
	Time    time.Duration
	Halted  bool
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
}

// NICStats counts one interface's traffic, from the guest's point of view.
type NICStats struct {
	IfName, MAC string
	link.Counters
}

// sampler keeps a guest's newest sample and lets one caller at a time take the
// next, whose result all who wait then share.
type sampler struct {
	last atomic.Pointer[Stats]
	mu   sync.Mutex
	next *sampling
}

// sampling is a sample being taken; done closes when it is there.
type sampling struct {
	began time.Time
	done  chan struct{}
	stats *Stats
	err   error
}

// Stats gives a sample not older than maxAge, taking one if need be. Where
// QEMU does not answer within ctx or queryLimit, the newest sample there is
// comes back with the reason in Stale; only without any is that an error.
func (g *Guest) Stats(ctx context.Context, maxAge time.Duration) (*Stats, error) {
	r := g.live.Load()
	if r == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	last := g.sampler.last.Load()
	if last != nil && last.At.Before(r.Started) {
		last = nil // of an earlier life
	}
	if last != nil && time.Since(last.At) <= maxAge {
		return last, nil
	}
	s := g.sampler.begin(g, r)
	if waits := time.Since(s.began); waits > hopeless {
		return orStale(last, fault.New(fault.Timeout, fault.Monitor, "QEMU has not answered for %v", waits.Round(time.Millisecond)))
	}
	select {
	case <-s.done:
		if s.err == nil {
			return s.stats, nil
		}
		return orStale(last, s.err)
	case <-ctx.Done():
		return orStale(last, fmt.Errorf("cannot sample domain %q in time: %w", g.Name(), context.Cause(ctx)))
	}
}

// orStale gives the last sample with the reason why it is no newer one.
func orStale(last *Stats, why error) (*Stats, error) {
	if last == nil {
		return nil, why
	}
	stale := *last
	stale.Stale = why
	return &stale, nil
}

// begin takes a sample, or joins the one being taken.
func (sm *sampler) begin(g *Guest, r *run) *sampling {
	sm.mu.Lock()
	defer sm.mu.Unlock()
	if sm.next != nil {
		return sm.next
	}
	s := &sampling{began: time.Now(), done: make(chan struct{})}
	sm.next = s
	go func() {
		ctx, stop := context.WithTimeout(g.reg.life, queryLimit)
		defer stop()
		s.stats, s.err = g.reg.sample(ctx, r, g.View())
		if s.err == nil {
			sm.last.Store(s.stats)
		}
		sm.mu.Lock()
		sm.next = nil
		sm.mu.Unlock()
		close(s.done)
	}()
	return s
}

// sample asks the kernel and QEMU.
func (r *Registry) sample(ctx context.Context, run *run, v *View) (*Stats, error) {
	st := &Stats{At: time.Now()}
	p, err := r.Kernel.Process(run.PID)
	if err != nil {
		return nil, err
	}
	st.CPU, st.User, st.System, st.Resident = p.User+p.System, p.User, p.System, p.Resident
	def := v.Active
	if def == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	for _, n := range def.Devices.NICs {
		if s, ok := nicStats(n); ok {
			st.NICs = append(st.NICs, s)
		}
	}
	st.Balloon = Balloon{Current: def.CurrentMemory, Maximum: def.Memory}
	s, err := run.monitor()
	if err != nil {
		return nil, err
	}
	if err := r.sampleVCPUs(ctx, s, run, st); err != nil {
		return nil, err
	}
	if err := sampleBalloon(ctx, s, def, st); err != nil {
		return nil, err
	}
	if st.IOThreads, err = sampleIOThreads(ctx, s, def); err != nil {
		return nil, err
	}
	st.Disks, err = sampleDisks(ctx, s, def)
	return st, err
}

func (r *Registry) sampleVCPUs(ctx context.Context, s *qmp.Session, run *run, st *Stats) error {
	threads, err := queryVCPUs(ctx, s)
	if err != nil {
		return err
	}
	for _, t := range threads {
		p, err := r.Kernel.Thread(run.PID, t.Thread)
		if err != nil {
			continue // unplugged meanwhile
		}
		v := VCPUStats{Index: t.Index, Time: p.User + p.System}
		if sched, err := r.Kernel.Schedule(run.PID, t.Thread); err == nil {
			v.Time, v.Waiting = sched.Run, sched.Wait // finer than ticks
		}
		st.VCPUs = append(st.VCPUs, v)
	}
	return nil
}

// nicStats reads an interface's counters. The host's transmission is the
// guest's reception.
func nicStats(n *device.NIC) (NICStats, bool) {
	if n.Target == "" {
		return NICStats{}, false
	}
	l, err := link.ByName(n.Target)
	if err != nil {
		return NICStats{}, false
	}
	c := l.Counters
	if n.Type == "direct" { // a macvtap counts from the guest's side already
		return NICStats{IfName: n.Target, MAC: n.MAC, Counters: c}, true
	}
	return NICStats{IfName: n.Target, MAC: n.MAC, Counters: link.Counters{
		RxBytes: c.TxBytes, RxPackets: c.TxPackets, RxErrors: c.TxErrors, RxDropped: c.TxDropped,
		TxBytes: c.RxBytes, TxPackets: c.RxPackets, TxErrors: c.RxErrors, TxDropped: c.RxDropped,
	}}, true
}

// unset is what QEMU gives for a figure that the guest did not report.
const unset = 1<<64 - 1

func sampleBalloon(ctx context.Context, s *qmp.Session, def *domain.Definition, st *Stats) error {
	path, err := balloonPath(def.Devices.Balloon)
	if err != nil {
		return nil // no balloon: no figures
	}
	var answer struct {
		Stats      map[string]uint64
		LastUpdate int64 `json:"last-update"`
	}
	if err := s.Execute(ctx, "qom-get", map[string]any{"path": path, "property": "guest-stats"}, &answer); err != nil {
		return err
	}
	st.Balloon.Guest = map[string]uint64{}
	for name, value := range answer.Stats {
		if value != unset {
			st.Balloon.Guest[name] = value
		}
	}
	if answer.LastUpdate > 0 {
		st.Balloon.Updated = time.Unix(answer.LastUpdate, 0)
	}
	return nil
}

// blockStats is QEMU's answer to query-blockstats, as far as Lodge reads it.
type blockStats struct {
	Device string
	QDev   string
	Stats  struct {
		RdOps   uint64 `json:"rd_operations"`
		RdBytes uint64 `json:"rd_bytes"`
		RdTime  int64  `json:"rd_total_time_ns"`
		WrOps   uint64 `json:"wr_operations"`
		WrBytes uint64 `json:"wr_bytes"`
		WrTime  int64  `json:"wr_total_time_ns"`
		FlOps   uint64 `json:"flush_operations"`
		FlTime  int64  `json:"flush_total_time_ns"`
		Highest uint64 `json:"wr_highest_offset"`
	}
	// Parent is the file or device that holds the image: its offsets are the host's.
	Parent  *blockStats
	Backing *blockStats
}

// highest is how far into its file or device an image was written.
func (c *blockStats) highest() uint64 {
	if c.Parent != nil {
		return c.Parent.Stats.Highest
	}
	return c.Stats.Highest
}

func sampleDisks(ctx context.Context, s *qmp.Session, def *domain.Definition) ([]DiskStats, error) {
	if len(def.Devices.Disks) == 0 {
		return nil, nil
	}
	var counters []blockStats
	if err := s.Execute(ctx, "query-blockstats", nil, &counters); err != nil {
		return nil, err
	}
	var blocks []blockInfo
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	disks := make([]DiskStats, 0, len(def.Devices.Disks))
	for _, d := range def.Devices.Disks {
		st := DiskStats{Target: d.Target, Alias: d.Alias, Path: d.Source.Path()}
		for _, c := range counters {
			if belongsTo(c.QDev, d.Alias) {
				c.into(&st)
			}
		}
		for _, b := range blocks {
			if belongsTo(b.QDev, d.Alias) && b.Inserted != nil {
				image := &b.Inserted.Image
				st.Capacity, st.Physical = image.VirtualSize, image.ActualSize
				for i := range st.Backing {
					if image = image.Backing; image == nil {
						break
					}
					st.Backing[i].Path, st.Backing[i].Capacity, st.Backing[i].Physical = image.Filename, image.VirtualSize, image.ActualSize
				}
			}
		}
		if d.Source != nil {
			st.Index = d.Source.Index
		}
		disks = append(disks, st)
	}
	return disks, nil
}

func (c *blockStats) into(st *DiskStats) {
	s := c.Stats
	st.ReadOps, st.ReadBytes, st.ReadTime = s.RdOps, s.RdBytes, time.Duration(s.RdTime)
	st.WriteOps, st.WriteBytes, st.WriteTime = s.WrOps, s.WrBytes, time.Duration(s.WrTime)
	st.FlushOps, st.FlushTime, st.Allocation = s.FlOps, time.Duration(s.FlTime), c.highest()
	for below := c.Backing; below != nil; below = below.Backing {
		st.Backing = append(st.Backing, LayerStats{Allocation: below.highest()})
	}
}

// blockInfo is QEMU's answer to query-block, as far as Lodge reads it.
type blockInfo struct {
	QDev     string
	Locked   bool
	TrayOpen bool   `json:"tray_open"`
	IOStatus string `json:"io-status"`
	Inserted *struct {
		File     string
		NodeName string `json:"node-name"`
		Image    blockImage
	}
}

// blockImage is an image as QEMU has it open, with those below it.
type blockImage struct {
	Filename    string
	VirtualSize uint64      `json:"virtual-size"`
	ActualSize  uint64      `json:"actual-size"`
	Backing     *blockImage `json:"backing-image"`
}

// belongsTo reports whether QEMU's id or path of a block device is that of the
// device with this alias: some show the path of their back end, or of the disk
// inside them.
func belongsTo(qdev, alias string) bool {
	if alias == "" {
		return false
	}
	path := "/machine/peripheral/" + alias
	return qdev == alias || qdev == path || strings.HasPrefix(qdev, path+"/")
}

// BlockInfo is the sizes of one disk, in bytes.
type BlockInfo struct{ Capacity, Allocation, Physical uint64 }

// BlockInfo tells the sizes of the disk with that target or path.
func (g *Guest) BlockInfo(ctx context.Context, disk string) (BlockInfo, error) {
	v := g.View()
	d := findDiskByName(v.Current(), disk)
	if d == nil {
		return BlockInfo{}, noDisk(disk)
	}
	if d.Source == nil {
		return BlockInfo{}, fault.New(fault.WrongState, fault.Device, "disk %s has no medium", d.Target)
	}
	info, err := g.reg.imageSizes(ctx, d)
	if err != nil || v.Active == nil {
		return info, err
	}
	st, err := g.Stats(ctx, time.Second)
	if err != nil {
		return info, nil // the sizes on the host are known all the same
	}
	for _, s := range st.Disks {
		if s.Target == d.Target && s.Allocation > 0 && d.Format != "raw" {
			info.Allocation = s.Allocation
		}
	}
	return info, nil
}

func noDisk(name string) error {
	return fault.New(fault.Invalid, fault.Call, "invalid path '%s' not assigned to domain", name)
}

// findDiskByName finds a disk by its target or by the path of its source.
func findDiskByName(def *domain.Definition, name string) *device.Disk {
	if def == nil {
		return nil
	}
	for _, d := range def.Devices.Disks {
		if name != "" && (d.Target == name || d.Source.Path() == name) {
			return d
		}
	}
	return nil
}

// imageSizes asks the image itself.
func (r *Registry) imageSizes(ctx context.Context, d *device.Disk) (BlockInfo, error) {
	ctx, stop := context.WithTimeout(ctx, queryLimit)
	defer stop()
	path, format, err := r.source(d)
	if err != nil {
		return BlockInfo{}, err
	}
	chain, err := openChain(ctx, path, format)
	if err != nil {
		return BlockInfo{}, err
	}
	defer chain.Close()
	top := chain[0]
	return BlockInfo{Capacity: top.Virtual, Allocation: top.Allocated, Physical: top.Physical}, nil
}

// DiskErrors tells which disks of a running guest have failed, and how: "no
// space" or "unspecified".
func (g *Guest) DiskErrors(ctx context.Context) (map[string]string, error) {
	r := g.live.Load()
	s, err := r.monitor()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, queryLimit)
	defer stop()
	var blocks []blockInfo
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	failed := map[string]string{}
	def := g.View().Active
	if def == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	for _, d := range def.Devices.Disks {
		for _, b := range blocks {
			if !belongsTo(b.QDev, d.Alias) {
				continue
			}
			switch b.IOStatus {
			case "nospace":
				failed[d.Target] = "no space"
			case "failed":
				failed[d.Target] = "unspecified"
			}
		}
	}
	return failed, nil
}

// diskByDevice finds a disk by QEMU's name for its device.
func (r *run) diskByDevice(qdev string) (path, alias string) {
	for _, d := range r.def.Devices.Disks {
		if belongsTo(qdev, d.Alias) {
			return d.Source.Path(), d.Alias
		}
	}
	return "", ""
}
