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
	BaselineExpand     = 1 << 0 // name the features of the model too
	BaselineMigratable = 1 << 1 // leave out features that keep a guest from migrating
)

// stayingFeatures keep a guest that sees them on its host.
var stayingFeatures = []string{"invtsc", "xsaves"}

// hostsFeatures are features that no guest is given by name.
var hostsFeatures = SetOf(qemucaps.HostFeatures)

// BaselineCalls are the calls that find a processor that several hosts have.
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
		return BaselineRequest{CatalogueOf(caps), HostProcessor, nil, args.Flags}.Answer(args.XMLCPUs)
	})
}

func connectBaselineHypervisorCPU(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectBaselineHypervisorCPUArgs) (*xdr.ConnectBaselineHypervisorCPURet, error) {
	if err := rpc.CheckFlags("CONNECT_BASELINE_HYPERVISOR_CPU", args.Flags, BaselineExpand|BaselineMigratable); err != nil {
		return nil, err
	}
	o, err := offer(ctx, h, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return rpc.RunFair(ctx, func() (*xdr.WithCPU, error) {
		return BaselineRequest{CatalogueOf(o.Caps), AnyProcessor, hypervisorProcessorOf(o.Acc).Features, args.Flags}.Answer(args.XMLCPUs)
	})
}

// BaselineRequest holds the parameters of one call.
type BaselineRequest struct {
	Catalogue

	Kind  ProcessorKind
	Given FeatureSet // the features that the hypervisor can give; nil: any
	Flags uint32
}

// Answer reads the clients' documents and gives the baseline processor as XML.
func (r BaselineRequest) Answer(docs []string) (*xdr.WithCPU, error) {
	all := make([]Processor, 0, len(docs))
	for _, doc := range docs {
		p, err := ReadProcessor(doc, r.Kind)
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

// baseline finds the features that all processors share, and the model that describes them best.
func (r BaselineRequest) baseline(all []Processor) (*xmltree.Element, error) {
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
	common, err := r.inCommon(all)
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
		for _, name := range stayingFeatures {
			if !m.features[name] {
				delete(common.Features, name)
			}
		}
	}
	fallback := "allow"
	if r.Given != nil || len(models) == 1 && m.Name == models[0] {
		fallback = "forbid"
	}
	if slices.ContainsFunc(all, func(p Processor) bool { return p.vendor == "" }) {
		common.Vendor = ""
	}
	return r.describe(common, m, fallback), nil
}

// inCommon gives the vendor and the features that all processors share.
func (r BaselineRequest) inCommon(all []Processor) (Known, error) {
	var common Known
	for i, p := range all {
		features, err := r.All(p)
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
	remove(common.Features, hostsFeatures)
	if r.Given != nil {
		maps.DeleteFunc(common.Features, func(name string, _ bool) bool { return !r.Given[name] })
	}
	if len(common.Features) == 0 {
		return common, fault.New(fault.Failed, fault.Call, "CPUs are incompatible: they have no feature in common")
	}
	return common, nil
}

// vendor gives the vendor that a processor's description names, else the vendor of its
// model; "" if there is none. For the first processor only the description counts, as in libvirt.
func (r BaselineRequest) vendor(p Processor, first bool) (string, error) {
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

// describe writes a processor as a domain's definition does: the model, the features
// beyond the model and the features that are missing. If the model is to be written
// out, it lists all features instead.
func (r BaselineRequest) describe(p Known, m CPUModel, fallback string) *xmltree.Element {
	e := within(tag("cpu", "mode", "custom", "match", "exact"), leaf("model", m.Name, "fallback", fallback), leaf("vendor", p.Vendor))
	beyond := m.features
	if r.Flags&BaselineExpand != 0 {
		beyond = nil
	}
	for _, name := range Lacking(p.Features, beyond) {
		within(e, tag("feature", "policy", "require", "name", name))
	}
	for _, name := range Lacking(m.features, p.Features) {
		within(e, tag("feature", "policy", "disable", "name", name))
	}
	return e
}
