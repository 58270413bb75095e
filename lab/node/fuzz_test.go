package node_test

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/node"
)

// FuzzHost has a daemon tell of its host in whatever documents: there is a host, or there
// are words why not, and no frequency is below zero.
func FuzzHost(f *testing.F) {
	f.Add("<capabilities><host><cpu><arch>x86_64</arch><model>EPYC</model><vendor>AMD</vendor><counter name='tsc' frequency='2500000000' scaling='no'/><feature name='hypervisor'/></cpu></host></capabilities>",
		"<sysinfo type='smbios'><processor><entry name='family'>Xeon</entry><entry name='version'>A  Processor 3000 </entry></processor></sysinfo>")
	f.Add("<capabilities><host><cpu><signature family='6' model='85' stepping='7'/><counter name='tsc' frequency='-9223372036854775808'/></cpu></host></capabilities>", "")
	f.Fuzz(func(t *testing.T, capabilities, sysinfo string) {
		h, err := node.Host(t.Context(), daemon{capabilities, sysinfo})
		if err != nil && fault.Of(err) != fault.Failed {
			t.Fatal(err)
		}
		if err == nil && h.Processors != 12 {
			t.Fatalf("%+v", h)
		}
		if tsc := node.TSC(capabilities); tsc < 0 {
			t.Fatalf("%d kHz", tsc)
		}
	})
}
