package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// The test defines guests with devices that easily get a wrong address. The addresses must be those that
// libvirt chooses, and QEMU must start with them.
// Promise: G9
func TestAddresses_GuestsStart(t *testing.T) {
	needs(t)
	d := start(t)
	disk := func(target, bus string) string {
		return fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='%s' bus='%s'/></disk>",
			d.blank(t, target+".raw", 1<<20), target, bus)
	}
	nic := "<interface type='user'><model type='virtio'/></interface>"
	channel := "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/><address type='virtio-serial' controller='0' bus='0' port='0'/></channel>"
	console := "<console type='pty'><target type='virtio'/></console>"
	for _, c := range []struct {
		name, machine, devices string
		pieces                 []string
	}{
		{
			"lsilogic", "pc", disk("sdh", "scsi"),
			[]string{"<address type='drive' controller='1' bus='0' target='0' unit='0'/>", "<controller type='scsi' index='1' model='lsilogic'>"},
		},
		{
			"crowd", "pc", strings.Repeat(nic, 29) + "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>",
			[]string{"<controller type='pci' index='1' model='pci-bridge'>", "<address type='pci' domain='0x0000' bus='0x01' slot='0x01' function='0x0'/>"},
		},
		{
			"agent", "q35", channel + console + console,
			[]string{"<address type='virtio-serial' controller='0' bus='0' port='1'/>"},
		},
		{
			"companions", "q35", "<controller type='usb' index='0' model='ich9-uhci1'><master startport='0'/></controller>" +
				"<controller type='usb' index='0' model='ich9-ehci1'/><input type='tablet' bus='usb'/>",
			[]string{"<address type='pci' domain='0x0000' bus='0x00' slot='0x1d' function='0x7'/>"},
		},
		{
			"root", "q35", "<controller type='pci' index='0' model='pcie-root'><alias name='ua-root'/></controller>" + nic,
			[]string{"<alias name='ua-root'/>"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.virsh(t, "define", d.file(t, c.name+".xml", fmt.Sprintf("<domain type='qemu'><name>%s</name><memory unit='MiB'>32</memory>"+
				"<os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>16</tb-cache></tcg></features>"+
				"<devices>%s</devices></domain>", c.name, c.machine, c.devices)))
			contains(t, "the definition", d.virsh(t, "dumpxml", "--inactive", c.name), c.pieces...)
			d.virsh(t, "start", c.name)
			contains(t, "the running guest", d.virsh(t, "dumpxml", c.name), c.pieces...)
			d.virsh(t, "destroy", c.name)
			d.virsh(t, "undefine", c.name)
		})
	}
	t.Run("disks in order", func(t *testing.T) {
		d.virsh(t, "define", d.file(t, "ordered.xml", "<domain type='qemu'><name>ordered</name><memory unit='MiB'>32</memory>"+
			"<os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>16</tb-cache></tcg></features>"+
			"<devices>"+disk("vdc", "virtio")+disk("sda", "sata")+disk("vdb", "virtio")+"</devices></domain>"))
		d.virsh(t, "start", "ordered")
		d.virsh(t, "attach-disk", "ordered", d.blank(t, "vda.raw", 1<<20), "vda", "--targetbus", "virtio", "--live", "--config")
		for _, which := range [][]string{{"domblklist", "ordered"}, {"domblklist", "ordered", "--inactive"}} {
			var targets []string
			for line := range strings.Lines(d.virsh(t, which...)) {
				if words := strings.Fields(line); len(words) == 2 && strings.HasPrefix(words[1], "/") {
					targets = append(targets, words[0])
				}
			}
			if got := strings.Join(targets, " "); got != "vda vdb vdc sda" {
				t.Errorf("%v: %s", which, got)
			}
		}
		d.virsh(t, "destroy", "ordered")
		d.virsh(t, "undefine", "ordered")
	})
}
