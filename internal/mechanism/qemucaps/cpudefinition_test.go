package qemucaps

import (
	"strings"
	"testing"
)

func TestCPUDefinition_IsSoldAs(t *testing.T) {
	for _, c := range []struct {
		model string
		own   Signature
		sold  Signature
		is    bool
	}{
		{"Haswell-noTSX-IBRS", Signature{6, 60, 1}, Signature{6, 63, 2}, true},
		{"Haswell", Signature{6, 60, 4}, Signature{6, 79, 1}, false},
		{"Skylake-Server", Signature{6, 85, 4}, Signature{6, 85, 4}, true},
		{"Skylake-Server", Signature{6, 85, 4}, Signature{6, 85, 7}, false},
		{"Cascadelake-Server-noTSX", Signature{6, 85, 6}, Signature{6, 85, 7}, true},
		{"Icelake-Server", Signature{6, 134, 0}, Signature{6, 106, 6}, true},
		{"EPYC-Rome", Signature{23, 49, 0}, Signature{23, 49, 3}, true}, // as QEMU has it
		{"EPYC-Rome", Signature{23, 49, 0}, Signature{23, 1, 2}, false},
	} {
		if is := (CPUDefinition{Name: c.model, Signature: c.own}).IsSoldAs(c.sold); is != c.is {
			t.Errorf("that %+v is sold as %s is %v", c.sold, c.model, is)
		}
	}
}

func TestCPUIDFeatures_Names(t *testing.T) {
	for name, words := range map[string]map[CPUIDWord]uint32{
		"fpu":                {{1, 0, "edx"}: 1},
		"pbe":                {{1, 0, "edx"}: 1 << 31},
		"sse4.2 x2apic":      {{1, 0, "ecx"}: 1<<20 | 1<<21},
		"avx512vl fsgsbase":  {{7, 0, "ebx"}: 1<<31 | 1},
		"arch-capabilities":  {{7, 0, "edx"}: 1 << 29},
		"avx-vnni":           {{7, 1, "eax"}: 1 << 4},
		"xsaves":             {{0xd, 1, "eax"}: 1 << 3},
		"syscall":            {{0x8000_0001, 0, "edx"}: 1<<11 | 1}, // its bit 0 says again that there is an FPU
		"lahf-lm perfctr-nb": {{0x8000_0001, 0, "ecx"}: 1<<24 | 1},
		"invtsc":             {{0x8000_0007, 0, "edx"}: 1 << 8},
		"amd-no-ssb":         {{0x8000_0008, 0, "ebx"}: 1 << 26},
		"npt svme-addr-chk":  {{0x8000_000a, 0, "edx"}: 1<<28 | 1},
		"":                   {{1, 0, "eax"}: 0xffff_ffff, {7, 0, "eax"}: 2}, // numbers, and no features
	} {
		if got := strings.Join(CPUIDFeatures(words), " "); got != name {
			t.Errorf("%v has features %q, want %q", words, got, name)
		}
	}
	for word, names := range cpuidNames {
		if n := len(strings.Fields(names)); n > 32 {
			t.Errorf("%+v has %d bits", word, n)
		}
	}
}
