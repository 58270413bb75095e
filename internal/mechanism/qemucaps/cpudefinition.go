package qemucaps

import (
	"slices"
	"strings"
)

// CPUDefinition is a named processor model as libvirt's clients know it, independent of
// the accelerator. The description of a processor names a model and the features that
// the processor has in addition.
type CPUDefinition struct {
	Name      string
	Signature Signature
	Features  []string // by QEMU's names, sorted
}

// IsSoldAs reports whether processors with a signature are of this model.
func (d CPUDefinition) IsSoldAs(s Signature) bool { return d.Signature.isSoldAs(d.Name, s) }

// notInModels are features that QEMU's models do not name: hypervisor, which QEMU gives
// all guests, and vme, which its emulator lacks. vmeModels have vme all the same.
var (
	notInModels = []string{"hypervisor", "vme"}
	vmeModels   = []string{
		"486", "pentium", "coreduo", "core2duo", "n270", "athlon", "IvyBridge", "Skylake", "Cascadelake", "Cooperlake", "Icelake",
		"SapphireRapids", "Snowridge", "EPYC", "Dhyana",
	}
)

// libvirtDifferences are the features of QEMU's models that libvirt's models of the same name lack, and
// those that libvirt's have in addition. Clients keep libvirt's descriptions. The first matching prefix
// counts.
var libvirtDifferences = []struct{ prefix, without, with string }{
	{"athlon", "mca", ""},
	{"core2duo", "acpi cx16 lahf-lm ss", ""},
	{"coreduo", "acpi ss", ""},
	{"n270", "acpi lahf-lm movbe ss", ""},
	{"pentium", "apic", ""},
	{"phenom", "abm cx16 lahf-lm npt pdpe1gb popcnt rdtscp sse4a", ""},
	{"Westmere", "arat pclmulqdq", ""},
	{"SandyBridge", "arat xsaveopt", ""},
	{"IvyBridge", "arat xsaveopt", ""},
	{"Haswell", "abm arat f16c rdrand xsaveopt", ""},
	{"Broadwell", "abm arat f16c rdrand xsaveopt", ""},
	{"Skylake-Client", "", "mpx"},
	{"Skylake-Server-", "pku", "mpx"},
	{"Skylake-Server", "clflushopt pku", "mpx"},
	{"Cascadelake-Server-noTSX", "arch-capabilities ibrs-all mds-no pku rdctl-no skip-l1dfl-vmentry", "mpx"},
	{"Cascadelake-Server", "pku", "mpx"},
	{"Icelake-Server", "", "mpx"},
	{"Snowridge", "monitor mpx", ""},
	{"Dhyana", "monitor npt nrip-save topoext", ""},
	{"EPYC-Rome", "monitor topoext xsaves", ""},
	{"EPYC-Milan", "monitor topoext", ""},
	{"EPYC", "monitor npt nrip-save topoext", ""},
	{"Opteron_G2", "", "rdtscp"},
	{"Opteron_G3", "monitor", ""},
	{"Opteron_G4", "npt nrip-save", ""},
	{"Opteron_G5", "npt nrip-save", ""},
}

// CPUDefinitions returns the named models, those with the most features first. The emulator describes all
// models unchanged while KVM changes some, so the emulator is preferred.
func (c *Capabilities) CPUDefinitions() []CPUDefinition {
	var definitions []CPUDefinition
	for _, accelerator := range []string{"tcg", "kvm"} {
		for _, m := range c.Accelerator(accelerator).Models {
			if m.HasStableName() && len(m.Features) > 0 {
				definitions = append(definitions, CPUDefinition{m.Name, m.Signature, libvirtFeatures(m)})
			}
		}
		if definitions != nil {
			break
		}
	}
	slices.SortStableFunc(definitions, func(a, b CPUDefinition) int { return len(b.Features) - len(a.Features) })
	return definitions
}

// libvirtFeatures returns the features of a model as libvirt describes it.
func libvirtFeatures(m CPUModel) []string {
	named := func(prefix string) bool { return strings.HasPrefix(m.Name, prefix) }
	without, with := notInModels, []string(nil)
	if slices.ContainsFunc(vmeModels, named) {
		with = append(with, "vme")
	}
	for _, r := range libvirtDifferences {
		if named(r.prefix) {
			without, with = slices.Concat(without, strings.Fields(r.without)), append(with, strings.Fields(r.with)...)
			break
		}
	}
	features := slices.DeleteFunc(slices.Clone(m.Features), func(name string) bool {
		return slices.Contains(without, name) || strings.HasPrefix(name, "kvm")
	})
	features = append(features, with...)
	slices.Sort(features)
	return slices.Compact(features)
}
