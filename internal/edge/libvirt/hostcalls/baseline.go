package hostcalls

import (
	"context"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Flags of CONNECT_BASELINE_CPU and CONNECT_BASELINE_HYPERVISOR_CPU.
const (
	BaselineExpand     = 1 << 0 // list the features of the model, too
	BaselineMigratable = 1 << 1 // leave out features that prevent migration
)

// nonMigratableFeatures prevent the migration of a guest that has them.
var nonMigratableFeatures = []string{"invtsc", "xsaves"}

// hostOnlyFeatures are features that a guest's definition does not name.
var hostOnlyFeatures = FeatureSetOf(qemucaps.HostFeatures)

// BaselineCalls compute the CPU that several hosts have in common.
func BaselineCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectBaselineCPU, connectBaselineCPU)
	rpc.On(g, xdr.ProcConnectBaselineHypervisorCPU, connectBaselineHypervisorCPU)
}

func connectBaselineCPU(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectBaselineCPUArgs) (*xdr.ConnectBaselineCPURet, error) {
	if err := rpc.CheckFlags("CONNECT_BASELINE_CPU", args.Flags, BaselineExpand|BaselineMigratable); err != nil {
		return nil, err
	}
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	return rpc.RunFair(ctx, func() (*xdr.WithCPU, error) {
		return BaselineRequest{CatalogueOf(caps), HostCPU, nil, args.Flags}.Answer(args.XMLCPUs)
	})
}

func connectBaselineHypervisorCPU(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectBaselineHypervisorCPUArgs) (*xdr.ConnectBaselineHypervisorCPURet, error) {
	if err := rpc.CheckFlags("CONNECT_BASELINE_HYPERVISOR_CPU", args.Flags, BaselineExpand|BaselineMigratable); err != nil {
		return nil, err
	}
	o, err := resolveDomainCaps(ctx, h, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return rpc.RunFair(ctx, func() (*xdr.WithCPU, error) {
		return BaselineRequest{CatalogueOf(o.Caps), AnyCPU, hypervisorCPU(o.Acc).Features, args.Flags}.Answer(args.XMLCPUs)
	})
}

// BaselineRequest holds the parameters of one call.
type BaselineRequest struct {
	Catalogue

	Kind      CPUKind
	Available FeatureSet // the features that the hypervisor can give a guest; nil: any
	Flags     uint32
}

// Answer parses the CPU descriptions and returns the baseline CPU as XML.
func (r BaselineRequest) Answer(docs []string) (*xdr.WithCPU, error) {
	all := make([]CPUDescription, 0, len(docs))
	for _, doc := range docs {
		p, err := ParseCPU(doc, r.Kind)
		if err != nil {
			return nil, rpc.CPUError(err)
		}
		all = append(all, p)
	}
	e, err := r.baseline(all)
	if err != nil {
		return nil, rpc.CPUError(err)
	}
	doc, err := xmltree.Format(e)
	return &xdr.WithCPU{CPU: doc}, err
}

// baseline finds the features that all CPUs share, and the model that describes them best.
func (r BaselineRequest) baseline(all []CPUDescription) (*xmltree.Element, error) {
	if len(all) == 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "no CPUs given")
	}
	for i, p := range all {
		if p.model == "" {
			return nil, fault.New(fault.Invalid, fault.Call, "no CPU model specified at index %d", i)
		}
		if p.ofHost() && !isX86(p.arch) {
			return nil, fault.New(fault.Unsupported, fault.Call, "cannot compute baseline CPU of %s architecture", p.arch)
		}
	}
	common, err := r.commonFeatures(all)
	if err != nil {
		return nil, err
	}
	var models []string
	for _, p := range all {
		if !slices.Contains(models, p.model) {
			models = append(models, p.model)
		}
	}
	m, ok := r.Nearest(common, false, models)
	if !ok {
		return nil, rpc.WithCode(rpc.CodeInternal, fault.New(fault.Failed, fault.Call, "cannot find suitable CPU model for given data"))
	}
	if r.Flags&BaselineMigratable != 0 {
		for _, name := range nonMigratableFeatures {
			if !m.features[name] {
				delete(common.Features, name)
			}
		}
	}
	fallback := "allow"
	if r.Available != nil || len(models) == 1 && m.Name == models[0] {
		fallback = "forbid"
	}
	if slices.ContainsFunc(all, func(p CPUDescription) bool { return p.vendor == "" }) {
		common.Vendor = ""
	}
	return r.describe(common, m, fallback), nil
}

// commonFeatures returns the vendor and the features that all CPUs share.
func (r BaselineRequest) commonFeatures(all []CPUDescription) (KnownCPU, error) {
	var common KnownCPU
	for i, p := range all {
		features, err := r.FeaturesOf(p)
		if err != nil {
			return common, err
		}
		vendor, err := r.vendor(p, i == 0)
		switch {
		case err != nil:
			return common, err
		case common.Vendor == "":
			common.Vendor = vendor
		case vendor != "" && vendor != common.Vendor:
			return common, fault.New(fault.Failed, fault.Call, "CPU vendors do not match: %s and %s", common.Vendor, vendor)
		}
		if i == 0 {
			common.Features = features
		} else {
			maps.DeleteFunc(common.Features, func(name string, _ bool) bool { return !features[name] })
		}
	}
	removeFeatures(common.Features, hostOnlyFeatures)
	if r.Available != nil {
		maps.DeleteFunc(common.Features, func(name string, _ bool) bool { return !r.Available[name] })
	}
	if len(common.Features) == 0 {
		return common, fault.New(fault.Failed, fault.Call, "CPUs are incompatible: they have no feature in common")
	}
	return common, nil
}

// vendor returns the vendor that a CPU description names, else the vendor of its
// model; "" if there is none. For the first CPU only the description counts, as in libvirt.
func (r BaselineRequest) vendor(p CPUDescription, first bool) (string, error) {
	if p.vendor != "" && !slices.Contains(slices.Collect(maps.Values(CPUVendors)), p.vendor) {
		return "", fault.New(fault.Failed, fault.Call, "unknown CPU vendor %s", p.vendor)
	}
	if first {
		return p.vendor, nil
	}
	m, err := r.model(p.model)
	switch {
	case err != nil:
		return "", err
	case m.vendor == "unknown":
		return p.vendor, nil
	case p.vendor != "" && p.vendor != m.vendor:
		return "", fault.New(fault.Failed, fault.Call, "CPU vendor %s of model %s differs from vendor %s", m.vendor, p.model, p.vendor)
	}
	return m.vendor, nil
}

// describe writes a CPU as in a domain's definition: the model, the features that it has in
// addition, and the model's features that it lacks. With BaselineExpand it lists all features.
func (r BaselineRequest) describe(p KnownCPU, m CPUModel, fallback string) *xmltree.Element {
	e := appendNodes(element("cpu", "mode", "custom", "match", "exact"), textElement("model", m.Name, "fallback", fallback), textElement("vendor", p.Vendor))
	implied := m.features
	if r.Flags&BaselineExpand != 0 {
		implied = nil
	}
	for _, name := range Difference(p.Features, implied) {
		appendNodes(e, element("feature", "policy", "require", "name", name))
	}
	for _, name := range Difference(m.features, p.Features) {
		appendNodes(e, element("feature", "policy", "disable", "name", name))
	}
	return e
}
