package libvirt

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// haswellEP is a signature under which Haswell was sold, other than that of QEMU's model.
var haswellEP = qemucaps.Signature{Family: 6, Model: 63, Stepping: 2}

// aHost is a host CPU with the features of Haswell, and vmx.
var aHost = hostcalls.KnownCPU{Vendor: "Intel", Features: hostcalls.FeatureSetOf([]string{"avx", "avx2", "hle", "pclmulqdq", "sse", "vmx"})}

func TestCompare_Results(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want int32
		why  string
	}{
		{hostCPU("<model>Haswell</model><vendor>Intel</vendor>" + features("vmx")), hostcalls.CPUIdentical, ""},
		{hostCPU("<model>Haswell</model>"), hostcalls.CPUSuperset, ""},
		{"<cpu><arch>i686</arch><model>kvm64</model></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu><arch>aarch64</arch><model>kvm64</model></cpu>", hostcalls.CPUIncompatible, "aarch64"},
		{hostCPU("<model>Broadwell</model>"), hostcalls.CPUIncompatible, "required features: rtm"},
		{hostCPU("<model>kvm64</model><feature name='svm' policy='forbid'/>"), hostcalls.CPUIncompatible, "svm"}, // a host's are all required
		{"<cpu><model>kvm64</model></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu match='minimum'><model>kvm64</model></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu match='exact'><model>kvm64</model></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu match='strict'><model>kvm64</model></cpu>", hostcalls.CPUIncompatible, "extra features: avx, avx2, hle, pclmuldq, vmx"},
		{"<cpu match='strict'><model>Haswell</model>" + features("vmx") + "</cpu>", hostcalls.CPUIdentical, ""},
		{"<cpu><model>kvm64</model><vendor>AMD</vendor></cpu>", hostcalls.CPUIncompatible, "vendor AMD"},
		{"<cpu><model>kvm64</model><vendor>Intel</vendor></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='require' name='svm'/></cpu>", hostcalls.CPUIncompatible, "required features: svm"},
		{"<cpu><model>Haswell</model><feature policy='force' name='svm'/></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='optional' name='svm'/></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='optional' name='vmx'/></cpu>", hostcalls.CPUIdentical, ""},
		{"<cpu><model>Haswell</model><feature policy='disable' name='vmx'/></cpu>", hostcalls.CPUIdentical, ""},
		{"<cpu><model>Broadwell</model><feature policy='disable' name='rtm'/></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='forbid' name='svm'/></cpu>", hostcalls.CPUSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='forbid' name='vmx'/></cpu>", hostcalls.CPUIncompatible, "forbidden features: vmx"},
		{"<cpu mode='host-passthrough'/>", hostcalls.CPUSuperset, ""},
		{"<cpu mode='host-model'/>", hostcalls.CPUSuperset, ""},
		{"<cpu/>", hostcalls.CPUSuperset, ""},
	} {
		ret, err := processors.CompareDocument(aHost, c.doc, 0)
		if err != nil || ret.Result != c.want {
			t.Errorf("%s compares as %v, %v; want %d", c.doc, ret, err, c.want)
		}
		ret, err = processors.CompareDocument(aHost, c.doc, hostcalls.CompareFail)
		switch {
		case c.want != hostcalls.CPUIncompatible && (err != nil || ret.Result != c.want):
			t.Errorf("%s is to be compatible, and is %v, %v", c.doc, ret, err)
		case c.want == hostcalls.CPUIncompatible && (err == nil || rpc.NetError(err).Code != int32(rpc.CodeCPUIncompatible) || !strings.Contains(err.Error(), c.why)):
			t.Errorf("%s is to be compatible, and is not because of %v", c.doc, err)
		}
	}
	if _, err := processors.CompareDocument(hostcalls.KnownCPU{}, "<cpu/>", hostcalls.CompareFail); err == nil || rpc.NetError(err).Code != int32(rpc.CodeCPUIncompatible) {
		t.Errorf("an unknown host: %v", err)
	}
}

