package domaincalls

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Groups of statistics of all domains.
const (
	StatsState     = 1
	StatsCPU       = 2
	StatsBalloon   = 4
	StatsVCPU      = 8
	StatsInterface = 16
	StatsBlock     = 32
	StatsIOThread  = 128
	statsMemory    = 256 // memory bandwidth monitors; no domain has any
	StatsGroups    = StatsState | StatsCPU | StatsBalloon | StatsVCPU | StatsInterface | StatsBlock | StatsIOThread | statsMemory
)

// Flags of statistics of all domains, beside the filters of lists.
const (
	StatsNoWait  = 1 << 29 // statistics from QEMU may be left out when it is busy
	statsBacking = 1 << 30 // backing images, too
	statsEnforce = 1 << 31 // refuse groups that are not built
)

const (
	// maxFreshGuests is the largest number of named domains for which new samples are taken. A
	// call about more, or about all, is answered from the sampler's last samples.
	maxFreshGuests = 8
	// FreshStatsTimeout bounds the wait for the new samples of all named domains together.
	FreshStatsTimeout = time.Second
)

// connectGetAllDomainStats returns the resource use of domains, from samples. It waits for
// no guest and reads no disk, unless the client names a few domains and does not set StatsNoWait.
func connectGetAllDomainStats(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectGetAllDomainStatsArgs) (*xdr.ConnectGetAllDomainStatsRet, func(), error) {
	const known = statsFilters | StatsNoWait | statsBacking | statsEnforce
	if err := rpc.CheckFlags("CONNECT_GET_ALL_DOMAIN_STATS", args.Flags, known); err != nil {
		return nil, nil, err
	}
	if unknown := args.Stats &^ StatsGroups; unknown != 0 && args.Flags&statsEnforce != 0 {
		return nil, nil, rpc.WithCode(rpc.CodeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "Stats types bits 0x%x are not supported by this daemon", unknown))
	}
	guests, err := selectGuests(h, args)
	if err != nil {
		return nil, nil, err
	}
	wanted := StatsRequest{Groups: args.Stats, Backing: args.Flags&statsBacking != 0}
	if wanted.Groups == 0 {
		wanted.Groups = StatsGroups
	}
	if n := len(args.Domains); n > 0 && n <= maxFreshGuests && args.Flags&StatsNoWait == 0 {
		wanted.refresh(ctx, s.Scope, guests)
	} else {
		statistics.Refresh(h.Guests)
	}
	p := StatsBuffers.Get().(*StatsParams)
	done := func() {
		p.List = p.List[:0]
		StatsBuffers.Put(p)
	}
	ret := &xdr.ConnectGetAllDomainStatsRet{Stats: make([]xdr.DomainStatsRecord, 0, len(guests))}
	for _, g := range guests {
		record, err := wanted.record(p, g)
		if err != nil {
			return nil, nil, err
		}
		ret.Stats = append(ret.Stats, record)
	}
	FitStats(ret.Stats, xdr.MaxPayload-StatsOverhead)
	return ret, done, nil
}

// StatsOverhead is an upper bound, in bytes, on the part of a reply that is not records.
const StatsOverhead = 1 << 10

// FitStats drops the last parameters of the largest records until the reply fits into room bytes. A definition
// may have megabytes of paths. So only the records of such guests are cut, and not those of others: the room is
// shared max-min fairly.
func FitStats(records []xdr.DomainStatsRecord, room int) {
	sizes := make([]int, len(records))
	total := 0
	for i := range records {
		sizes[i] = records[i].Size()
		total += sizes[i]
	}
	if total <= room {
		return
	}
	limit := 0 // of one record
	slices.Sort(sizes)
	for i, size := range sizes {
		if limit = room / (len(sizes) - i); size > limit {
			break
		}
		room -= size
	}
	for i := range records {
		r := &records[i]
		for size := r.Size(); size > limit && len(r.Params) > 0; {
			last := len(r.Params) - 1
			size -= r.Params[last].Size()
			r.Params = r.Params[:last]
		}
	}
}

