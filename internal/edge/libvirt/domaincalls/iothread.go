package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// DomainIOThreadCalls list and add the I/O threads for disks, and change their pinning.
func DomainIOThreadCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetIOThreadInfo, domainGetIOThreadInfo)
	rpc.On(g, xdr.ProcDomainPinIOThread, domainPinIOThread)
	rpc.On(g, xdr.ProcDomainAddIOThread, domainAddIOThread)
}

func domainGetIOThreadInfo(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetIOThreadInfoArgs) (*xdr.DomainGetIOThreadInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_IOTHREAD_INFO", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	v := g.View()
	def, err := definitionByFlags(v, args.Flags)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetIOThreadInfoRet)
	add := func(id uint, cpus topology.CPUSet) {
		if len(ret.Info) < xdr.MaxIOThreadInfo {
			mask := cpus.Intersect(h.Host.Facts().Topology.Present).Map(h.Host.Facts().Topology.Present.Max() + 1)
			ret.Info = append(ret.Info, xdr.DomainIOThreadInfo{IOThreadID: uint32(id), CPUMap: mask})
			ret.Count++
		}
	}
	if def != v.Active {
		for id := uint(1); id <= def.IOThreads; id++ {
			add(id, allowedCPUs(h, def, def.Tune.IOThreadPins[id]))
		}
		return ret, nil
	}
	threads, err := g.IOThreads(ctx)
	for _, t := range threads {
		add(t.ID, t.Affinity)
	}
	return ret, err
}

func domainPinIOThread(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainPinIOThreadArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_PIN_IOTHREAD", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	to, err := parsePinMap(h, args.CPUMap)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.PinIOThread(ctx, g, s.Scope, uint(args.IOThreadID), to, affect(args.Flags))
}

func domainAddIOThread(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainAddIOThreadArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_ADD_IOTHREAD", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.AddIOThread(ctx, g, s.Scope, uint(args.IOThreadID), affect(args.Flags))
}
