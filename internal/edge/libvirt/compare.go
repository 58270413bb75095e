package libvirt

import (
	"context"
	"maps"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Flags of CONNECT_COMPARE_CPU and CONNECT_COMPARE_HYPERVISOR_CPU.
const (
	compareFail     = 1 << 0 // an error where the processors do not go together
	compareValidate = 1 << 1
)

// Results of a comparison: how far this host matches the processor that a client
// describes.
const (
	cpuIncompatible = 0
	cpuIdentical    = 1
	cpuSuperset     = 2 // all of it, and more
)

// compareCalls are the calls that say whether a described processor is here.
func compareCalls(g group) {
	on(g, xdr.ProcConnectCompareCPU, (*handlers).connectCompareCPU)
	on(g, xdr.ProcConnectCompareHypervisorCPU, (*handlers).connectCompareHypervisorCPU)
}

func (h *handlers) connectCompareCPU(ctx context.Context, _ *request, args *xdr.ConnectCompareCPUArgs) (*xdr.ConnectCompareCPURet, error) {
	if err := checkFlags("CONNECT_COMPARE_CPU", args.Flags, compareFail|compareValidate); err != nil {
		return nil, err
	}
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, func() (*xdr.WithResult, error) {
		return catalogueOf(caps).compareDocument(hostProcessorOf(h.Host.Facts(), caps), args.XML, args.Flags)
	})
}

func (h *handlers) connectCompareHypervisorCPU(ctx context.Context, s *request, args *xdr.ConnectCompareHypervisorCPUArgs) (*xdr.ConnectCompareHypervisorCPURet, error) {
	if err := checkFlags("CONNECT_COMPARE_HYPERVISOR_CPU", args.Flags, compareFail|compareValidate); err != nil {
		return nil, err
	}
	o, err := h.offer(ctx, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, func() (*xdr.WithResult, error) {
		return catalogueOf(o.caps).compareDocument(hypervisorProcessorOf(o.acc), args.XMLCPU, args.Flags)
	})
}

func (c catalogue) compareDocument(here known, doc string, flags uint32) (*xdr.WithResult, error) {
	if flags&compareValidate != 0 {
		if err := validProcessor(doc); err != nil {
			return nil, ofCPU(err)
		}
	}
	p, err := readProcessor(doc, anyProcessor)
	if err != nil {
		return nil, ofCPU(err)
	}
	result, why, err := c.compare(here, p)
	if err == nil && result == cpuIncompatible && flags&compareFail != 0 {
		err = withCode(codeCPUIncompatible, fault.New(fault.Unsupported, fault.Config, "%s", why))
	}
	return &xdr.WithResult{Result: int32(result)}, ofCPU(err)
}

// compare says how far this host matches a described processor, and why it is
// incompatible.
func (c catalogue) compare(here known, p processor) (result int, why string, err error) {
	switch {
	case len(here.features) == 0:
		return cpuIncompatible, "the host's processor is unknown", nil
	case p.ofHost() && !isX86(p.arch):
		return cpuIncompatible, "CPU arch " + p.arch + " does not match host arch", nil
	case p.vendor != "" && p.vendor != here.vendor:
		return cpuIncompatible, "host CPU vendor does not match required CPU vendor " + p.vendor, nil
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
	maps.DeleteFunc(forbidden, func(name string, _ bool) bool { return !here.features[name] })
	if len(forbidden) > 0 {
		return cpuIncompatible, "host CPU provides forbidden features: " + listed(lacking(forbidden, nil)), nil
	}
	if missing := lacking(needed, here.features); len(missing) > 0 {
		return cpuIncompatible, "host CPU does not provide required features: " + listed(missing), nil
	}
	maps.Copy(needed, open)
	extra := lacking(here.features, needed)
	switch {
	case len(extra) == 0:
		return cpuIdentical, "", nil
	case p.match == "strict":
		return cpuIncompatible, "host CPU does not strictly match guest CPU: extra features: " + listed(extra), nil
	}
	return cpuSuperset, "", nil
}

func listed(names []string) string { return strings.Join(names, ", ") }