// selectGuests returns the guests that a call is about: of those that it names, or of all,
// those that pass its filters.
func selectGuests(h *rpc.Handlers, args *xdr.ConnectGetAllDomainStatsArgs) ([]*guest.Guest, error) {
	var all []*guest.Guest
	if len(args.Domains) == 0 {
		all = h.Guests.All()
	}
	for _, d := range args.Domains {
		g, err := FindGuest(h, d)
		if fault.Is(err, fault.NotFound) {
			continue // removed after the client listed it
		}
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	chosen := all[:0]
	for _, g := range all {
		if v := g.View(); v.Current() != nil && MatchesFilters(v, args.Flags&statsFilters) {
			chosen = append(chosen, g)
		}
	}
	return chosen[:min(len(chosen), xdr.MaxDomainList)], nil
}

// StatsRequest has the groups of statistics that a call wants of each guest.
type StatsRequest struct {
	Groups  uint32
	Backing bool // those of backing images, too
	// offlineSizes are the image sizes of guests that do not run, if they were read.
	offlineSizes map[*guest.Guest]map[string]statistics.BlockInfo
}

// refresh takes new samples of a few guests, and waits for them for a bounded time.
// For guests that do not run, it reads the sizes of the images.
func (r *StatsRequest) refresh(ctx context.Context, sc scope.Scope, guests []*guest.Guest) {
	if r.Groups&^StatsState == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, FreshStatsTimeout)
	defer cancel()
	sizes := make([]map[string]statistics.BlockInfo, len(guests))
	var all sync.WaitGroup
	for i, g := range guests {
		all.Go(func() {
			switch v := g.View(); {
			case v.Active != nil:
				_, _ = statistics.Stats(ctx, g, maxSampleAge) // the result is in the guest's sample
			case r.Groups&StatsBlock != 0:
				sizes[i] = offlineImageSizes(ctx, sc, g, v)
			}
		})
	}
	all.Wait()
	r.offlineSizes = map[*guest.Guest]map[string]statistics.BlockInfo{}
	for i, g := range guests {
		r.offlineSizes[g] = sizes[i]
	}
}

// offlineImageSizes returns the image sizes of a guest that does not run, by the disks' targets. Those that
// cannot be read in time are left out.
func offlineImageSizes(ctx context.Context, sc scope.Scope, g *guest.Guest, v *guest.View) map[string]statistics.BlockInfo {
	if v.Current() == nil {
		return nil
	}
	sizes := map[string]statistics.BlockInfo{}
	for _, d := range v.Current().Devices.Disks {
		if d.Source == nil || ctx.Err() != nil {
			continue
		}
		if info, err := statistics.GetBlockInfo(ctx, g, sc, d.Target); err == nil {
			sizes[d.Target] = info
		}
	}
	return sizes
}

// record returns the statistics of one guest. Unknown values are left out.
func (r *StatsRequest) record(p *StatsParams, g *guest.Guest) (xdr.DomainStatsRecord, error) {
	v := g.View()
	d, err := WireDomain(v)
	if err != nil || v.Current() == nil { // it was removed meanwhile
		return xdr.DomainStatsRecord{Domain: d}, err
	}
	st := new(machine.Stats)
	if v.Active != nil && r.Groups&^StatsState != 0 {
		if sample := statistics.Sample(g); sample != nil {
			st = sample
		}
	}
	return xdr.DomainStatsRecord{Domain: d, Params: r.Params(p, v, st, r.offlineSizes[g])}, nil
}

// Params returns the parameters of the wanted groups, from a sample that may be empty. It
// uses only the names that libvirt documents, because clients parse them. So the age of a
// sample is only in Lodge's own API.
func (r *StatsRequest) Params(p *StatsParams, v *guest.View, st *machine.Stats, atRest map[string]statistics.BlockInfo) []xdr.TypedParam {
	begin := len(p.List)
	p.Max = begin + xdr.MaxDomainStatsParams
	for _, part := range statsGroups {
		if r.Groups&part.group != 0 {
			part.add(p, v, st)
		}
	}
	if r.Groups&StatsBlock != 0 {
		p.disks(v, st, r.Backing, atRest)
	}
	return p.List[begin:len(p.List):len(p.List)]
}

// statsGroups are the groups that need only a view and a sample; disks also need the request.
var statsGroups = []struct {
	group uint32
	add   func(*StatsParams, *guest.View, *machine.Stats)
}{
	{StatsState, (*StatsParams).state},
	{StatsCPU, (*StatsParams).cpu},
	{StatsBalloon, (*StatsParams).balloon},
	{StatsVCPU, (*StatsParams).vcpus},
	{StatsInterface, (*StatsParams).interfaces},
	{StatsIOThread, (*StatsParams).iothreads},
}

// statNames are the names of the statistics of numbered items, such as
// "net.0.rx.bytes". The names for the first numbers are cached: a call for a
// thousand guests needs a hundred thousand names.
type statNames struct {
	prefix   string
	suffixes []string
	cached   [][]string
}

// CachedStatNames is the number of items of a kind whose names are cached.
const CachedStatNames = 32

func newStatNames(prefix string, suffixes ...string) *statNames {
	n := &statNames{prefix: prefix, suffixes: suffixes, cached: make([][]string, CachedStatNames)}
	for i := range n.cached {
		n.cached[i] = n.make(uint(i))
	}
	return n
}

