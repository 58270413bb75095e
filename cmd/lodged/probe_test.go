package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

func TestProbeSaysWhyAnAcceleratorDoesNotWork(t *testing.T) {
	var out bytes.Buffer
	err := showCapabilities(&out, &qemucaps.Capabilities{
		Binary: qemucaps.Identity{Path: "/usr/bin/qemu"}, Arch: "x86_64", Version: qemucaps.Version{Major: 7, Minor: 2, Micro: 22},
		Machines: []qemucaps.Machine{{Name: "pc-q35-7.2", Alias: "q35", MaxCPUs: 288}, {Name: "pc-q35-7.1"}},
		Accelerators: []qemucaps.Accelerator{
			{Name: "kvm", Reason: "the guest did not run"},
			{Name: "tcg", Usable: true, Reason: "a trial guest ran", HostModel: qemucaps.HostModel{Base: "EPYC"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"/usr/bin/qemu: QEMU 7.2.22, x86_64\n",
		"  kvm: does not work: the guest did not run\n",
		"  tcg: works: a trial guest ran\n    processor models: 0; -cpu host: does not work; nearest to the host: EPYC\n",
		"  q35 = pc-q35-7.2, up to 288 processors\n  and 2 in all\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
