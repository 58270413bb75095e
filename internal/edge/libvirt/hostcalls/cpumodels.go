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

// FeatureSet are features by libvirt's names.
type FeatureSet map[string]bool

// SetOf converts QEMU's feature names to a set by libvirt's names.
func SetOf(qemuNames []string) FeatureSet {
	set := FeatureSet{}
	for _, name := range cpuFeatures(qemuNames) {
		set[name] = true
	}
	return set
}

// CPUModel is a processor model that descriptions name.
type CPUModel struct {
	qemucaps.CPUDefinition

	vendor   string // "unknown" if there is none
	features FeatureSet
}

// Catalogue are the models and features that descriptions may name.
type Catalogue struct {
	models   []CPUModel
	features FeatureSet
}

// lastCatalogue is the catalogue that was made last, with its source. Making one takes as
// long as answering a hundred calls, and QEMU is probed seldom.
var lastCatalogue atomic.Pointer[struct {
	of        *qemucaps.Capabilities
	catalogue Catalogue
}]

// CatalogueOf gives the models of a QEMU. A feature without a name in QEMU is left out
// of every processor: clients may not know it either.
func CatalogueOf(caps *qemucaps.Capabilities) Catalogue {
	if last := lastCatalogue.Load(); last != nil && last.of == caps {
		return last.catalogue
	}
	c := Catalogue{features: SetOf(qemucaps.HostFeatures)}
	for _, acc := range caps.Accelerators {
		maps.Copy(c.features, SetOf(acc.Features))
	}
	for _, d := range caps.CPUDefinitions() {
		m := CPUModel{d, modelVendor(d.Name), SetOf(d.Features)}
		c.models = append(c.models, m)
		maps.Copy(c.features, m.features)
	}
	lastCatalogue.Store(&struct {
		of        *qemucaps.Capabilities
		catalogue Catalogue
	}{caps, c})
	return c
}

// model finds a processor model by name; an unknown name is an error.
func (c Catalogue) model(name string) (CPUModel, error) {
	i := slices.IndexFunc(c.models, func(m CPUModel) bool { return m.Name == name })
	if i < 0 {
		return CPUModel{}, rpc.WithCode(rpc.CodeInternal, fault.New(fault.Invalid, fault.Config, "unknown CPU model %s", name))
	}
	return c.models[i], nil
}

// modelFeatures are the features of a model; none for an empty name.
func (c Catalogue) modelFeatures(name string) (FeatureSet, error) {
	if name == "" {
		return FeatureSet{}, nil
	}
	m, err := c.model(name)
	return maps.Clone(m.features), err
}