// make makes the names for the item with number i.
func (n *statNames) make(i uint) []string {
	prefix := n.prefix + strconv.FormatUint(uint64(i), 10) + "."
	names := make([]string, len(n.suffixes))
	for j, suffix := range n.suffixes {
		names[j] = prefix + suffix
	}
	return names
}

// of returns the names for the item with number i, in the order of the suffixes.
func (n *statNames) of(i uint) []string {
	if i < uint(len(n.cached)) {
		return n.cached[i]
	}
	return n.make(i)
}

// StatsParams has the parameters of all guests of one call, guest by guest.
type StatsParams struct{ rpc.ParamList }

// StatsBuffers keeps the buffers of earlier calls for later calls. A buffer has megabytes
// for some hundred guests, and is returned once the reply is encoded.
var StatsBuffers = sync.Pool{New: func() any { return new(StatsParams) }}

// state adds a guest's state and reason, as libvirt's numbers.
func (p *StatsParams) state(v *guest.View, _ *machine.Stats) {
	p.Add("state.state", xdr.Int(int32(v.State)))
	p.Add("state.reason", xdr.Int(StateReasons[v.State][v.Reason]))
}

// cpu adds CPU times in nanoseconds; nothing without a sample.
func (p *StatsParams) cpu(_ *guest.View, st *machine.Stats) {
	if st.At.IsZero() {
		return
	}
	p.AddUint64("cpu.time", uint64(st.CPU))
	p.AddUint64("cpu.user", uint64(st.User))
	p.AddUint64("cpu.system", uint64(st.System))
}

func (p *StatsParams) balloon(v *guest.View, st *machine.Stats) {
	p.AddUint64("balloon.current", v.Current().CurrentMemory/1024)
	p.AddUint64("balloon.maximum", v.Current().Memory/1024)
	for _, f := range BalloonStats {
		if value, ok := statistics.Figure(&st.Balloon, f.figure); ok {
			p.AddUint64(f.name, value/f.unit)
		}
	}
	if !st.Balloon.Updated.IsZero() {
		p.AddUint64("balloon.last-update", uint64(st.Balloon.Updated.Unix()))
	}
	if !st.At.IsZero() {
		p.AddUint64("balloon.rss", st.Resident/1024)
	}
}

// The statistics of one vCPU. Two of libvirt's names are for the time that a vCPU was
// ready to run and waited: libvirt reads one from the scheduler's statistics, the other
// from its delays.
const (
	vcpuState = iota
	vcpuTime
	vcpuWait
	vcpuDelay
)

var vcpuNames = newStatNames("vcpu.", "state", "time", "wait", "delay")

// vcpus adds the numbers of vCPUs, and the sampled statistics of each.
func (p *StatsParams) vcpus(v *guest.View, st *machine.Stats) {
	def := v.Current()
	p.Add("vcpu.current", xdr.Uint(uint32(def.VCPUs.Current)))
	p.Add("vcpu.maximum", xdr.Uint(uint32(def.VCPUs.Max)))
	for _, c := range st.VCPUs {
		names := vcpuNames.of(c.Index)
		p.Add(names[vcpuState], xdr.Int(vcpuRunning))
		p.AddUint64(names[vcpuTime], uint64(c.Time))
		p.AddUint64(names[vcpuWait], uint64(c.Waiting))
		p.AddUint64(names[vcpuDelay], uint64(c.Waiting))
	}
}

// The statistics of one interface.
const (
	netName = iota
	netRxBytes
	netRxPackets
	netRxErrors
	netRxDropped
	netTxBytes
	netTxPackets
	netTxErrors
	netTxDropped
)

var netNames = newStatNames("net.", "name", "rx.bytes", "rx.pkts", "rx.errs", "rx.drop", "tx.bytes", "tx.pkts", "tx.errs", "tx.drop")

func (p *StatsParams) interfaces(v *guest.View, st *machine.Stats) {
	if v.Active == nil {
		return
	}
	p.AddCount("net.count", len(v.Active.Devices.NICs))
	for i := range st.NICs {
		n, names := &st.NICs[i], netNames.of(uint(i))
		if n.IfName == "" { // no statistics; as in libvirt, it has a number all the same
			continue
		}
		p.Add(names[netName], xdr.String(n.IfName))
		p.AddUint64(names[netRxBytes], n.RxBytes)
		p.AddUint64(names[netRxPackets], n.RxPackets)
		p.AddUint64(names[netRxErrors], n.RxErrors)
		p.AddUint64(names[netRxDropped], n.RxDropped)
		p.AddUint64(names[netTxBytes], n.TxBytes)
		p.AddUint64(names[netTxPackets], n.TxPackets)
		p.AddUint64(names[netTxErrors], n.TxErrors)
		p.AddUint64(names[netTxDropped], n.TxDropped)
	}
}

