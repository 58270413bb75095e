package qemu

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A definition may name a processor that does not run here, and a baseline is
// made of such as well: every named model has to be written out.
func TestModelsAreWrittenOut(t *testing.T) {
	tcg := Accelerator{Name: "tcg"}
	if err := recorded(t).fillCPUs(&tcg); err != nil {
		t.Fatal(err)
	}
	for _, m := range tcg.Models {
		if lasting(m) != (len(m.Features) > 0) {
			t.Errorf("%s has %d features", m.Name, len(m.Features))
		}
	}
	if m, _ := tcg.Model("Skylake-Server"); m.Usable || !has(m.Features, "avx512f") || !has(m.Features, "sse4.1") {
		t.Errorf("Skylake-Server is usable %v and has %v", m.Usable, m.Features)
	}
	if m, _ := tcg.Model("qemu64"); has(m.Features, "avx") {
		t.Errorf("qemu64 has %v", m.Features)
	}
}

// The host's caches are a matter of processors that are the host's: other models do not
// know the word.
func TestCPUCache_NamesTheHostsOnlyForItsProcessor(t *testing.T) {
	for _, c := range []struct {
		cpu  domain.CPU
		want string
	}{
		{domain.CPU{Mode: "custom", Cache: &domain.CPUCache{Mode: "disable", Level: -1}}, "l3-cache=off"},
		{domain.CPU{Mode: "custom", Cache: &domain.CPUCache{Mode: "emulate", Level: 3}}, "l3-cache=on"},
		{domain.CPU{Mode: "maximum", Cache: &domain.CPUCache{Mode: "disable", Level: -1}}, "l3-cache=off,host-cache-info=off"},
		{domain.CPU{Mode: "maximum", Cache: &domain.CPUCache{Mode: "passthrough", Level: -1}}, "host-cache-info=on,l3-cache=off"},
	} {
		var words list
		if err := cacheWords(&words, &c.cpu); err != nil || words.String() != c.want {
			t.Errorf("%s, cache %s: %q, %v", c.cpu.Mode, c.cpu.Cache.Mode, words, err)
		}
	}
}
