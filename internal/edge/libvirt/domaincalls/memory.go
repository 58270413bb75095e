package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DomainMemoryCalls read and change the size of a domain's memory. Sizes on the wire
// are in KiB.
func DomainMemoryCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetMaxMemory, domainGetMaxMemory)
	rpc.On(g, xdr.ProcDomainSetMaxMemory, DomainSetMaxMemory)
	rpc.On(g, xdr.ProcDomainSetMemory, DomainSetMemory)
	rpc.On(g, xdr.ProcDomainSetMemoryFlags, domainSetMemoryFlags)
	rpc.On(g, xdr.ProcDomainSetMemoryStatsPeriod, domainSetMemoryStatsPeriod)
}

// memoryMaximum changes the maximum memory, and not the balloon.
const memoryMaximum = 4

func domainGetMaxMemory(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetMaxMemoryArgs) (*xdr.DomainGetMaxMemoryRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definitionByFlags(v, 0)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetMaxMemoryRet{Memory: def.Memory / 1024}, nil
}

func setMemory(ctx context.Context, h *rpc.Handlers, sc scope.Scope, d xdr.Domain, kib uint64, a machine.Affect, maximum bool) (*rpc.Void, error) {
	if kib == 0 || kib > domainxml.MaxMemory/1024 {
		return nil, fault.New(fault.Invalid, fault.Call, "a domain cannot have %d KiB of memory", kib)
	}
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	if maximum {
		return nil, hotplug.SetMaxMemory(ctx, g, sc, kib*1024, a)
	}
	return nil, hotplug.SetMemory(ctx, g, sc, kib*1024, a)
}

// DomainSetMaxMemory serves DOMAIN_SET_MAX_MEMORY, in KiB.
func DomainSetMaxMemory(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetMaxMemoryArgs) (*rpc.Void, error) {
	return setMemory(ctx, h, s.Scope, args.Domain, args.Memory, machine.Affect{}, true)
}

// DomainSetMemory serves DOMAIN_SET_MEMORY, in KiB.
func DomainSetMemory(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetMemoryArgs) (*rpc.Void, error) {
	return setMemory(ctx, h, s.Scope, args.Domain, args.Memory, machine.Affect{Live: true}, false)
}

func domainSetMemoryFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetMemoryFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_MEMORY_FLAGS", args.Flags, affectBoth|memoryMaximum); err != nil {
		return nil, err
	}
	return setMemory(ctx, h, s.Scope, args.Domain, args.Memory, affect(args.Flags), args.Flags&memoryMaximum != 0)
}

func domainSetMemoryStatsPeriod(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetMemoryStatsPeriodArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_MEMORY_STATS_PERIOD", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if args.Period < 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "a period cannot be %d seconds; 0 turns it off", args.Period)
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.SetStatsPeriod(ctx, g, s.Scope, uint(args.Period), affect(args.Flags))
}
