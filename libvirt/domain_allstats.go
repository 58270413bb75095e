package libvirt

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/xdr"
)

// Groups of statistics of all domains.
const (
	statsState     = 1
	statsCPU       = 2
	statsBalloon   = 4
	statsVCPU      = 8
	statsInterface = 16
	statsBlock     = 32
	statsIOThread  = 128
	statsMemory    = 256 // of memory bandwidth monitors, of which no domain has any
	statsGroups    = statsState | statsCPU | statsBalloon | statsVCPU | statsInterface | statsBlock | statsIOThread | statsMemory
)

// Flags of statistics of all domains, beside the filters of lists.
const (
	statsNoWait  = 1 << 29 // what needs QEMU may be left out when it is busy
	statsBacking = 1 << 30 // backing images too, where there are figures for them
	statsEnforce = 1 << 31 // refuse groups that are not built
)

const (
	// samplers is how many guests are sampled at a time for one call.
	samplers = 32
	// statsPatience is how long one guest is waited for. One that does not
	// answer is told of with what is known.
	statsPatience = 2 * time.Second
	noWait        = 50 * time.Millisecond
	// allStatsPatience is how long all of them are, so that many stuck guests do
	// not add up.
	allStatsPatience = 5 * time.Second
)

func (h *handlers) connectGetAllDomainStats(ctx context.Context, _ *session, args *xdr.ConnectGetAllDomainStatsArgs) (*xdr.ConnectGetAllDomainStatsRet, error) {
	const known = statsFilters | statsNoWait | statsBacking | statsEnforce
	if err := checkFlags("CONNECT_GET_ALL_DOMAIN_STATS", args.Flags, known); err != nil {
		return nil, err
	}
	if unknown := args.Stats &^ statsGroups; unknown != 0 && args.Flags&statsEnforce != 0 {
		return nil, withCode(codeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "Stats types bits 0x%x are not supported by this daemon", unknown))
	}
	guests, err := h.statsSubjects(args)
	if err != nil {
		return nil, err
	}
	wanted := statsRequest{groups: args.Stats, patience: statsPatience, backing: args.Flags&statsBacking != 0}
	if wanted.groups == 0 {
		wanted.groups = statsGroups
	}
	if args.Flags&statsNoWait != 0 {
		wanted.patience = noWait
	}
	ctx, cancel := context.WithTimeout(ctx, allStatsPatience)
	defer cancel()
	records := make([]xdr.DomainStatsRecord, len(guests))
	var sampling sync.WaitGroup
	places := make(chan struct{}, samplers)
	for i, g := range guests {
		places <- struct{}{}
		sampling.Go(func() {
			defer func() { <-places }()
			records[i] = wanted.record(ctx, g)
		})
	}
	sampling.Wait()
	return &xdr.ConnectGetAllDomainStatsRet{Stats: records}, nil
}

// statsSubjects gives the guests that a call asks about: those named, or all
// that pass its filters.
func (h *handlers) statsSubjects(args *xdr.ConnectGetAllDomainStatsArgs) ([]*guest.Guest, error) {
	all := h.Guests.All()
	if len(args.Domains) > 0 {
		all = nil
		for _, d := range args.Domains {
			g, err := h.guest(d)
			if fault.Is(err, fault.NotFound) {
				continue // gone since the client listed it
			}
			if err != nil {
				return nil, err
			}
			all = append(all, g)
		}
	}
	var chosen []*guest.Guest
	for _, g := range all {
		if matches(g.View(), args.Flags&statsFilters) {
			chosen = append(chosen, g)
		}
	}
	return chosen[:min(len(chosen), xdr.MaxDomainList)], nil
}

// statsRequest is what one call wants to know of each guest.
type statsRequest struct {
	groups   uint32
	patience time.Duration
	backing  bool
}

