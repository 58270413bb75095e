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
	CompareFail     = 1 << 0 // an incompatible CPU is an error
	CompareValidate = 1 << 1
)

// Results of a comparison (virCPUCompareResult): the host's CPU against the one that a client
// describes.
const (
	CPUIncompatible = 0
	CPUIdentical    = 1
	CPUSuperset     = 2 // the host has more features
)

// CompareCalls compare the host's CPU with a described one.
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
		return CatalogueOf(caps).CompareDocument(HostCPUOf(h.Host.Facts(), caps), args.XML, args.Flags)
	})
}

func connectCompareHypervisorCPU(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectCompareHypervisorCPUArgs) (*xdr.ConnectCompareHypervisorCPURet, error) {
	if err := rpc.CheckFlags("CONNECT_COMPARE_HYPERVISOR_CPU", args.Flags, CompareFail|CompareValidate); err != nil {
		return nil, err
	}
	o, err := resolveDomainCaps(ctx, h, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return rpc.RunFair(ctx, func() (*xdr.WithResult, error) {
		return CatalogueOf(o.Caps).CompareDocument(hypervisorCPU(o.Acc), args.XMLCPU, args.Flags)
	})
}

// CompareDocument compares a CPU of the host with the one in a document.
func (c Catalogue) CompareDocument(host KnownCPU, doc string, flags uint32) (*xdr.WithResult, error) {
	if flags&CompareValidate != 0 {
		if err := validateCPU(doc); err != nil {
			return nil, rpc.CPUError(err)
		}
	}
	p, err := ParseCPU(doc, AnyCPU)
	if err != nil {
		return nil, rpc.CPUError(err)
	}
	result, why, err := c.compare(host, p)
	if err == nil && result == CPUIncompatible && flags&CompareFail != 0 {
		err = rpc.WithCode(rpc.CodeCPUIncompatible, fault.New(fault.Unsupported, fault.Config, "%s", why))
	}
	return &xdr.WithResult{Result: int32(result)}, rpc.CPUError(err)
}

// compare returns the result of the comparison, and the reason if the CPUs are incompatible.
func (c Catalogue) compare(host KnownCPU, p CPUDescription) (result int, why string, err error) {
	switch {
	case len(host.Features) == 0:
		return CPUIncompatible, "the host's processor is unknown", nil
	case p.ofHost() && !isX86(p.arch):
		return CPUIncompatible, "CPU arch " + p.arch + " does not match host arch", nil
	case p.vendor != "" && p.vendor != host.Vendor:
		return CPUIncompatible, "host CPU vendor does not match required CPU vendor " + p.vendor, nil
	}
	needed, err := c.modelFeatures(p.model)
	if err != nil {
		return 0, "", err
	}
	required, err := c.featuresByPolicy(p, "require")
	if err != nil {
		return 0, "", err
	}
	// All feature names have been checked by now, so the errors below cannot occur.
	maps.Copy(needed, required)
	open, _ := c.featuresByPolicy(p, "force", "optional", "disable")
	removeFeatures(needed, open)
	forbidden, _ := c.featuresByPolicy(p, "forbid")
	maps.DeleteFunc(forbidden, func(name string, _ bool) bool { return !host.Features[name] })
	if len(forbidden) > 0 {
		return CPUIncompatible, "host CPU provides forbidden features: " + joinNames(Difference(forbidden, nil)), nil
	}
	if missing := Difference(needed, host.Features); len(missing) > 0 {
		return CPUIncompatible, "host CPU does not provide required features: " + joinNames(missing), nil
	}
	maps.Copy(needed, open)
	extra := Difference(host.Features, needed)
	switch {
	case len(extra) == 0:
		return CPUIdentical, "", nil
	case p.match == "strict":
		return CPUIncompatible, "host CPU does not strictly match guest CPU: extra features: " + joinNames(extra), nil
	}
	return CPUSuperset, "", nil
}

func joinNames(names []string) string { return strings.Join(names, ", ") }
