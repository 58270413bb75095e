package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
)

// The test makes the calls of clients that start guests and attach devices, and checks the answers.
// Promise: G12
func TestStart_AsClientsExpect(t *testing.T) {
	needs(t)
	image := guestimagetest.Find(t)
	d := start(t)
	needsPython(t, d)
	minimal := func(name, machine, devices string) string {
		return d.file(t, name+".xml", fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
			<os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/></features><devices>%s</devices></domain>`, name, machine, devices))
	}
	disk := func(name string) string {
		path := filepath.Join(d.dir, name)
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}

	t.Run("libguestfs connects to sockets of its own", func(t *testing.T) {
		out := d.output(t, "/usr/bin/python3", script(t, "libguestfs.py"), d.uri(), filepath.Join(d.dir, "guestfs"), image.Kernel, image.Initrd)
		contains(t, "the appliance", out, "the appliance ran")
	})

	t.Run("an optional disk is missing", func(t *testing.T) {
		d.virsh(t, "define", minimal("optional", "q35", "<disk type='file' device='disk'><source file='/nosuch.img' startupPolicy='optional'/><target dev='sda' bus='sata'/></disk>"))
		told := strings.TrimSpace(d.output(t, "/usr/bin/python3", script(t, "dropped.py"), d.uri(), "optional"))
		if told != "/nosuch.img None sata0-0-0 1" {
			t.Errorf("the event is %q", told)
		}
		if live := d.virsh(t, "dumpxml", "optional"); strings.Contains(live, "<disk") {
			t.Errorf("the running domain has the disk:\n%s", live)
		}
		contains(t, "the definition", d.virsh(t, "dumpxml", "--inactive", "optional"), "startupPolicy='optional'")
		contains(t, "the refusal", d.mustFail(t, "define", minimal("requisite", "q35",
			"<disk type='file' device='disk'><source file='/a' startupPolicy='requisite'/><target dev='sda' bus='sata'/></disk>")), "XML error", "requisite")
	})

	t.Run("a SCSI disk brings its controller", func(t *testing.T) {
		d.virsh(t, "define", minimal("scsi", "pc", ""))
		d.virsh(t, "start", "scsi")
		d.virsh(t, "attach-disk", "scsi", disk("b"), "sdb", "--targetbus", "scsi", "--live")
		d.virsh(t, "attach-disk", "scsi", disk("h"), "sdh", "--targetbus", "scsi", "--persistent")
		contains(t, "the running domain", d.virsh(t, "dumpxml", "scsi"), "<controller type='scsi' index='0' model='lsilogic'>", "<controller type='scsi' index='1' model='lsilogic'>",
			"<address type='drive' controller='0' bus='0' target='0' unit='1'/>", "<address type='drive' controller='1' bus='0' target='0' unit='0'/>")
	})

	t.Run("devices that cannot be had", func(t *testing.T) {
		d.virsh(t, "define", minimal("lacks", "q35", ""))
		d.virsh(t, "start", "lacks")
		usb := "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1234'/><product id='0xbeef'/></source></hostdev>"
		contains(t, "the refusal", d.mustFail(t, "attach-device", "lacks", d.file(t, "usb.xml", usb)), "no USB device 1234:beef")
		d.virsh(t, "define", minimal("usb", "q35", usb))
		contains(t, "the refusal", d.mustFail(t, "start", "usb"), "no USB device 1234:beef")
		contains(t, "the refusal", d.mustFail(t, "attach-interface", "lacks", "network", "nosuch"), `Network not found: no network with name "nosuch"`)
		nic := "<interface type='user'><model type='%s'/></interface>"
		contains(t, "the refusal", d.mustFail(t, "attach-device", "lacks", d.file(t, "conventional.xml", fmt.Sprintf(nic, "rtl8139"))), "pcie-to-pci-bridge", "virtio model")
		d.virsh(t, "attach-device", "lacks", d.file(t, "virtio.xml", fmt.Sprintf(nic, "virtio")))
	})

	t.Run("a live definition of another host", func(t *testing.T) {
		folder := "/var/lib/libvirt/qemu/channel/target/domain-7-moved/"
		d.virsh(t, "define", minimal("moved", "q35", "<channel type='unix'><source mode='bind' path='"+folder+"org.qemu.guest_agent.0'/><target type='virtio' name='org.qemu.guest_agent.0' state='connected'/></channel>"+
			"<graphics type='vnc' socket='/var/lib/libvirt/qemu/domain-7-moved/vnc.sock'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-7-moved/vnc.sock'/></graphics>"))
		d.virsh(t, "start", "moved")
		live := d.virsh(t, "dumpxml", "moved")
		if strings.Contains(live, "/var/lib/libvirt") {
			t.Errorf("it uses another host's sockets:\n%s", live)
		}
		d.virsh(t, "destroy", "moved")
		d.virsh(t, "undefine", "moved")
		d.virsh(t, "define", d.file(t, "again.xml", live)) // Lodge's own paths are of one run, too
		contains(t, "the definition", d.virsh(t, "dumpxml", "moved"), "<channel type='unix'>")
		d.virsh(t, "start", "moved")
	})
}
