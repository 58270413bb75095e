package domaincalls

import (
	"context"
	"math/bits"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DomainDumpCalls write a domain's memory to a file for a debugger.
func DomainDumpCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainCoreDump, domainCoreDump)
	rpc.On(g, xdr.ProcDomainCoreDumpWithFormat, domainCoreDumpWithFormat)
}

// dumpFormats are QEMU's names of the dump formats, by libvirt's numbers.
var dumpFormats = []string{"elf", "kdump-zlib", "kdump-lzo", "kdump-snappy", "win-dmp", "kdump-raw-zlib", "kdump-raw-lzo", "kdump-raw-snappy"}

func domainCoreDump(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCoreDumpArgs) (*rpc.Void, error) {
	return dump(ctx, h, s.Scope, "DOMAIN_CORE_DUMP", args.Domain, args.To, 0, args.Flags)
}

func domainCoreDumpWithFormat(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCoreDumpWithFormatArgs) (*rpc.Void, error) {
	return dump(ctx, h, s.Scope, "DOMAIN_CORE_DUMP_WITH_FORMAT", args.Domain, args.To, args.DumpFormat, args.Flags)
}

func dump(ctx context.Context, h *rpc.Handlers, sc scope.Scope, call string, d xdr.Domain, to string, format, flags uint32) (*rpc.Void, error) {
	o, err := DumpOptions(call, format, flags)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	return nil, savestate.Dump(ctx, g, sc, to, o)
}

// DumpOptions converts the flags of a dump.
func DumpOptions(call string, format, flags uint32) (savestate.DumpOptions, error) {
	o := savestate.DumpOptions{
		Live: flags&rpc.DumpLive != 0, Crash: flags&rpc.DumpCrash != 0, Reset: flags&rpc.DumpReset != 0, BypassCache: flags&rpc.DumpBypassCache != 0,
	}
	if err := rpc.CheckFlags(call, flags, rpc.DumpFlags); err != nil {
		return o, err
	}
	switch {
	case bits.OnesCount32(flags&(rpc.DumpCrash|rpc.DumpLive|rpc.DumpReset)) > 1:
		return o, fault.New(fault.Invalid, fault.Call, "the flags crash, live and reset exclude each other")
	case format >= uint32(len(dumpFormats)):
		return o, fault.New(fault.Invalid, fault.Call, "there is no dump format %d", format)
	case flags&rpc.DumpMemoryOnly != 0:
		o.Memory = dumpFormats[format]
	case format != 0:
		return o, fault.New(fault.WrongState, fault.Call, "format %s is only supported with memory-only dump", dumpFormats[format])
	}
	return o, nil
}
