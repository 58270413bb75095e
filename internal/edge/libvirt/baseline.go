package libvirt

import (
	"context"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Flags of CONNECT_BASELINE_CPU and CONNECT_BASELINE_HYPERVISOR_CPU.
const (
	baselineExpand     = 1 << 0 // name the features of the model too
	baselineMigratable = 1 << 1 // leave out features that keep a guest from migrating
)

// stayingFeatures keep a guest that sees them on its host.
var stayingFeatures = []string{"invtsc", "xsaves"}

// hostsFeatures are features that no guest is given by name.
var hostsFeatures = setOf(qemucaps.HostFeatures)

// baselineCalls are the calls that find a processor that several hosts have.
func baselineCalls(g group) {
	on(g, xdr.ProcConnectBaselineCPU, (*handlers).connectBaselineCPU)
	on(g, xdr.ProcConnectBaselineHypervisorCPU, (*handlers).connectBaselineHypervisorCPU)
}

func (h *handlers) connectBaselineCPU(ctx context.Context, _ *request, args *xdr.ConnectBaselineCPUArgs) (*xdr.ConnectBaselineCPURet, error) {
	if err := checkFlags("CONNECT_BASELINE_CPU", args.Flags, baselineExpand|baselineMigratable); err != nil {
		return nil, err
	}
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, func() (*xdr.WithCPU, error) {
		return baselineRequest{catalogueOf(caps), hostProcessor, nil, args.Flags}.answer(args.XMLCPUs)
	})
}

func (h *handlers) connectBaselineHypervisorCPU(ctx context.Context, s *request, args *xdr.ConnectBaselineHypervisorCPUArgs) (*xdr.ConnectBaselineHypervisorCPURet, error) {
	if err := checkFlags("CONNECT_BASELINE_HYPERVISOR_CPU", args.Flags, baselineExpand|baselineMigratable); err != nil {
		return nil, err
	}
	o, err := h.offer(ctx, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, func() (*xdr.WithCPU, error) {
		return baselineRequest{catalogueOf(o.caps), anyProcessor, hypervisorProcessorOf(o.acc).features, args.Flags}.answer(args.XMLCPUs)
	})
}

// baselineRequest holds the parameters of one call.
type baselineRequest struct {
	catalogue

	kind  processorKind
	given featureSet // the features that the hypervisor can give; nil: any
	flags uint32
}

// answer reads the clients' documents and gives the baseline processor as XML.
func (r baselineRequest) answer(docs []string) (*xdr.WithCPU, error) {
	all := make([]processor, 0, len(docs))
	for _, doc := range docs {
		p, err := readProcessor(doc, r.kind)
		if err != nil {
			return nil, ofCPU(err)
		}
		all = append(all, p)
	}
	e, err := r.baseline(all)
	if err != nil {
		return nil, ofCPU(err)
	}
	doc, err := xmltree.Format(e)
	return &xdr.WithCPU{CPU: doc}, err
}

// baseline finds the features that all processors share, and the model that describes them best.
func (r baselineRequest) baseline(all []processor) (*xmltree.Element, error) {
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
	m, ok := r.nearest(common, false, models)
	if !ok {
		return nil, withCode(codeInternal, fault.New(fault.Failed, fault.Call, "cannot find suitable CPU model for given data"))
	}
	if r.flags&baselineMigratable != 0 {
		for _, name := range stayingFeatures {
			if !m.features[name] {
				delete(common.features, name)
			}
		}
	}
	fallback := "allow"
	if r.given != nil || len(models) == 1 && m.Name == models[0] {
		fallback = "forbid"
	}
	if slices.ContainsFunc(all, func(p processor) bool { return p.vendor == "" }) {
		common.vendor = ""
	}
	return r.describe(common, m, fallback), nil
}

// inCommon gives the vendor and the features that all processors share.
func (r baselineRequest) inCommon(all []processor) (known, error) {
	var common known
	for i, p := range all {
		features, err := r.all(p)
		if err != nil {
			return common, err
		}
		vendor, err := r.vendor(p, i == 0)
		switch {
		case err != nil:
			return common, err
		case common.vendor == "":
			common.vendor = vendor
		case vendor != "" && vendor != common.vendor:
			return common, fault.New(fault.Failed, fault.Call, "CPU vendors do not match: %s and %s", common.vendor, vendor)
		}
		if i == 0 {
			common.features = features
		} else {
			maps.DeleteFunc(common.features, func(name string, _ bool) bool { return !features[name] })
		}
	}
	remove(common.features, hostsFeatures)
	if r.given != nil {
		maps.DeleteFunc(common.features, func(name string, _ bool) bool { return !r.given[name] })
	}
	if len(common.features) == 0 {
		return common, fault.New(fault.Failed, fault.Call, "CPUs are incompatible: they have no feature in common")
	}
	return common, nil
}

// vendor gives the vendor that a processor's description names, else the vendor of its
// model; "" if there is none. For the first processor only the description counts, as in libvirt.
func (r baselineRequest) vendor(p processor, first bool) (string, error) {
	if p.vendor != "" && !slices.Contains(slices.Collect(maps.Values(cpuVendors)), p.vendor) {
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
func (r baselineRequest) describe(p known, m cpuModel, fallback string) *xmltree.Element {
	e := within(tag("cpu", "mode", "custom", "match", "exact"), leaf("model", m.Name, "fallback", fallback), leaf("vendor", p.vendor))
	beyond := m.features
	if r.flags&baselineExpand != 0 {
		beyond = nil
	}
	for _, name := range lacking(p.features, beyond) {
		within(e, tag("feature", "policy", "require", "name", name))
	}
	for _, name := range lacking(m.features, p.features) {
		within(e, tag("feature", "policy", "disable", "name", name))
	}
	return e
}