// record tells of one guest. What the guest does not answer is missing.
func (r *statsRequest) record(ctx context.Context, g *guest.Guest) xdr.DomainStatsRecord {
	v := g.View()
	d, err := wireDomain(v)
	if err != nil || v.Current() == nil {
		return xdr.DomainStatsRecord{Domain: d}
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	st := new(guest.Stats)
	if v.Active != nil && r.groups&^statsState != 0 {
		if sampled, err := g.Stats(ctx, statsAge); err == nil {
			st = sampled
		}
	}
	p := &statsParams{paramList{most: xdr.MaxDomainStatsParams}}
	for _, part := range []struct {
		group uint32
		add   func(*statsParams, *guest.View, *guest.Stats)
	}{
		{statsState, (*statsParams).state},
		{statsCPU, (*statsParams).cpu},
		{statsBalloon, (*statsParams).balloon},
		{statsVCPU, (*statsParams).vcpus},
		{statsInterface, (*statsParams).interfaces},
		{statsIOThread, (*statsParams).iothreads},
	} {
		if r.groups&part.group != 0 {
			part.add(p, v, st)
		}
	}
	if r.groups&statsBlock != 0 {
		p.disks(v, st, r.backing, sizesAtRest(ctx, g, v))
	}
	if st.Stale != nil { // says how old the figures are; absent where they are fresh
		p.number("lodge.age-ms", uint64(time.Since(st.At).Milliseconds()))
	}
	return xdr.DomainStatsRecord{Domain: d, Params: p.list}
}

// sizesAtRest tells the sizes of the images of a guest that does not run, as
// far as they are found in time.
func sizesAtRest(ctx context.Context, g *guest.Guest, v *guest.View) map[string]guest.BlockInfo {
	if v.Active != nil {
		return nil
	}
	sizes := map[string]guest.BlockInfo{}
	for _, d := range v.Current().Devices.Disks {
		if d.Source == nil || ctx.Err() != nil {
			continue
		}
		if info, err := g.BlockInfo(ctx, d.Target); err == nil {
			sizes[d.Target] = info
		}
	}
	return sizes
}

// statsParams are the parameters of one guest, under construction.
type statsParams struct{ paramList }

func (p *statsParams) state(v *guest.View, _ *guest.Stats) {
	p.add("state.state", xdr.Int(int32(v.State)))
	p.add("state.reason", xdr.Int(stateReasons[v.State][v.Reason]))
}

func (p *statsParams) cpu(_ *guest.View, st *guest.Stats) {
	if st.At.IsZero() {
		return
	}
	p.number("cpu.time", uint64(st.CPU))
	p.number("cpu.user", uint64(st.User))
	p.number("cpu.system", uint64(st.System))
}

func (p *statsParams) balloon(v *guest.View, st *guest.Stats) {
	p.number("balloon.current", v.Current().CurrentMemory/1024)
	p.number("balloon.maximum", v.Current().Memory/1024)
	for _, f := range balloonFigures {
		if value, ok := st.Balloon.Guest[f.qemu]; ok {
			p.number(f.name, value/f.unit)
		}
	}
	if !st.Balloon.Updated.IsZero() {
		p.number("balloon.last-update", uint64(st.Balloon.Updated.Unix()))
	}
	if !st.At.IsZero() {
		p.number("balloon.rss", st.Resident/1024)
	}
}

func (p *statsParams) vcpus(v *guest.View, st *guest.Stats) {
	def := v.Current()
	p.add("vcpu.current", xdr.Uint(uint32(def.VCPUs.Current)))
	p.add("vcpu.maximum", xdr.Uint(uint32(def.VCPUs.Max)))
	for _, c := range st.VCPUs {
		prefix := fmt.Sprintf("vcpu.%d.", c.Index)
		p.add(prefix+"state", xdr.Int(vcpuRunning))
		p.number(prefix+"time", uint64(c.Time))
		// Two names of libvirt's for the time that a processor was ready to run and
		// waited: one asks the scheduler's statistics, the other its delays.
		p.number(prefix+"wait", uint64(c.Waiting))
		p.number(prefix+"delay", uint64(c.Waiting))
	}
}

func (p *statsParams) interfaces(v *guest.View, st *guest.Stats) {
	if v.Active == nil {
		return
	}
	p.add("net.count", xdr.Uint(uint32(len(st.NICs))))
	for i, n := range st.NICs {
		prefix := fmt.Sprintf("net.%d.", i)
		p.add(prefix+"name", xdr.String(n.IfName))
		p.number(prefix+"rx.bytes", n.RxBytes)
		p.number(prefix+"rx.pkts", n.RxPackets)
		p.number(prefix+"rx.errs", n.RxErrors)
		p.number(prefix+"rx.drop", n.RxDropped)
		p.number(prefix+"tx.bytes", n.TxBytes)
		p.number(prefix+"tx.pkts", n.TxPackets)
		p.number(prefix+"tx.errs", n.TxErrors)
		p.number(prefix+"tx.drop", n.TxDropped)
	}
}

func (p *statsParams) iothreads(_ *guest.View, st *guest.Stats) {
	if len(st.IOThreads) == 0 {
		return
	}
	p.count("iothread.count", len(st.IOThreads))
	for _, t := range st.IOThreads {
		prefix := fmt.Sprintf("iothread.%d.", t.ID)
		p.number(prefix+"poll-max-ns", t.PollMax)
		p.add(prefix+"poll-grow", xdr.Uint(uint32(t.PollGrow)))
		p.add(prefix+"poll-shrink", xdr.Uint(uint32(t.PollShrink)))
	}
}

// disks tells of every disk, and of the images below each if they are wanted.
func (p *statsParams) disks(v *guest.View, st *guest.Stats, backing bool, atRest map[string]guest.BlockInfo) {
	sampled := map[string]guest.DiskStats{}
	for _, s := range st.Disks {
		sampled[s.Target] = s
	}
	disks := v.Current().Devices.Disks
	count := len(disks)
	if backing {
		for _, d := range disks {
			count += len(sampled[d.Target].Backing)
		}
	}
	p.count("block.count", count)
	i := 0
	next := func(target, path string) (prefix string) {
		prefix = fmt.Sprintf("block.%d.", i)
		i++
		p.add(prefix+"name", xdr.String(target))
		p.text(prefix+"path", path)
		return prefix
	}
	for _, d := range disks {
		prefix := next(d.Target, d.Source.Path())
		if info, ok := atRest[d.Target]; ok {
			p.sizes(prefix, info.Allocation, info.Capacity, info.Physical)
		}
		s, ok := sampled[d.Target]
		if !ok {
			continue
		}
		if s.Index > 0 {
			p.add(prefix+"backingIndex", xdr.Uint(uint32(s.Index)))
		}
		p.traffic(prefix, s)
		p.sizes(prefix, s.Allocation, s.Capacity, s.Physical)
		if !backing {
			continue
		}
		for _, below := range s.Backing {
			prefix := next(d.Target, below.Path)
			p.traffic(prefix, guest.DiskStats{}) // all of it is counted with the top image
			p.sizes(prefix, below.Allocation, below.Capacity, below.Physical)
		}
	}
}

func (p *statsParams) traffic(prefix string, s guest.DiskStats) {
	p.number(prefix+"rd.reqs", s.ReadOps)
	p.number(prefix+"rd.bytes", s.ReadBytes)
	p.number(prefix+"rd.times", uint64(s.ReadTime))
	p.number(prefix+"wr.reqs", s.WriteOps)
	p.number(prefix+"wr.bytes", s.WriteBytes)
	p.number(prefix+"wr.times", uint64(s.WriteTime))
	p.number(prefix+"fl.reqs", s.FlushOps)
	p.number(prefix+"fl.times", uint64(s.FlushTime))
}

func (p *statsParams) sizes(prefix string, allocation, capacity, physical uint64) {
	p.number(prefix+"allocation", allocation)
	if capacity > 0 {
		p.number(prefix+"capacity", capacity)
	}
	if physical > 0 {
		p.number(prefix+"physical", physical)
	}
}
