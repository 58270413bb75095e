package domainxml

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

func bootOf(attr, os, features string) string {
	return "<domain type='qemu'><name>a</name><memory>1024</memory><os" + attr + "><type arch='x86_64' machine='q35'>hvm</type>" + os + "</os><features><acpi/>" + features + "</features></domain>"
}

func TestFirmware_RefusedParts(t *testing.T) {
	const auto, flash = " firmware='efi'", "<loader readonly='yes' type='pflash'>/code.fd</loader>"
	for name, c := range map[string]struct {
		attr, os string
		kind     fault.Kind
		says     string
	}{
		"a feature without enabled":  {auto, "<firmware><feature name='secure-boot'/></firmware>", fault.Invalid, "os/firmware/feature: attribute enabled is missing"},
		"variables without a loader": {"", "<nvram>/vars.fd</nvram>", fault.Invalid, "os/loader needs the path"},
		"variables in a directory":   {"", flash + "<nvram type='dir'><source dir='/d'/></nvram>", fault.Unsupported, `os/nvram/@type "dir"`},
		"variables on another host":  {"", flash + "<nvram type='network'><source protocol='iscsi' name='x'/></nvram>", fault.Unsupported, `os/nvram/@type "network"`},
		"variables without a source": {"", flash + "<nvram type='file'/>", fault.Invalid, "os/nvram: the source is missing"},
	} {
		err := submit(bootOf(c.attr, c.os, ""))
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFirmware_TheLastWordOfAFeatureCounts(t *testing.T) {
	d, err := Parse(bootOf(" firmware='efi'", "<firmware><feature enabled='yes' name='secure-boot'/><feature enabled='no' name='secure-boot'/></firmware>", ""), Options{Host: testHost()})
	if err != nil {
		t.Fatal(err)
	}
	if f := d.OS.FirmwareFeatures; len(f) != 1 || f[0].Enabled != device.Off {
		t.Errorf("features are %+v", f)
	}
}

// TestFirmware_Stored: a guest that an earlier version took is not lost for a word that is refused now.
func TestFirmware_Stored(t *testing.T) {
	for _, os := range []string{"<firmware><feature name='secure-boot'/></firmware>", "<loader readonly='yes' type='pflash'/>", "<nvram>/vars.fd</nvram>"} {
		if _, err := Parse(bootOf("", os, ""), Options{}); err != nil {
			t.Errorf("%s: %v", os, err)
		}
	}
}
