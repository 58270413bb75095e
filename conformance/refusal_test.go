package conformance

import (
	"strings"
	"testing"
)

// The test attaches devices that the host lacks to a running guest. The error names the missing object, and the
// guest does not change.
func TestAttach_MissingOnHost(t *testing.T) {
	needs(t)
	d := start(t)
	_, xml := shape{name: "lonely"}.xml(t, d)
	d.virsh(t, "create", "--paused", d.file(t, "lonely.xml", xml))
	before := d.virsh(t, "dumpxml", "lonely")
	for _, c := range []struct{ name, xml, says string }{
		{"disk", "<disk type='file' device='disk'><source file='/nowhere/disk'/><target dev='vdx' bus='virtio'/></disk>", "/nowhere/disk"},
		{"interface", "<interface type='network'><source network='nowhere'/><model type='virtio'/></interface>", "nowhere"},
		{"bridge", "<interface type='bridge'><source bridge='nowhere0'/><model type='virtio'/></interface>", "nowhere0"},
		{"host device", "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0xffff' bus='0xff' slot='0x1f' function='0x7'/></source></hostdev>", "ffff:ff:1f.7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			said := d.mustFail(t, "attach-device", "lonely", d.file(t, "device.xml", c.xml))
			if !strings.Contains(said, c.says) || strings.Contains(said, "internal error") {
				t.Errorf("the refusal is %q", said)
			}
		})
	}
	if after := d.virsh(t, "dumpxml", "lonely"); after != before {
		t.Errorf("the guest was\n%s\nand is\n%s", before, after)
	}
	d.virsh(t, "destroy", "lonely")
}

// The daemon refuses such a start before it runs QEMU.
func TestStart_HostDeviceMissing(t *testing.T) {
	needs(t)
	d := start(t)
	g := d.define(t, shape{name: "greedy", devices: "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0xffff' bus='0xff' slot='0x1f' function='0x7'/></source></hostdev>"})
	contains(t, "the refusal", d.mustFail(t, "start", g.name), "ffff:ff:1f.7", "no such PCI device")
}
