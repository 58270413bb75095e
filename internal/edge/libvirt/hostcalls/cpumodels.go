package hostcalls

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// FeatureSet is a set of CPU features by libvirt's names.
type FeatureSet map[string]bool

// FeatureSetOf converts QEMU's feature names to a set by libvirt's names.
func FeatureSetOf(qemuNames []string) FeatureSet {
	set := FeatureSet{}
	for _, name := range cpuFeatures(qemuNames) {
		set[name] = true
	}
	return set
}

// CPUModel is a named CPU model.
type CPUModel struct {
	qemucaps.CPUDefinition

	vendor   string // "unknown" if there is none
	features FeatureSet
}

// Catalogue has the models and features that descriptions may name.
type Catalogue struct {
	models   []CPUModel
	features FeatureSet
}

// lastCatalogue caches the catalogue that was made last, with its source. Making one takes as
// long as answering a hundred calls, and QEMU is rarely probed.
var lastCatalogue atomic.Pointer[struct {
	caps      *qemucaps.Capabilities
	catalogue Catalogue
}]

// CatalogueOf returns the models of a QEMU. A feature without a name in QEMU is left out
// of every CPU: clients may not know it either.
func CatalogueOf(caps *qemucaps.Capabilities) Catalogue {
	if last := lastCatalogue.Load(); last != nil && last.caps == caps {
		return last.catalogue
	}
	c := Catalogue{features: FeatureSetOf(qemucaps.HostFeatures)}
	for _, acc := range caps.Accelerators {
		maps.Copy(c.features, FeatureSetOf(acc.Features))
	}
	for _, d := range caps.CPUDefinitions() {
		m := CPUModel{d, modelVendor(d.Name), FeatureSetOf(d.Features)}
		c.models = append(c.models, m)
		maps.Copy(c.features, m.features)
	}
	lastCatalogue.Store(&struct {
		caps      *qemucaps.Capabilities
		catalogue Catalogue
	}{caps, c})
	return c
}

// model finds a CPU model by name; an unknown name is an error.
func (c Catalogue) model(name string) (CPUModel, error) {
	i := slices.IndexFunc(c.models, func(m CPUModel) bool { return m.Name == name })
	if i < 0 {
		return CPUModel{}, rpc.WithCode(rpc.CodeInternal, fault.New(fault.Invalid, fault.Config, "unknown CPU model %s", name))
	}
	return c.models[i], nil
}

// modelFeatures returns the features of a model; none for an empty name.
func (c Catalogue) modelFeatures(name string) (FeatureSet, error) {
	if name == "" {
		return FeatureSet{}, nil
	}
	m, err := c.model(name)
	return maps.Clone(m.features), err
}

// featuresByPolicy returns the features that a description names with one of the policies.
func (c Catalogue) featuresByPolicy(p CPUDescription, policies ...string) (FeatureSet, error) {
	set := FeatureSet{}
	for _, f := range p.features {
		if !c.features[f.name] {
			return nil, rpc.WithCode(rpc.CodeInternal, fault.New(fault.Invalid, fault.Config, "unknown CPU feature %s", f.name))
		}
		if slices.Contains(policies, f.policy) {
			set[f.name] = true
		}
	}
	return set, nil
}

// FeaturesOf returns the features of a described CPU.
func (c Catalogue) FeaturesOf(p CPUDescription) (FeatureSet, error) {
	set, err := c.modelFeatures(p.model)
	if err != nil {
		return nil, err
	}
	more, err := c.featuresByPolicy(p, "require", "force")
	if err != nil {
		return nil, err
	}
	less, err := c.featuresByPolicy(p, "disable", "forbid")
	maps.Copy(set, more)
	removeFeatures(set, less)
	return set, err
}

// removeFeatures deletes from a set the features of another.
func removeFeatures(set, other FeatureSet) {
	maps.DeleteFunc(set, func(name string, _ bool) bool { return other[name] })
}

