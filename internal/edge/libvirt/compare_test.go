package libvirt

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// haswellEP is a number under which Haswell is sold, and not QEMU's.
var haswellEP = qemucaps.Signature{Family: 6, Model: 63, Stepping: 2}

// aHost is one that has all that Haswell has, and vmx.
var aHost = known{vendor: "Intel", features: setOf([]string{"avx", "avx2", "hle", "pclmulqdq", "sse", "vmx"})}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want int32
		why  string
	}{
		{hostCPU("<model>Haswell</model><vendor>Intel</vendor>" + features("vmx")), cpuIdentical, ""},
		{hostCPU("<model>Haswell</model>"), cpuSuperset, ""},
		{"<cpu><arch>i686</arch><model>kvm64</model></cpu>", cpuSuperset, ""},
		{"<cpu><arch>aarch64</arch><model>kvm64</model></cpu>", cpuIncompatible, "aarch64"},
		{hostCPU("<model>Broadwell</model>"), cpuIncompatible, "required features: rtm"},
		{hostCPU("<model>kvm64</model><feature name='svm' policy='forbid'/>"), cpuIncompatible, "svm"}, // a host's are all required
		{"<cpu><model>kvm64</model></cpu>", cpuSuperset, ""},
		{"<cpu match='minimum'><model>kvm64</model></cpu>", cpuSuperset, ""},
		{"<cpu match='exact'><model>kvm64</model></cpu>", cpuSuperset, ""},
		{"<cpu match='strict'><model>kvm64</model></cpu>", cpuIncompatible, "extra features: avx, avx2, hle, pclmuldq, vmx"},
		{"<cpu match='strict'><model>Haswell</model>" + features("vmx") + "</cpu>", cpuIdentical, ""},
		{"<cpu><model>kvm64</model><vendor>AMD</vendor></cpu>", cpuIncompatible, "vendor AMD"},
		{"<cpu><model>kvm64</model><vendor>Intel</vendor></cpu>", cpuSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='require' name='svm'/></cpu>", cpuIncompatible, "required features: svm"},
		{"<cpu><model>Haswell</model><feature policy='force' name='svm'/></cpu>", cpuSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='optional' name='svm'/></cpu>", cpuSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='optional' name='vmx'/></cpu>", cpuIdentical, ""},
		{"<cpu><model>Haswell</model><feature policy='disable' name='vmx'/></cpu>", cpuIdentical, ""},
		{"<cpu><model>Broadwell</model><feature policy='disable' name='rtm'/></cpu>", cpuSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='forbid' name='svm'/></cpu>", cpuSuperset, ""},
		{"<cpu><model>Haswell</model><feature policy='forbid' name='vmx'/></cpu>", cpuIncompatible, "forbidden features: vmx"},
		{"<cpu mode='host-passthrough'/>", cpuSuperset, ""},
		{"<cpu mode='host-model'/>", cpuSuperset, ""},
		{"<cpu/>", cpuSuperset, ""},
	} {
		ret, err := processors.compareDocument(aHost, c.doc, 0)
		if err != nil || ret.Result != c.want {
			t.Errorf("%s compares as %v, %v; want %d", c.doc, ret, err, c.want)
		}
		ret, err = processors.compareDocument(aHost, c.doc, compareFail)
		switch {
		case c.want != cpuIncompatible && (err != nil || ret.Result != c.want):
			t.Errorf("%s is to be compatible, and is %v, %v", c.doc, ret, err)
		case c.want == cpuIncompatible && (err == nil || netError(err).Code != int32(codeCPUIncompatible) || !strings.Contains(err.Error(), c.why)):
			t.Errorf("%s is to be compatible, and is not because of %v", c.doc, err)
		}
	}
	if _, err := processors.compareDocument(known{}, "<cpu/>", compareFail); err == nil || netError(err).Code != int32(codeCPUIncompatible) {
		t.Errorf("an unknown host: %v", err)
	}
}

// Documents that describe no processor are refused with the codes that libvirt has
// for them.
func TestCompare_BadDocuments(t *testing.T) {
	for _, c := range []struct {
		doc   string
		flags uint32
		code  code
	}{
		{"", 0, codeXMLDetail},
		{"<cpu>", 0, codeXMLDetail},
		{"<domain><cpu/></domain>", 0, codeXML},
		{"<cpu><model>z80</model></cpu>", 0, codeInternal},
		{"<cpu><model>kvm64</model><feature name='fast'/></cpu>", 0, codeInternal},
		{"<cpu><model>kvm64</model><feature name='avx' policy='sometimes'/></cpu>", 0, codeConfigUnsupported},
		{"<cpu><model>kvm64</model><feature/></cpu>", 0, codeXML},
		{"<cpu><model>kvm64</model>" + features("avx", "avx") + "</cpu>", 0, codeXML},
		{"<cpu>" + features("avx") + "</cpu>", 0, codeXML},
		{"<cpu><vendor>Intel</vendor></cpu>", 0, codeXML},
		{"<cpu match='mostly'><model>kvm64</model></cpu>", 0, codeXML},
		{"<cpu mode='fast'/>", 0, codeConfigUnsupported},
		{"<cpu migratable='on'><model>kvm64</model></cpu>", 0, codeConfigUnsupported},
		{"<cpu><model fallback='perhaps'>kvm64</model></cpu>", 0, codeConfigUnsupported},
		{"<cpu><model vendor_id='short'>kvm64</model></cpu>", 0, codeXML},
		{"<cpu><model>kvm64</model><topology sockets='0' cores='1' threads='1'/></cpu>", 0, codeXML},
		{"<cpu><arch>z80</arch><model>kvm64</model></cpu>", 0, codeConfigUnsupported},
		{"<cpu><arch>x86_64</arch></cpu>", 0, codeXML},
		{"<cpu match='exact'><arch>x86_64</arch><model>kvm64</model></cpu>", 0, codeXML},
		{"<cpu mode='custom'><arch>x86_64</arch><model>kvm64</model></cpu>", 0, codeConfigUnsupported},
		{"<cpu><model>kvm64</model><wheels/></cpu>", compareValidate, codeXMLSchema},
		{"<cpu colour='red'><model>kvm64</model></cpu>", compareValidate, codeXMLSchema},
		{"<cpu", compareValidate, codeXMLDetail},
	} {
		_, err := processors.compareDocument(aHost, c.doc, c.flags)
		if err == nil {
			t.Errorf("%s is compared", c.doc)
		} else if told := netError(err); told.Code != int32(c.code) || told.Domain != int32(fromCPU) {
			t.Errorf("%s is refused with %d/%d: %v", c.doc, told.Code, told.Domain, err)
		}
	}
	if _, err := processors.compareDocument(aHost, hostCPU("<model>kvm64</model><wheels/>"), 0); err != nil {
		t.Errorf("an unknown element, not validated: %v", err)
	}
}

// A host is at least what its model is; one with its signature comes first.
func TestNearest_OfAHost(t *testing.T) {
	all := setOf([]string{"avx", "avx2", "hle", "pclmulqdq", "rtm", "sse"})
	for _, c := range []struct {
		name string
		p    known
		want string
	}{
		{"by its features", known{vendor: "Intel", features: all}, "Broadwell"},
		{"by its signature", known{vendor: "Intel", signature: haswellEP, features: all}, "Haswell"},
		{"not by its signature where it lacks a feature", known{vendor: "Intel", signature: haswellEP, features: setOf([]string{"avx", "pclmulqdq", "sse"})}, "SandyBridge"},
		{"none of another vendor", known{vendor: "AMD", features: all}, "kvm64"},
	} {
		if m, ok := processors.nearest(c.p, true, nil); !ok || m.Name != c.want {
			t.Errorf("%s: %s, %v", c.name, m.Name, ok)
		}
	}
	if m, ok := processors.nearest(known{vendor: "Intel"}, true, nil); ok {
		t.Errorf("a host without features is %s", m.Name)
	}
}
