package libvirt

import (
	"context"
	"math/bits"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// domainDumpCalls write a domain's memory to files, for debuggers.
func domainDumpCalls(g group) {
	on(g, xdr.ProcDomainCoreDump, (*handlers).domainCoreDump)
	on(g, xdr.ProcDomainCoreDumpWithFormat, (*handlers).domainCoreDumpWithFormat)
}

// Flags of dumping.
const (
	dumpCrash       = 1
	dumpLive        = 2
	dumpBypassCache = 4
	dumpReset       = 8
	dumpMemoryOnly  = 16
	dumpFlags       = 31
)

// dumpFormats are QEMU's names of the formats of memory, by libvirt's numbers.
var dumpFormats = []string{"elf", "kdump-zlib", "kdump-lzo", "kdump-snappy", "win-dmp", "kdump-raw-zlib", "kdump-raw-lzo", "kdump-raw-snappy"}

func (h *handlers) domainCoreDump(ctx context.Context, s *request, args *xdr.DomainCoreDumpArgs) (*void, error) {
	return h.dump(ctx, s.scope, "DOMAIN_CORE_DUMP", args.Domain, args.To, 0, args.Flags)
}

func (h *handlers) domainCoreDumpWithFormat(ctx context.Context, s *request, args *xdr.DomainCoreDumpWithFormatArgs) (*void, error) {
	return h.dump(ctx, s.scope, "DOMAIN_CORE_DUMP_WITH_FORMAT", args.Domain, args.To, args.DumpFormat, args.Flags)
}

func (h *handlers) dump(ctx context.Context, sc scope.Scope, call string, d xdr.Domain, to string, format, flags uint32) (*void, error) {
	o, err := dumpOptions(call, format, flags)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(d)
	if err != nil {
		return nil, err
	}
	return nil, savestate.Dump(ctx, g, sc, to, o)
}

func dumpOptions(call string, format, flags uint32) (savestate.DumpOptions, error) {
	o := savestate.DumpOptions{
		Live: flags&dumpLive != 0, Crash: flags&dumpCrash != 0, Reset: flags&dumpReset != 0, BypassCache: flags&dumpBypassCache != 0,
	}
	if err := checkFlags(call, flags, dumpFlags); err != nil {
		return o, err
	}
	switch {
	case bits.OnesCount32(flags&(dumpCrash|dumpLive|dumpReset)) > 1:
		return o, fault.New(fault.Invalid, fault.Call, "flags to crash, to reset and to run on exclude each other")
	case format >= uint32(len(dumpFormats)):
		return o, fault.New(fault.Invalid, fault.Call, "there is no dump format %d", format)
	case flags&dumpMemoryOnly != 0:
		o.Memory = dumpFormats[format]
	case format != 0:
		return o, fault.New(fault.WrongState, fault.Call, "format %s is only supported with memory-only dump", dumpFormats[format])
	}
	return o, nil
}
