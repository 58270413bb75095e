package qemuprobe

import (
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// recordedCPUs are the CPU part of the capabilities of QEMU 7.2 under emulation.
func recordedCPUs(t *testing.T) *qemucaps.Capabilities {
	t.Helper()
	tcg := qemucaps.Accelerator{Name: "tcg", Usable: true}
	if err := recorded(t).FillCPUs(&tcg); err != nil {
		t.Fatal(err)
	}
	return &qemucaps.Capabilities{Arch: "x86_64", Accelerators: []qemucaps.Accelerator{tcg}}
}

func TestCPUDefinitions_Libvirt(t *testing.T) {
	definitions := recordedCPUs(t).CPUDefinitions()
	find := func(name string) qemucaps.CPUDefinition {
		i := slices.IndexFunc(definitions, func(d qemucaps.CPUDefinition) bool { return d.Name == name })
		if i < 0 {
			t.Fatalf("there is no %s", name)
		}
		return definitions[i]
	}
	for name, want := range map[string]string{
		"kvm64":          "sse2 nx lm -hypervisor -vme -svm",
		"qemu64":         "svm -hypervisor -vme",
		"Nehalem":        "sse4.2 popcnt -aes -vme",
		"Haswell":        "avx2 rtm movbe -f16c -rdrand -abm -arat",
		"Skylake-Server": "avx512f mpx vme -pku -clflushopt",
		"EPYC":           "svm vme sse4a -monitor -npt -topoext",
		"athlon":         "3dnow vme -mca",
	} {
		features := find(name).Features
		if !slices.IsSorted(features) {
			t.Errorf("the features of %s are not sorted: %q", name, features)
		}
		for feature := range strings.FieldsSeq(want) {
			if absent := strings.TrimPrefix(feature, "-"); slices.Contains(features, absent) == (absent != feature) {
				t.Errorf("%s: %s, and it has %q", name, feature, features)
			}
		}
	}
	if !slices.IsSortedFunc(definitions, func(a, b qemucaps.CPUDefinition) int { return len(b.Features) - len(a.Features) }) {
		t.Error("the models with the most features are not first")
	}
	for _, special := range []string{"max", "host", "base", "Haswell-v1"} {
		if slices.ContainsFunc(definitions, func(d qemucaps.CPUDefinition) bool { return d.Name == special }) {
			t.Errorf("%s is a model that descriptions name", special)
		}
	}
}

// Every feature of QEMU's models can be detected on a processor.
func TestCPUIDFeatures_CoverQEMUsModels(t *testing.T) {
	words := make(map[qemucaps.CPUIDWord]uint32)
	for _, base := range []uint32{0, 0x8000_0000} {
		for leaf := base; leaf < base+0x40; leaf++ {
			for part := range uint32(3) {
				for _, register := range []string{"eax", "ebx", "ecx", "edx"} {
					words[qemucaps.CPUIDWord{Leaf: leaf, Part: part, Register: register}] = ^uint32(0)
				}
			}
		}
	}
	known := qemucaps.CPUIDFeatures(words)
	for _, d := range recordedCPUs(t).CPUDefinitions() {
		inMSRs := qemucaps.FeaturesInMSRs(d.Features)
		for _, feature := range d.Features {
			if !slices.Contains(known, feature) && !slices.Contains(inMSRs, feature) {
				t.Errorf("no bit is known for %s of %s", feature, d.Name)
			}
		}
	}
}
