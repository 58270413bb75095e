package hostcalls

import (
	"context"
	"maps"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Flags of CONNECT_COMPARE_CPU and CONNECT_COMPARE_HYPERVISOR_CPU.
const (
	CompareFail     = 1 << 0 // an error where the processors do not go together
	CompareValidate = 1 << 1
)

// Results of a comparison: how far this host matches the processor that a client
// describes.
const (
	CPUIncompatible = 0
	CPUIdentical    = 1
	CPUSuperset     = 2 // all of it, and more
)

// CompareCalls are the calls that say whether a described processor is here.
func CompareCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectCompareCPU, connectCompareCPU)
	rpc.On(g, xdr.ProcConnectCompareHypervisorCPU, connectCompareHypervisorCPU)
}

func connectCompareCPU(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectCompareCPUArgs) (*xdr.ConnectCompareCPURet, error) {
	if err := rpc.CheckFlags("CONNECT_COMPARE_CPU", args.Flags, CompareFail|CompareValidate); err != nil {
		return nil, err
	}
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	return rpc.RunFair(ctx, func() (*xdr.WithResult, error) {
		return CatalogueOf(caps).CompareDocument(HostProcessorOf(h.Host.Facts(), caps), args.XML, args.Flags)
	})
}

func connectCompareHypervisorCPU(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectCompareHypervisorCPUArgs) (*xdr.ConnectCompareHypervisorCPURet, error) {
	if err := rpc.CheckFlags("CONNECT_COMPARE_HYPERVISOR_CPU", args.Flags, CompareFail|CompareValidate); err != nil {
		return nil, err
	}
	o, err := offer(ctx, h, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return rpc.RunFair(ctx, func() (*xdr.WithResult, error) {
		return CatalogueOf(o.Caps).CompareDocument(hypervisorProcessorOf(o.Acc), args.XMLCPU, args.Flags)
	})
}

// CompareDocument compares the CPU of a document with the host's.
func (c Catalogue) CompareDocument(here Known, doc string, flags uint32) (*xdr.WithResult, error) {
	if flags&CompareValidate != 0 {
		if err := validProcessor(doc); err != nil {
			return nil, rpc.CPUError(err)
		}
	}
	p, err := ReadProcessor(doc, AnyProcessor)
	if err != nil {
		return nil, rpc.CPUError(err)
	}
	result, why, err := c.compare(here, p)
	if err == nil && result == CPUIncompatible && flags&CompareFail != 0 {
		err = rpc.WithCode(rpc.CodeCPUIncompatible, fault.New(fault.Unsupported, fault.Config, "%s", why))
	}
	return &xdr.WithResult{Result: int32(result)}, rpc.CPUError(err)
}

// compare says how far this host matches a described processor, and why it is
// incompatible.
func (c Catalogue) compare(here Known, p Processor) (result int, why string, err error) {
	switch {
	case len(here.Features) == 0:
		return CPUIncompatible, "the host's processor is unknown", nil
	case p.ofHost() && !isX86(p.arch):
		return CPUIncompatible, "CPU arch " + p.arch + " does not match host arch", nil
	case p.vendor != "" && p.vendor != here.Vendor:
		return CPUIncompatible, "host CPU vendor does not match required CPU vendor " + p.vendor, nil
	}
	needed, err := c.modelFeatures(p.model)
	if err != nil {
		return 0, "", err
	}
	required, err := c.named(p, "require")
	if err != nil {
		return 0, "", err
	}
	// The names are known from here on.
	maps.Copy(needed, required)
	open, _ := c.named(p, "force", "optional", "disable")
	remove(needed, open)
	forbidden, _ := c.named(p, "forbid")
	maps.DeleteFunc(forbidden, func(name string, _ bool) bool { return !here.Features[name] })
	if len(forbidden) > 0 {
		return CPUIncompatible, "host CPU provides forbidden features: " + listed(Lacking(forbidden, nil)), nil
	}
	if missing := Lacking(needed, here.Features); len(missing) > 0 {
		return CPUIncompatible, "host CPU does not provide required features: " + listed(missing), nil
	}
	maps.Copy(needed, open)
	extra := Lacking(here.Features, needed)
	switch {
	case len(extra) == 0:
		return CPUIdentical, "", nil
	case p.match == "strict":
		return CPUIncompatible, "host CPU does not strictly match guest CPU: extra features: " + listed(extra), nil
	}
	return CPUSuperset, "", nil
}

func listed(names []string) string { return strings.Join(names, ", ") }
