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
	statsGroups    = statsState | statsCPU | statsBalloon | statsVCPU | statsInterface | statsBlock
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
	groups := args.Stats
	if groups == 0 {
		groups = statsGroups
	}
	guests, err := h.statsSubjects(args)
	if err != nil {
		return nil, err
	}
	patience := statsPatience
	if args.Flags&statsNoWait != 0 {
		patience = noWait
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
			records[i] = statsRecord(ctx, g, groups, patience)
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

// statsRecord tells of one guest. What the guest does not answer is missing.
func statsRecord(ctx context.Context, g *guest.Guest, groups uint32, patience time.Duration) xdr.DomainStatsRecord {
	v := g.View()
	d, err := wireDomain(v)
	if err != nil || v.Current() == nil {
		return xdr.DomainStatsRecord{Domain: d}
	}
	st := new(guest.Stats)
	if v.Active != nil && groups&^statsState != 0 {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if sampled, err := g.Stats(ctx, statsAge); err == nil {
			st = sampled
		}
	}
	p := &statsParams{}
	for _, part := range []struct {
		group uint32
		add   func(*statsParams, *guest.View, *guest.Stats)
	}{
		{statsState, (*statsParams).state},
		{statsCPU, (*statsParams).cpu},
		{statsBalloon, (*statsParams).balloon},
		{statsVCPU, (*statsParams).vcpus},
		{statsInterface, (*statsParams).interfaces},
		{statsBlock, (*statsParams).disks},
	} {
		if groups&part.group != 0 {
			part.add(p, v, st)
		}
	}
	return xdr.DomainStatsRecord{Domain: d, Params: p.list}
}

// statsParams is a list of parameters under construction.
type statsParams struct{ list []xdr.TypedParam }

func (p *statsParams) add(name string, v xdr.TypedValue) {
	if len(p.list) < xdr.MaxDomainStatsParams {
		p.list = append(p.list, xdr.TypedParam{Field: name, Value: v})
	}
}

func (p *statsParams) number(name string, v uint64) { p.add(name, xdr.Uint64(v)) }

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
	if v.Active != nil {
		p.number("balloon.current", v.Active.CurrentMemory/1024)
	}
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
		p.number(prefix+"wait", uint64(c.Waiting))
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

func (p *statsParams) disks(v *guest.View, st *guest.Stats) {
	sampled := map[string]guest.DiskStats{}
	for _, s := range st.Disks {
		sampled[s.Target] = s
	}
	disks := v.Current().Devices.Disks
	p.add("block.count", xdr.Uint(uint32(len(disks))))
	for i, d := range disks {
		prefix := fmt.Sprintf("block.%d.", i)
		p.add(prefix+"name", xdr.String(d.Target))
		if path := d.Source.Path(); path != "" {
			p.add(prefix+"path", xdr.String(path))
		}
		if s, ok := sampled[d.Target]; ok {
			p.disk(prefix, s)
		}
	}
}

func (p *statsParams) disk(prefix string, s guest.DiskStats) {
	p.number(prefix+"rd.reqs", s.ReadOps)
	p.number(prefix+"rd.bytes", s.ReadBytes)
	p.number(prefix+"rd.times", uint64(s.ReadTime))
	p.number(prefix+"wr.reqs", s.WriteOps)
	p.number(prefix+"wr.bytes", s.WriteBytes)
	p.number(prefix+"wr.times", uint64(s.WriteTime))
	p.number(prefix+"fl.reqs", s.FlushOps)
	p.number(prefix+"fl.times", uint64(s.FlushTime))
	p.number(prefix+"allocation", s.Allocation)
	if s.Capacity > 0 {
		p.number(prefix+"capacity", s.Capacity)
	}
	if s.Physical > 0 {
		p.number(prefix+"physical", s.Physical)
	}
}
