package libvirt

import (
	"context"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/markup"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/xdr"
)

// Flags of CONNECT_BASELINE_CPU and CONNECT_BASELINE_HYPERVISOR_CPU.
const (
	baselineExpand     = 1 << 0 // name the features of the model too
	baselineMigratable = 1 << 1 // leave out what keeps a guest from moving
)

// stayingFeatures keep a guest that sees them on its host.
var stayingFeatures = []string{"invtsc"}

// baselineCalls are the calls that find a processor that several hosts have.
func baselineCalls(g group) {
	on(g, xdr.ProcConnectBaselineCPU, (*handlers).connectBaselineCPU)
	on(g, xdr.ProcConnectBaselineHypervisorCPU, (*handlers).connectBaselineHypervisorCPU)
}

func (h *handlers) connectBaselineCPU(ctx context.Context, _ *session, args *xdr.ConnectBaselineCPUArgs) (*xdr.ConnectBaselineCPURet, error) {
	if err := checkFlags("CONNECT_BASELINE_CPU", args.Flags, baselineExpand|baselineMigratable); err != nil {
		return nil, err
	}
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	_, acc, err := accelerator(caps, "")
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, func() (*xdr.WithCPU, error) { return baseline(acc, args.XMLCPUs, args.Flags) })
}

func (h *handlers) connectBaselineHypervisorCPU(ctx context.Context, s *session, args *xdr.ConnectBaselineHypervisorCPUArgs) (*xdr.ConnectBaselineHypervisorCPURet, error) {
	if err := checkFlags("CONNECT_BASELINE_HYPERVISOR_CPU", args.Flags, baselineExpand|baselineMigratable); err != nil {
		return nil, err
	}
	o, err := h.offer(ctx, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	return inTurn(ctx, func() (*xdr.WithCPU, error) { return baseline(o.acc, args.XMLCPUs, args.Flags) })
}

// processor is one that a client describes, by libvirt's names.
type processor struct {
	model, vendor string
	features      map[string]bool
}

func baseline(acc qemu.Accelerator, docs []string, flags uint32) (*xdr.WithCPU, error) {
	if len(docs) == 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "no processors to find a baseline of")
	}
	all := make([]processor, 0, len(docs))
	for _, doc := range docs {
		p, err := readProcessor(acc, doc)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	common, err := inCommon(all)
	if err != nil {
		return nil, err
	}
	if flags&baselineMigratable != 0 {
		for _, name := range stayingFeatures {
			delete(common.features, name)
		}
	}
	if !slices.ContainsFunc(all, func(p processor) bool { return p.model != all[0].model }) {
		common.model = all[0].model
	} else {
		common.model = nearestModel(acc, common, all)
	}
	doc, err := markup.Format(common.describe(modelFeatures(acc, common.model), flags&baselineExpand != 0))
	return &xdr.WithCPU{CPU: doc}, err
}

// readProcessor reads a processor as capabilities, domain capabilities and
// definitions tell it: a model, and features beside it.
func readProcessor(acc qemu.Accelerator, doc string) (processor, error) {
	root, err := markup.Parse(doc)
	if err != nil {
		return processor{}, err
	}
	if root.Name != "cpu" {
		return processor{}, fault.New(fault.Invalid, fault.XML, "a processor is described by <cpu> and not by <%s>", root.Name)
	}
	p := processor{model: root.Child("model").Text(), vendor: root.Child("vendor").Text()}
	if p.model == "" {
		return p, fault.New(fault.Invalid, fault.XML, "the description of a processor names no <model>")
	}
	p.features = modelFeatures(acc, p.model)
	if len(p.features) == 0 {
		return p, fault.New(fault.Unsupported, fault.Config, "unknown CPU model %s", p.model)
	}
	if maker := modelVendor(p.model); p.vendor == "" && maker != "unknown" {
		p.vendor = maker
	}
	for _, e := range root.Elements("feature") {
		name := e.Attr("name")
		switch policy := e.Attr("policy"); policy {
		case "", "require", "force":
			p.features[name] = true
		case "disable", "forbid":
			delete(p.features, name)
		case "optional":
		default:
			return p, fault.New(fault.Invalid, fault.XML, "feature %s of a processor has the unknown policy %q", name, policy)
		}
	}
	return p, nil
}

// modelFeatures are the features of a model, empty when it is not known.
func modelFeatures(acc qemu.Accelerator, name string) map[string]bool {
	features := make(map[string]bool)
	m, _ := acc.Model(name)
	for _, f := range cpuFeatures(m.Features) {
		features[f] = true
	}
	return features
}

// inCommon gives what all processors have.
func inCommon(all []processor) (processor, error) {
	common := processor{vendor: all[0].vendor, features: maps.Clone(all[0].features)}
	for _, p := range all[1:] {
		if common.vendor != p.vendor {
			return common, fault.New(fault.Failed, fault.Call, "CPU vendors do not match: %s and %s", common.vendor, p.vendor)
		}
		maps.DeleteFunc(common.features, func(name string, _ bool) bool { return !p.features[name] })
	}
	return common, nil
}

// nearestModel is the model that takes the fewest features to say what is
// common, of those that run here or that a processor was described by.
func nearestModel(acc qemu.Accelerator, common processor, all []processor) string {
	best, bestDistance := all[0].model, -1
	for _, m := range namedModels(acc) {
		named := slices.ContainsFunc(all, func(p processor) bool { return p.model == m.Name })
		maker := modelVendor(m.Name)
		if !named && (!m.Usable || maker == "unknown" || maker != common.vendor) {
			continue
		}
		features := modelFeatures(acc, m.Name)
		distance := len(lacking(common.features, features)) + len(lacking(features, common.features))
		if len(features) > 0 && (bestDistance < 0 || distance < bestDistance) {
			best, bestDistance = m.Name, distance
		}
	}
	return best
}

// lacking gives, sorted, what is in one set and not in another.
func lacking(all, some map[string]bool) []string {
	var names []string
	for name := range all {
		if !some[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// describe tells the processor as a definition does: by the model, what it has
// beyond that and what it has not; or by all that it has when the model is to be
// written out.
func (p processor) describe(model map[string]bool, expand bool) *markup.Element {
	e := within(tag("cpu", "mode", "custom", "match", "exact"), leaf("model", p.model, "fallback", "forbid"), leaf("vendor", p.vendor))
	beyond := model
	if expand {
		beyond = nil
	}
	for _, name := range lacking(p.features, beyond) {
		within(e, tag("feature", "policy", "require", "name", name))
	}
	for _, name := range lacking(model, p.features) {
		within(e, tag("feature", "policy", "disable", "name", name))
	}
	return e
}
