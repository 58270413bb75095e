package savestate

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// The longest names that libvirt allows leave room for the suffixes of file names.
func TestFileStem_LongNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"web", strings.Repeat("x", 200), strings.Repeat("x", 201), strings.Repeat("x", 247), strings.Repeat("x", 246) + "y",
		strings.Repeat("\u00e9", 123), "x" + strings.Repeat("\u65e5", 82),
	} {
		stem := machine.FileStem(name)
		if len(stem+provision.TPMLog+".log.0") > 255 || len(stem+coreTime+coreSuffix+".partial") > 255 {
			t.Errorf("files of a name of %d bytes have names of %d", len(name), len(stem))
		}
		if !utf8.ValidString(stem) || len(name) <= machine.LongName != (stem == name) || len(name) > machine.LongName && len(stem) <= machine.LongName {
			t.Errorf("a name of %d bytes gives %q", len(name), stem)
		}
		if other, is := seen[stem]; is {
			t.Errorf("%q and %q have the same files", other, name)
		}
		seen[stem] = name
	}
}
