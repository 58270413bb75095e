package qemuprobe

import (
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// A definition may name a processor that does not run here, and a baseline may include
// such processors as well. So every named model has to be expanded.
func TestFillCPUs_ExpandsNamedModels(t *testing.T) {
	tcg := qemucaps.Accelerator{Name: "tcg"}
	if err := recorded(t).FillCPUs(&tcg); err != nil {
		t.Fatal(err)
	}
	for _, m := range tcg.Models {
		if m.HasStableName() != (len(m.Features) > 0) {
			t.Errorf("%s has %d features", m.Name, len(m.Features))
		}
	}
	if m, _ := tcg.Model("Skylake-Server"); m.Usable || !slices.Contains(m.Features, "avx512f") || !slices.Contains(m.Features, "sse4.1") {
		t.Errorf("Skylake-Server is usable %v and has %v", m.Usable, m.Features)
	}
	if m, _ := tcg.Model("qemu64"); slices.Contains(m.Features, "avx") {
		t.Errorf("qemu64 has %v", m.Features)
	}
}
