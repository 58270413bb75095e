package libvirt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/qemu"
)

// processors are models as QEMU writes them out, with its names.
var processors = qemu.Accelerator{Models: []qemu.CPUModel{
	{Name: "Broadwell", Usable: true, Features: []string{"avx", "avx2", "hle", "kvm-asyncpf", "pclmulqdq", "rtm", "sse"}},
	{Name: "EPYC", Usable: true, Features: []string{"avx", "avx2", "npt", "sse"}},
	{Name: "Haswell", Usable: true, Features: []string{"avx", "avx2", "hle", "pclmulqdq", "sse"}},
	{Name: "Nehalem", Usable: true, Features: []string{"sse"}},
	{Name: "SandyBridge", Features: []string{"avx", "pclmulqdq", "sse"}},
	{Name: "qemu64", Usable: true, Features: []string{"sse"}},
	{Name: "Haswell-v1", Usable: true},
}}

func TestBaseline(t *testing.T) {
	const haswell = `<cpu><arch>x86_64</arch><model>Haswell</model><vendor>Intel</vendor><feature name='vmx'/><feature name='invtsc'/></cpu>`
	for _, c := range []struct {
		name  string
		flags uint32
		cpus  []string
		want  []string // model, and features with + or -
	}{
		{"one stays what it is", 0, []string{haswell}, []string{"Haswell", "+invtsc", "+vmx"}},
		{"what cannot move", baselineMigratable, []string{haswell}, []string{"Haswell", "+vmx"}},
		{"written out", baselineExpand, []string{haswell}, []string{"Haswell", "+avx", "+avx2", "+hle", "+invtsc", "+pclmuldq", "+sse", "+vmx"}},
		{
			"as domain capabilities tell it", 0,
			[]string{`<cpu><model fallback='forbid'>Haswell</model><feature policy='require' name='vmx'/><feature policy='disable' name='hle'/></cpu>`},
			[]string{"Haswell", "+vmx", "-hle"},
		},
		{
			"written out without what it has not", baselineExpand,
			[]string{`<cpu><model>Haswell</model><feature policy='disable' name='hle'/></cpu>`},
			[]string{"Haswell", "+avx", "+avx2", "+pclmuldq", "+sse", "-hle"},
		},
		{"the lesser of two", 0, []string{haswell, `<cpu><model>Broadwell</model></cpu>`}, []string{"Haswell"}},
		{
			"neither of two", 0,
			[]string{`<cpu><model>Broadwell</model><feature policy='disable' name='rtm'/></cpu>`, `<cpu><model>Haswell</model><feature name='rtm'/></cpu>`},
			[]string{"Haswell"},
		},
		{
			"none that does not run here", 0,
			[]string{`<cpu><model>Broadwell</model><feature policy='disable' name='avx2'/><feature policy='disable' name='hle'/></cpu>`, haswell},
			[]string{"Haswell", "-avx2", "-hle"},
		},
		{"one that does not run here and was named", 0, []string{`<cpu><model>SandyBridge</model></cpu>`, haswell}, []string{"SandyBridge"}},
		{"nobody's processor", 0, []string{`<cpu><model>qemu64</model></cpu>`}, []string{"qemu64"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ret, err := baseline(processors, c.cpus, c.flags)
			if err != nil {
				t.Fatal(err)
			}
			want := "<cpu mode='custom' match='exact'>\n  <model fallback='forbid'>" + c.want[0] + "</model>\n"
			if c.want[0] != "qemu64" {
				want += "  <vendor>Intel</vendor>\n"
			}
			for _, feature := range c.want[1:] {
				policy := map[byte]string{'+': "require", '-': "disable"}[feature[0]]
				want += "  <feature policy='" + policy + "' name='" + feature[1:] + "'/>\n"
			}
			if diff := cmp.Diff(want+"</cpu>\n", ret.CPU); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNoBaseline(t *testing.T) {
	for _, c := range []struct {
		cpus []string
		kind fault.Kind
		says string
	}{
		{nil, fault.Invalid, "no processors"},
		{[]string{"<cpu>"}, fault.Invalid, ""},
		{[]string{"<domain/>"}, fault.Invalid, "<domain>"},
		{[]string{"<cpu/>"}, fault.Invalid, "<model>"},
		{[]string{"<cpu><model>z80</model></cpu>"}, fault.Unsupported, "unknown CPU model z80"},
		{[]string{"<cpu><model>EPYC</model></cpu>", "<cpu><model>Haswell</model></cpu>"}, fault.Failed, "AMD and Intel"},
		{[]string{"<cpu><model>Haswell</model><feature name='x' policy='sometimes'/></cpu>"}, fault.Invalid, "sometimes"},
	} {
		_, err := baseline(processors, c.cpus, 0)
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q gives %v", c.cpus, err)
		}
	}
}