// The statistics of one iothread.
const (
	iothreadMax = iota
	iothreadGrow
	iothreadShrink
)

var iothreadNames = newStatNames("iothread.", "poll-max-ns", "poll-grow", "poll-shrink")

func (p *StatsParams) iothreads(_ *guest.View, st *machine.Stats) {
	if len(st.IOThreads) == 0 {
		return
	}
	p.AddCount("iothread.count", len(st.IOThreads))
	for _, t := range st.IOThreads {
		names := iothreadNames.of(t.ID)
		p.AddUint64(names[iothreadMax], t.PollMax)
		p.Add(names[iothreadGrow], xdr.Uint(uint32(t.PollGrow)))
		p.Add(names[iothreadShrink], xdr.Uint(uint32(t.PollShrink)))
	}
}

// The statistics of one image of a disk.
const (
	blockName = iota
	blockPath
	blockBackingIndex
	blockReadOps
	blockReadBytes
	blockReadTime
	blockWriteOps
	blockWriteBytes
	blockWriteTime
	blockFlushOps
	blockFlushTime
	blockAllocation
	blockCapacity
	blockPhysical
)

var blockNames = newStatNames("block.", "name", "path", "backingIndex", "rd.reqs", "rd.bytes", "rd.times",
	"wr.reqs", "wr.bytes", "wr.times", "fl.reqs", "fl.times", "allocation", "capacity", "physical")

// disks adds the statistics of every disk, and of its backing images if they are wanted.
func (p *StatsParams) disks(v *guest.View, st *machine.Stats, backing bool, atRest map[string]statistics.BlockInfo) {
	disks := v.Current().Devices.Disks
	count := len(disks)
	for i, d := range disks {
		if s := findDiskSample(st, d.Target, i); backing && s != nil {
			count += len(s.Backing)
		}
	}
	p.AddCount("block.count", count)
	number := uint(0)
	next := func(target, path string) (names []string) {
		names = blockNames.of(number)
		number++
		p.Add(names[blockName], xdr.String(target))
		p.AddString(names[blockPath], path)
		return names
	}
	for i, d := range disks {
		names := next(d.Target, d.Source.Path())
		if info, ok := atRest[d.Target]; ok {
			p.sizes(names, info.Allocation, info.Capacity, info.Physical)
		}
		s := findDiskSample(st, d.Target, i)
		if s == nil {
			continue
		}
		if s.Index > 0 {
			p.Add(names[blockBackingIndex], xdr.Uint(uint32(s.Index)))
		}
		p.traffic(names, s)
		if d.Source != nil {
			p.sizes(names, s.Allocation, s.Capacity, s.Physical)
		}
		if !backing {
			continue
		}
		for _, below := range s.Backing {
			names := next(d.Target, below.Path)
			if below.Index > 0 {
				p.Add(names[blockBackingIndex], xdr.Uint(uint32(below.Index)))
			}
			p.sizes(names, below.Allocation, below.Capacity, below.Physical)
		}
	}
}

// findDiskSample finds the sample of a disk. It has the index of the disk in the definition,
// unless a disk was attached or detached after the sample was taken.
func findDiskSample(st *machine.Stats, target string, index int) *machine.DiskStats {
	if index < len(st.Disks) && st.Disks[index].Target == target {
		return &st.Disks[index]
	}
	for i := range st.Disks {
		if st.Disks[i].Target == target {
			return &st.Disks[i]
		}
	}
	return nil
}

func (p *StatsParams) traffic(names []string, s *machine.DiskStats) {
	p.AddUint64(names[blockReadOps], s.ReadOps)
	p.AddUint64(names[blockReadBytes], s.ReadBytes)
	p.AddUint64(names[blockReadTime], uint64(s.ReadTime))
	p.AddUint64(names[blockWriteOps], s.WriteOps)
	p.AddUint64(names[blockWriteBytes], s.WriteBytes)
	p.AddUint64(names[blockWriteTime], uint64(s.WriteTime))
	p.AddUint64(names[blockFlushOps], s.FlushOps)
	p.AddUint64(names[blockFlushTime], uint64(s.FlushTime))
}

// sizes adds an image's sizes in bytes. It leaves out a capacity or physical size of zero.
func (p *StatsParams) sizes(names []string, allocation, capacity, physical uint64) {
	p.AddUint64(names[blockAllocation], allocation)
	if capacity > 0 {
		p.AddUint64(names[blockCapacity], capacity)
	}
	if physical > 0 {
		p.AddUint64(names[blockPhysical], physical)
	}
}