// named gives the features that a description names with one of some policies.
func (c Catalogue) named(p Processor, policies ...string) (FeatureSet, error) {
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

// All gives the features of a described processor.
func (c Catalogue) All(p Processor) (FeatureSet, error) {
	set, err := c.modelFeatures(p.model)
	if err != nil {
		return nil, err
	}
	more, err := c.named(p, "require", "force")
	if err != nil {
		return nil, err
	}
	less, err := c.named(p, "disable", "forbid")
	maps.Copy(set, more)
	remove(set, less)
	return set, err
}

// remove deletes the features of some from set.
func remove(set, some FeatureSet) {
	maps.DeleteFunc(set, func(name string, _ bool) bool { return some[name] })
}

// Lacking gives, sorted, the features that are in all but not in some.
func Lacking(all, some FeatureSet) []string {
	var names []string
	for name := range all {
		if !some[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Known is a processor with a complete list of its features.
type Known struct {
	Vendor    string // libvirt's word, or ""
	Signature qemucaps.Signature
	Features  FeatureSet
}

// isSold says whether the processor's signature is known to be a model's.
func (k Known) isSold(m CPUModel) bool {
	return k.Signature != qemucaps.Signature{} && m.IsSoldAs(k.Signature)
}

// HostProcessorOf is the host's processor, from CPUID, and from KVM where CPUID is silent.
func HostProcessorOf(facts *resources.Facts, caps *qemucaps.Capabilities) Known {
	cpu, c := facts.CPU, CatalogueOf(caps)
	k := Known{
		Vendor: CPUVendors[cpu.Vendor], Signature: qemucaps.Signature{Family: cpu.Family, Model: cpu.ModelNumber, Stepping: cpu.Stepping},
		Features: SetOf(qemucaps.CPUIDFeatures(cpuidWords(cpu.CPUID))),
	}
	if kvm := caps.Accelerator("kvm"); kvm.Usable {
		maps.Copy(k.Features, SetOf(qemucaps.FeaturesInMSRs(kvm.HostModel.Features)))
	}
	maps.DeleteFunc(k.Features, func(name string, _ bool) bool { return !c.features[name] })
	if k.Vendor == "Intel" && hasBrokenTSX(k.Signature) {
		remove(k.Features, FeatureSet{"hle": true, "rtm": true})
	}
	return k
}

// hasBrokenTSX: the maker took transactions back from these by microcode, and some
// firmware still shows them.
func hasBrokenTSX(s qemucaps.Signature) bool {
	return s.Family == 6 && (slices.Contains([]int{60, 69, 70}, s.Model) || s.Model == 63 && s.Stepping < 4)
}

func cpuidWords(leaves []kernel.CPUIDLeaf) map[qemucaps.CPUIDWord]uint32 {
	words := map[qemucaps.CPUIDWord]uint32{}
	for _, l := range leaves {
		for register, value := range map[string]uint32{"eax": l.EAX, "ebx": l.EBX, "ecx": l.ECX, "edx": l.EDX} {
			words[qemucaps.CPUIDWord{Leaf: l.Leaf, Part: l.Part, Register: register}] = value
		}
	}
	return words
}

// hypervisorProcessorOf is the best that an accelerator gives a guest.
func hypervisorProcessorOf(acc qemucaps.Accelerator) Known {
	m := acc.HostModel
	return Known{Vendor: CPUVendors[m.Vendor], Signature: m.Signature, Features: SetOf(m.Features)}
}

// HostModel gives the meaning of host-model with an accelerator: a model, the features
// that the accelerator adds, and the features that it lacks. There is none without a
// model that runs. QEMU's model may differ from the model that clients know. The lists
// cover the difference, so a guest started from them gets the same features as one with host-model.
func (c Catalogue) HostModel(acc qemucaps.Accelerator) (m CPUModel, require, disable []string, found bool) {
	m, err := c.model(acc.HostModel.Base)
	given := hypervisorProcessorOf(acc).Features
	more, less := SetOf(acc.HostModel.Added), SetOf(acc.HostModel.Removed)
	for _, name := range Lacking(given, m.features) {
		more[name] = true
	}
	for _, name := range Lacking(m.features, given) {
		less[name] = true
	}
	return m, Lacking(more, nil), Lacking(less, nil), err == nil
}

// Nearest finds the model that describes a processor best. A host has all features of
// its model; features of a guest's model may be taken away. A model with the processor's
// signature comes first, then the model with the shortest list of changes. Among equals,
// a preferred model wins.
func (c Catalogue) Nearest(p Known, ofHost bool, preferred []string) (CPUModel, bool) {
	var best CPUModel
	bestCost, bestLess, found := 0, 0, false
	for _, m := range c.models {
		missing := len(Lacking(m.features, p.Features))
		if m.vendor != "unknown" && p.Vendor != "" && m.vendor != p.Vendor || ofHost && missing > 0 {
			continue
		}
		isPreferred := slices.Contains(preferred, m.Name)
		if isPreferred && len(preferred) == 1 {
			return m, true
		}
		less := costOfLess(missing)
		cost := len(Lacking(p.Features, m.features)) + missing/2 + less
		if found {
			mine, bests := p.isSold(m), p.isSold(best)
			better := cost < bestCost || cost == bestCost && (less < bestLess || isPreferred && less == bestLess)
			if bests && !mine || bests == mine && !better {
				continue
			}
		}
		best, bestCost, bestLess, found = m, cost, less, true
	}
	return best, found
}

// costOfLess is the cost of a model with so many features that the processor lacks:
// half of them, and more for each. So a lesser model with a longer list of features is
// preferred. libvirt counts the same way.
func costOfLess(missing int) int {
	n := (missing + 1) / 2
	return n * (n + 3) / 2
}
