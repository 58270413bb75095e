package libvirt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// processors are CPU models as QEMU expands them, with its names of the features.
var processors = hostcalls.CatalogueOf(&qemucaps.Capabilities{Accelerators: []qemucaps.Accelerator{{
	Name: "tcg", Usable: true,
	Models: []qemucaps.CPUModel{
		{Name: "Broadwell", Usable: true, Features: []string{"avx", "avx2", "hle", "kvm-asyncpf", "pclmulqdq", "rtm", "sse"}},
		{Name: "EPYC", Usable: true, Features: []string{"avx", "avx2", "sha-ni", "sse"}},
		{Name: "Haswell", Usable: true, Features: []string{"avx", "avx2", "hle", "hypervisor", "pclmulqdq", "sse"}},
		{Name: "Nehalem", Usable: true, Features: []string{"sse"}},
		{Name: "SandyBridge", Features: []string{"avx", "pclmulqdq", "sse"}},
		{Name: "kvm64", Usable: true, Features: []string{"sse"}},
		{Name: "Haswell-v1", Usable: true},
	},
	Features: []string{
		"avx", "avx2", "hle", "hypervisor", "invtsc", "kvm-asyncpf", "pclmulqdq", "rtm", "sha-ni", "sse", "svm", "vmx",
	},
}}})

// hostCPU describes a host's CPU as capabilities do.
func hostCPU(inner string) string { return "<cpu><arch>x86_64</arch>" + inner + "</cpu>" }

func features(names ...string) (text string) {
	for _, name := range names {
		text += "<feature name='" + name + "'/>"
	}
	return text
}

// printedCPU returns a CPU as a definition has it: the model, and features with + for
// require or - for disable.
func printedCPU(model, fallback, vendor string, features ...string) string {
	text := "<cpu mode='custom' match='exact'>\n  <model fallback='" + fallback + "'>" + model + "</model>\n"
	if vendor != "" {
		text += "  <vendor>" + vendor + "</vendor>\n"
	}
	for _, feature := range features {
		policy := map[byte]string{'+': "require", '-': "disable"}[feature[0]]
		text += "  <feature policy='" + policy + "' name='" + feature[1:] + "'/>\n"
	}
	return text + "</cpu>\n"
}

