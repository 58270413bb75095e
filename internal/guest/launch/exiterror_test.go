package launch

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// TestLastWords_NameWhatTheDefinitionHas: of what QEMU says a user reads which device it is about, and
// no option of a command line that he never wrote.
func TestLastWords_NameWhatTheDefinitionHas(t *testing.T) {
	def := &domain.Definition{Devices: device.Set{
		Serials: []*device.Char{{Info: device.Info{Alias: "serial0"}, Role: device.Serial}},
		NICs:    []*device.NIC{{Info: device.Info{Alias: "net0"}, MAC: "52:54:00:00:00:01"}},
		Disks:   []*device.Disk{{Info: device.Info{Alias: "virtio-disk0"}, Target: "vda", Source: &device.DiskSource{File: "/a", Index: 3}}},
		RNGs:    []*device.RNG{{Info: device.Info{Alias: "rng0"}}},
	}}
	const at = "2026-11-27T05:32:38.207818Z qemu-system-x86_64: "
	for words, want := range map[string]string{
		at + `-device {"driver":"e1000e","netdev":"hostnet0","id":"net0","romfile":"/a: b"}: failed to find romfile "/a: b"`: `interface 52:54:00:00:00:01: failed to find romfile "/a: b"`,
		at + `-chardev socket,id=charserial0,host=h,port=1: address resolution failed for h:1: Name or service not known`:    "serial serial0: address resolution failed for h:1: Name or service not known",
		at + `-netdev {"type":"user","id":"hostnet0"}: no`:                                                                   "interface 52:54:00:00:00:01: no",
		at + `-object {"qom-type":"rng-random","id":"objrng0"}: no`:                                                          "rng rng0: no",
		at + `-blockdev {"node-name":"libvirt-3-format","driver":"qcow2"}: Image is corrupt`:                                 "disk vda: Image is corrupt",
		at + `-device {"driver":"x","id":"of-its-user"}: no`:                                                                 "of-its-user: no",
		at + "one thing\n" + at + "another\n":                                                                                "one thing; another",
		"qemu: could not load PC BIOS '/x'":                                                                                  "could not load PC BIOS '/x'",
		"it wrote nothing (exit status 1)":                                                                                   "it wrote nothing (exit status 1)",
	} {
		if got := plainMessage(def, words); got != want {
			t.Errorf("%s\nis told as %q, want %q", words, got, want)
		}
	}
	l := &Launch{Guest: &machine.Guest{Reg: &machine.Registry{Config: machine.Config{DataDir: "/data"}}}, Instance: &machine.Instance{RunRecord: machine.RunRecord{UUID: "u"}, Definition: def}}
	for words, want := range map[string]string{
		at + "can't apply global qemu64-x86_64-cpu.nosuch=on: Property 'qemu64-x86_64-cpu.nosuch' not found": `this QEMU has no CPU feature "nosuch"; leave <feature name='nosuch'/> out`,
		at + "tpm-emulator: TPM result for CMD_INIT: 0x101 operation failed": "the TPM's state in /data/tpm/u cannot be read (tpm-emulator: TPM result for CMD_INIT: 0x101 operation failed): " +
			"restore a copy of it, or begin with a new TPM: undefine the domain with --tpm and define it again",
	} {
		if got := l.explainExit(words); got.Error() != want || fault.Of(got) == fault.Internal {
			t.Errorf("%s\nis told as %v", words, got)
		}
	}
}