// Difference returns, sorted, the features of a set that are not in another.
func Difference(set, other FeatureSet) []string {
	var names []string
	for name := range set {
		if !other[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// KnownCPU is a CPU with a complete list of its features.
type KnownCPU struct {
	Vendor    string // libvirt's name, or ""
	Signature qemucaps.Signature
	Features  FeatureSet
}

// hasSignatureOf reports whether the CPU's signature is one of those under which the model was sold.
func (k KnownCPU) hasSignatureOf(m CPUModel) bool {
	return k.Signature != qemucaps.Signature{} && m.IsSoldAs(k.Signature)
}

// HostCPUOf returns the host's CPU, from CPUID, and for features in MSRs from KVM.
func HostCPUOf(facts *resources.Facts, caps *qemucaps.Capabilities) KnownCPU {
	cpu, c := facts.CPU, CatalogueOf(caps)
	k := KnownCPU{
		Vendor: CPUVendors[cpu.Vendor], Signature: qemucaps.Signature{Family: cpu.Family, Model: cpu.ModelNumber, Stepping: cpu.Stepping},
		Features: FeatureSetOf(qemucaps.CPUIDFeatures(cpuidRegisters(cpu.CPUID))),
	}
	if kvm := caps.Accelerator("kvm"); kvm.Usable {
		maps.Copy(k.Features, FeatureSetOf(qemucaps.FeaturesInMSRs(kvm.HostModel.Features)))
	}
	maps.DeleteFunc(k.Features, func(name string, _ bool) bool { return !c.features[name] })
	if k.Vendor == "Intel" && hasBrokenTSX(k.Signature) {
		removeFeatures(k.Features, FeatureSet{"hle": true, "rtm": true})
	}
	return k
}

// hasBrokenTSX reports whether Intel disabled TSX in these CPUs by microcode, because it is broken.
// Some firmware still shows it in CPUID.
func hasBrokenTSX(s qemucaps.Signature) bool {
	return s.Family == 6 && (slices.Contains([]int{60, 69, 70}, s.Model) || s.Model == 63 && s.Stepping < 4)
}

func cpuidRegisters(leaves []kernel.CPUIDLeaf) map[qemucaps.CPUIDWord]uint32 {
	words := map[qemucaps.CPUIDWord]uint32{}
	for _, l := range leaves {
		for register, value := range map[string]uint32{"eax": l.EAX, "ebx": l.EBX, "ecx": l.ECX, "edx": l.EDX} {
			words[qemucaps.CPUIDWord{Leaf: l.Leaf, Part: l.Part, Register: register}] = value
		}
	}
	return words
}

// hypervisorCPU returns the CPU that an accelerator gives a guest with host-model.
func hypervisorCPU(acc qemucaps.Accelerator) KnownCPU {
	m := acc.HostModel
	return KnownCPU{Vendor: CPUVendors[m.Vendor], Signature: m.Signature, Features: FeatureSetOf(m.Features)}
}

// HostModel expands host-model for an accelerator: to a model, the features that the accelerator
// adds, and those that it lacks. It finds none if no model runs. QEMU's model may differ from the
// model that clients know. The lists cover the difference, so a guest started from them gets the
// same features as one with host-model.
func (c Catalogue) HostModel(acc qemucaps.Accelerator) (m CPUModel, require, disable []string, found bool) {
	m, err := c.model(acc.HostModel.Base)
	available := hypervisorCPU(acc).Features
	more, less := FeatureSetOf(acc.HostModel.Added), FeatureSetOf(acc.HostModel.Removed)
	for _, name := range Difference(available, m.features) {
		more[name] = true
	}
	for _, name := range Difference(m.features, available) {
		less[name] = true
	}
	return m, Difference(more, nil), Difference(less, nil), err == nil
}

// Nearest finds the model that describes a CPU best. A host has all features of its
// model; a guest's description may disable features of the model. A model with the CPU's
// signature comes first, then the model with the shortest list of changes. Among equals,
// a preferred model comes first.
func (c Catalogue) Nearest(p KnownCPU, ofHost bool, preferred []string) (CPUModel, bool) {
	var best CPUModel
	bestCost, bestPenalty, found := 0, 0, false
	for _, m := range c.models {
		missing := len(Difference(m.features, p.Features))
		if m.vendor != "unknown" && p.Vendor != "" && m.vendor != p.Vendor || ofHost && missing > 0 {
			continue
		}
		isPreferred := slices.Contains(preferred, m.Name)
		if isPreferred && len(preferred) == 1 {
			return m, true
		}
		penalty := missingPenalty(missing)
		cost := len(Difference(p.Features, m.features)) + missing/2 + penalty
		if found {
			matches, bestMatches := p.hasSignatureOf(m), p.hasSignatureOf(best)
			better := cost < bestCost || cost == bestCost && (penalty < bestPenalty || isPreferred && penalty == bestPenalty)
			if bestMatches && !matches || bestMatches == matches && !better {
				continue
			}
		}
		best, bestCost, bestPenalty, found = m, cost, penalty, true
	}
	return best, found
}

// missingPenalty returns the cost of a model with so many features that the CPU lacks. It grows
// faster than their number, so a smaller model with a longer list of added features is
// preferred. libvirt counts the same way.
func missingPenalty(missing int) int {
	n := (missing + 1) / 2
	return n * (n + 3) / 2
}