func TestBaseline_HostCPUs(t *testing.T) {
	haswell := hostCPU("<model>Haswell</model><vendor>Intel</vendor>" + features("vmx", "invtsc", "osxsave"))
	for _, c := range []struct {
		name  string
		flags uint32
		cpus  []string
		want  string
	}{
		{"one stays what it is, without what no guest is given", 0, []string{haswell}, printedCPU("Haswell", "forbid", "Intel", "+invtsc", "+vmx")},
		{"what cannot move", hostcalls.BaselineMigratable, []string{haswell}, printedCPU("Haswell", "forbid", "Intel", "+vmx")},
		{
			"written out", hostcalls.BaselineExpand,
			[]string{haswell},
			printedCPU("Haswell", "forbid", "Intel", "+avx", "+avx2", "+hle", "+invtsc", "+pclmuldq", "+sse", "+vmx"),
		},
		{"the lesser of two", 0, []string{haswell, hostCPU("<model>Broadwell</model><vendor>Intel</vendor>")}, printedCPU("Haswell", "allow", "Intel")},
		{"no vendor where one has none", 0, []string{haswell, hostCPU("<model>Broadwell</model>")}, printedCPU("Haswell", "allow", "")},
		{"twice the same", 0, []string{haswell, haswell}, printedCPU("Haswell", "forbid", "Intel", "+invtsc", "+vmx")},
		{"neither of two", 0, []string{hostCPU("<model>EPYC</model>"), hostCPU("<model>kvm64</model>" + features("avx"))}, printedCPU("kvm64", "allow", "", "+avx")},
		{"nobody's processor", 0, []string{hostCPU("<model>kvm64</model>")}, printedCPU("kvm64", "forbid", "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			ret, err := hostcalls.BaselineRequest{Catalogue: processors, Kind: hostcalls.HostCPU, Available: nil, Flags: c.flags}.Answer(c.cpus)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, ret.CPU); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A hypervisor's baseline accepts descriptions of guests, too, and has no feature that the
// hypervisor cannot give.
func TestBaseline_Hypervisor(t *testing.T) {
	request := hostcalls.BaselineRequest{Catalogue: processors, Kind: hostcalls.AnyCPU, Available: hostcalls.FeatureSetOf([]string{"avx", "pclmulqdq", "sse", "vmx"}), Flags: 0}
	for _, c := range []struct{ cpu, want string }{
		{
			`<cpu><model fallback='forbid'>SandyBridge</model><feature policy='require' name='vmx'/><feature policy='disable' name='avx'/></cpu>`,
			printedCPU("SandyBridge", "forbid", "", "+vmx", "-avx"),
		},
		{`<cpu><model>Haswell</model><vendor>Intel</vendor></cpu>`, printedCPU("Haswell", "forbid", "Intel", "-avx2", "-hle")},
		{hostCPU("<model>kvm64</model>" + features("vmx", "svm")), printedCPU("kvm64", "forbid", "", "+vmx")},
	} {
		ret, err := request.Answer([]string{c.cpu})
		if err != nil {
			t.Errorf("%s: %v", c.cpu, err)
			continue
		}
		if diff := cmp.Diff(c.want, ret.CPU); diff != "" {
			t.Errorf("%s: %s", c.cpu, diff)
		}
	}
}

func TestBaseline_Refused(t *testing.T) {
	for _, c := range []struct {
		kind hostcalls.CPUKind
		cpus []string
		code rpc.Code
		says string
	}{
		{hostcalls.HostCPU, nil, rpc.CodeInvalidArg, "no CPUs"},
		{hostcalls.HostCPU, []string{hostCPU("<model>z80</model>")}, rpc.CodeInternal, "unknown CPU model z80"},
		{hostcalls.HostCPU, []string{hostCPU("<model>kvm64</model>" + features("fast"))}, rpc.CodeInternal, "unknown CPU feature fast"},
		{hostcalls.HostCPU, []string{"<cpu><model>kvm64</model></cpu>"}, rpc.CodeXML, "missing CPU architecture"},
		{hostcalls.HostCPU, []string{"<cpu><arch>ppc64</arch><model>POWER8</model></cpu>"}, rpc.CodeUnsupported, "ppc64"},
		{hostcalls.HostCPU, []string{hostCPU("<model>EPYC</model><vendor>Acme</vendor>")}, rpc.CodeOperationFailed, "unknown CPU vendor Acme"},
		{
			hostcalls.HostCPU,
			[]string{hostCPU("<model>EPYC</model><vendor>AMD</vendor>"), hostCPU("<model>Haswell</model>")},
			rpc.CodeOperationFailed, "AMD and Intel",
		},
		{
			hostcalls.HostCPU,
			[]string{hostCPU("<model>kvm64</model>"), hostCPU("<model>Haswell</model><vendor>AMD</vendor>")},
			rpc.CodeOperationFailed, "vendor Intel of model Haswell differs from vendor AMD",
		},
		{hostcalls.AnyCPU, []string{"<cpu mode='host-passthrough'/>"}, rpc.CodeInvalidArg, "no CPU model specified at index 0"},
		{
			hostcalls.AnyCPU,
			[]string{"<cpu><model>kvm64</model><feature policy='disable' name='sse'/></cpu>"},
			rpc.CodeOperationFailed, "CPUs are incompatible",
		},
	} {
		_, err := hostcalls.BaselineRequest{Catalogue: processors, Kind: c.kind, Available: nil, Flags: 0}.Answer(c.cpus)
		if err == nil {
			t.Errorf("%q has a baseline", c.cpus)
			continue
		}
		got := rpc.NetError(err)
		if got.Code != int32(c.code) || got.Domain != int32(rpc.FromCPU) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q is refused with %d/%d: %v", c.cpus, got.Code, got.Domain, err)
		}
	}
}
