package qemu

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// The host's caches can only be passed through to host processors: QEMU has no such
// option for other models.
func TestCPUCache_HostProcessorOnly(t *testing.T) {
	for _, c := range []struct {
		cpu  domain.CPU
		want string
	}{
		{domain.CPU{Mode: "custom", Cache: &domain.CPUCache{Mode: "disable", Level: -1}}, "l3-cache=off"},
		{domain.CPU{Mode: "custom", Cache: &domain.CPUCache{Mode: "emulate", Level: 3}}, "l3-cache=on"},
		{domain.CPU{Mode: "maximum", Cache: &domain.CPUCache{Mode: "disable", Level: -1}}, "l3-cache=off,host-cache-info=off"},
		{domain.CPU{Mode: "maximum", Cache: &domain.CPUCache{Mode: "passthrough", Level: -1}}, "host-cache-info=on,l3-cache=off"},
	} {
		var words optionList
		if err := cacheWords(&words, &c.cpu); err != nil || words.String() != c.want {
			t.Errorf("%s, cache %s: %q, %v", c.cpu.Mode, c.cpu.Cache.Mode, words, err)
		}
	}
}