// Documents that do not describe a CPU are refused with libvirt's codes.
func TestCompare_BadDocuments(t *testing.T) {
	for _, c := range []struct {
		doc   string
		flags uint32
		code  rpc.Code
	}{
		{"", 0, rpc.CodeXMLDetail},
		{"<cpu>", 0, rpc.CodeXMLDetail},
		{"<domain><cpu/></domain>", 0, rpc.CodeXML},
		{"<cpu><model>z80</model></cpu>", 0, rpc.CodeInternal},
		{"<cpu><model>kvm64</model><feature name='fast'/></cpu>", 0, rpc.CodeInternal},
		{"<cpu><model>kvm64</model><feature name='avx' policy='sometimes'/></cpu>", 0, rpc.CodeConfigUnsupported},
		{"<cpu><model>kvm64</model><feature/></cpu>", 0, rpc.CodeXML},
		{"<cpu><model>kvm64</model>" + features("avx", "avx") + "</cpu>", 0, rpc.CodeXML},
		{"<cpu>" + features("avx") + "</cpu>", 0, rpc.CodeXML},
		{"<cpu><vendor>Intel</vendor></cpu>", 0, rpc.CodeXML},
		{"<cpu match='mostly'><model>kvm64</model></cpu>", 0, rpc.CodeXML},
		{"<cpu mode='fast'/>", 0, rpc.CodeConfigUnsupported},
		{"<cpu migratable='on'><model>kvm64</model></cpu>", 0, rpc.CodeConfigUnsupported},
		{"<cpu><model fallback='perhaps'>kvm64</model></cpu>", 0, rpc.CodeConfigUnsupported},
		{"<cpu><model vendor_id='short'>kvm64</model></cpu>", 0, rpc.CodeXML},
		{"<cpu><model>kvm64</model><topology sockets='0' cores='1' threads='1'/></cpu>", 0, rpc.CodeXML},
		{"<cpu><arch>z80</arch><model>kvm64</model></cpu>", 0, rpc.CodeConfigUnsupported},
		{"<cpu><arch>x86_64</arch></cpu>", 0, rpc.CodeXML},
		{"<cpu match='exact'><arch>x86_64</arch><model>kvm64</model></cpu>", 0, rpc.CodeXML},
		{"<cpu mode='custom'><arch>x86_64</arch><model>kvm64</model></cpu>", 0, rpc.CodeConfigUnsupported},
		{"<cpu><model>kvm64</model><wheels/></cpu>", hostcalls.CompareValidate, rpc.CodeXMLSchema},
		{"<cpu colour='red'><model>kvm64</model></cpu>", hostcalls.CompareValidate, rpc.CodeXMLSchema},
		{"<cpu", hostcalls.CompareValidate, rpc.CodeXMLDetail},
	} {
		_, err := processors.CompareDocument(aHost, c.doc, c.flags)
		if err == nil {
			t.Errorf("%s is compared", c.doc)
		} else if got := rpc.NetError(err); got.Code != int32(c.code) || got.Domain != int32(rpc.FromCPU) {
			t.Errorf("%s is refused with %d/%d: %v", c.doc, got.Code, got.Domain, err)
		}
	}
	if _, err := processors.CompareDocument(aHost, hostCPU("<model>kvm64</model><wheels/>"), 0); err != nil {
		t.Errorf("an unknown element, not validated: %v", err)
	}
}

// A host has all features of its nearest model. A model with its signature comes first.
func TestNearest_Host(t *testing.T) {
	all := hostcalls.FeatureSetOf([]string{"avx", "avx2", "hle", "pclmulqdq", "rtm", "sse"})
	for _, c := range []struct {
		name string
		p    hostcalls.KnownCPU
		want string
	}{
		{"by its features", hostcalls.KnownCPU{Vendor: "Intel", Features: all}, "Broadwell"},
		{"by its signature", hostcalls.KnownCPU{Vendor: "Intel", Signature: haswellEP, Features: all}, "Haswell"},
		{"not by its signature where it lacks a feature", hostcalls.KnownCPU{Vendor: "Intel", Signature: haswellEP, Features: hostcalls.FeatureSetOf([]string{"avx", "pclmulqdq", "sse"})}, "SandyBridge"},
		{"none of another vendor", hostcalls.KnownCPU{Vendor: "AMD", Features: all}, "kvm64"},
	} {
		if m, ok := processors.Nearest(c.p, true, nil); !ok || m.Name != c.want {
			t.Errorf("%s: %s, %v", c.name, m.Name, ok)
		}
	}
	if m, ok := processors.Nearest(hostcalls.KnownCPU{Vendor: "Intel"}, true, nil); ok {
		t.Errorf("a host without features is %s", m.Name)
	}
}
