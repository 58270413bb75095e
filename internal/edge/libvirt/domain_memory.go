package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// domainMemoryCalls read and change the size of a domain's memory. Sizes on the wire
// are in KiB.
func domainMemoryCalls(g group) {
	on(g, xdr.ProcDomainGetMaxMemory, (*handlers).domainGetMaxMemory)
	on(g, xdr.ProcDomainSetMaxMemory, (*handlers).domainSetMaxMemory)
	on(g, xdr.ProcDomainSetMemory, (*handlers).domainSetMemory)
	on(g, xdr.ProcDomainSetMemoryFlags, (*handlers).domainSetMemoryFlags)
	on(g, xdr.ProcDomainSetMemoryStatsPeriod, (*handlers).domainSetMemoryStatsPeriod)
}

// memoryMaximum changes the most that a domain can have.
const memoryMaximum = 4

func (h *handlers) domainGetMaxMemory(_ context.Context, _ *request, args *xdr.DomainGetMaxMemoryArgs) (*xdr.DomainGetMaxMemoryRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	def, err := definition(v, 0)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetMaxMemoryRet{Memory: def.Memory / 1024}, nil
}

func (h *handlers) setMemory(ctx context.Context, sc scope.Scope, d xdr.Domain, kib uint64, a machine.Affect, maximum bool) (*void, error) {
	if kib == 0 || kib > domainxml.MaxMemory/1024 {
		return nil, fault.New(fault.Invalid, fault.Call, "a domain cannot have %d KiB of memory", kib)
	}
	g, err := h.guest(d)
	if err != nil {
		return nil, err
	}
	if maximum {
		return nil, hotplug.SetMaxMemory(ctx, g, sc, kib*1024, a)
	}
	return nil, hotplug.SetMemory(ctx, g, sc, kib*1024, a)
}

func (h *handlers) domainSetMaxMemory(ctx context.Context, s *request, args *xdr.DomainSetMaxMemoryArgs) (*void, error) {
	return h.setMemory(ctx, s.scope, args.Domain, args.Memory, machine.Affect{}, true)
}

func (h *handlers) domainSetMemory(ctx context.Context, s *request, args *xdr.DomainSetMemoryArgs) (*void, error) {
	return h.setMemory(ctx, s.scope, args.Domain, args.Memory, machine.Affect{Live: true}, false)
}

func (h *handlers) domainSetMemoryFlags(ctx context.Context, s *request, args *xdr.DomainSetMemoryFlagsArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_MEMORY_FLAGS", args.Flags, affectBoth|memoryMaximum); err != nil {
		return nil, err
	}
	return h.setMemory(ctx, s.scope, args.Domain, args.Memory, affect(args.Flags), args.Flags&memoryMaximum != 0)
}

func (h *handlers) domainSetMemoryStatsPeriod(ctx context.Context, s *request, args *xdr.DomainSetMemoryStatsPeriodArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_MEMORY_STATS_PERIOD", args.Flags, affectBoth); err != nil {
		return nil, err
	}
	if args.Period < 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "a period of %d seconds makes no sense; 0 turns it off", args.Period)
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, hotplug.SetStatsPeriod(ctx, g, s.scope, uint(args.Period), affect(args.Flags))
}
