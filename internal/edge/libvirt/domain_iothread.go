package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// domainIOThreadCalls list and add the I/O threads for disks, and change their pinning.
func domainIOThreadCalls(g group) {
	on(g, xdr.ProcDomainGetIOThreadInfo, (*handlers).domainGetIOThreadInfo)
	on(g, xdr.ProcDomainPinIOThread, (*handlers).domainPinIOThread)
	on(g, xdr.ProcDomainAddIOThread, (*handlers).domainAddIOThread)
}

func (h *handlers) domainGetIOThreadInfo(ctx context.Context, _ *request, args *xdr.DomainGetIOThreadInfoArgs) (*xdr.DomainGetIOThreadInfoRet, error) {
	if err := checkFlags("DOMAIN_GET_IOTHREAD_INFO", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	v := g.View()
	def, err := definition(v, args.Flags)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetIOThreadInfoRet)
	tell := func(id uint, may topology.CPUSet) {
		if len(ret.Info) < xdr.MaxIOThreadInfo {
			mask := may.Intersect(h.Host.Facts().Topology.Present).Map(h.Host.Facts().Topology.Present.Max() + 1)
			ret.Info = append(ret.Info, xdr.DomainIOThreadInfo{IOThreadID: uint32(id), CPUMap: mask})
			ret.Count++
		}
	}
	if def != v.Active {
		for id := uint(1); id <= def.IOThreads; id++ {
			tell(id, h.bound(def, def.Tune.IOThreadPins[id]))
		}
		return ret, nil
	}
	threads, err := g.IOThreads(ctx)
	for _, t := range threads {
		tell(t.ID, t.Affinity)
	}
	return ret, err
}

func (h *handlers) domainPinIOThread(ctx context.Context, s *request, args *xdr.DomainPinIOThreadArgs) (*void, error) {
	if err := checkFlags("DOMAIN_PIN_IOTHREAD", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	to, err := h.pinTarget(args.CPUMap)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.PinIOThread(ctx, g, s.scope, uint(args.IOThreadID), to, affect(args.Flags))
}

func (h *handlers) domainAddIOThread(ctx context.Context, s *request, args *xdr.DomainAddIOThreadArgs) (*void, error) {
	if err := checkFlags("DOMAIN_ADD_IOTHREAD", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.AddIOThread(ctx, g, s.scope, uint(args.IOThreadID), affect(args.Flags))
}
