package conformance

import (
	"strings"
	"testing"
)

// virsh define, create and attach-device all refuse such definitions, and the error says what to change.
func TestDefinition_Contradictory(t *testing.T) {
	needs(t)
	d := start(t)
	guest := func(name, top, devices string) string {
		return d.file(t, name+".xml", "<domain type='qemu'><name>"+name+"</name><memory unit='MiB'>64</memory>"+top+
			"<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>"+devices+"</devices></domain>")
	}
	const readOnly = "<disk type='file' device='disk'><source file='/nowhere'/><target dev='sda' bus='sata'/><readonly/></disk>"
	for _, c := range []struct{ name, top, devices, says string }{
		{"readonly", "", readOnly, "readonly sata disks are not supported; use bus virtio or scsi"},
		{"tpms", "", strings.Repeat("<tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>", 2), "a guest has one TPM"},
		{"auto", "<vcpu placement='auto'>1</vcpu>", "", `vcpu/@placement and numatune/memory/@placement "auto" are not built`},
		{"part", "<features><xen><e820_host state='on'/></xen></features>", "", "not supported: features/xen; leave it out"},
	} {
		for _, verb := range []string{"define", "create"} {
			contains(t, verb+" "+c.name, d.mustFail(t, verb, guest(c.name, c.top, c.devices)), c.says)
		}
	}
	contains(t, "a call that is not built", d.mustFail(t, "iface-begin"), "virsh iface-begin is not built; use the host's own network configuration")

	// A definition may be meant for another host, so the daemon refuses this only at the start.
	d.virsh(t, "define", guest("passed", "<cpu mode='host-passthrough'/>", ""))
	contains(t, "the start", d.mustFail(t, "start", "passed"), "unsupported configuration", "host-passthrough needs domain type kvm")
	contains(t, "a plug into its config", d.mustFail(t, "attach-device", "passed", d.file(t, "disk.xml", readOnly), "--config"), "readonly sata disks")
	d.virsh(t, "undefine", "passed")
}

// The guest runs on the emulator of its own architecture, which the capabilities list.
func TestStart_I686Guest(t *testing.T) {
	needs(t)
	d := start(t)
	contains(t, "capabilities", d.virsh(t, "capabilities"), "<arch name='i686'>", "<wordsize>32</wordsize>")
	d.virsh(t, "create", "--paused", d.file(t, "old.xml",
		"<domain type='qemu'><name>old</name><memory unit='MiB'>64</memory><os><type arch='i686' machine='pc'>hvm</type></os></domain>"))
	contains(t, "its definition", d.virsh(t, "dumpxml", "old"), "<emulator>/usr/bin/qemu-system-i386</emulator>", "qemu32")
	d.virsh(t, "destroy", "old")
}
