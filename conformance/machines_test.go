package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The test starts guests of many machine kinds, paused. QEMU itself must accept the command line of each
// definition, and the XML must contain libvirt's own names.
func TestStart_MachineKinds(t *testing.T) {
	needs(t)
	d := start(t)
	d.lan(t, "lan", 1)
	raw := d.blank(t, "raw", 16<<20)
	qcow := d.dir + "/qcow2"
	d.output(t, "qemu-img", "create", "-q", "-f", "qcow2", qcow, "16M")
	overlay := d.dir + "/overlay"
	d.output(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", qcow, "-F", "qcow2", overlay)
	disk := func(file, format, target, bus, more string) string {
		return fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='%s'/><source file='%s'/><target dev='%s' bus='%s'/>%s</disk>", format, file, target, bus, more)
	}
	for _, c := range []struct {
		name   string
		os     string // instead of a q35 with SeaBIOS
		more   string // beside <os>
		device string
		pieces []string
	}{
		{name: "pc", os: "<type machine='pc'>hvm</type>", device: disk(raw, "raw", "hda", "ide", "<boot order='1'/>"), pieces: []string{"machine='pc-i440fx-", "<controller type='ide' index='0'>"}},
		{name: "q35-sata", device: disk(raw, "raw", "sda", "sata", ""), pieces: []string{"machine='pc-q35-", "<controller type='sata' index='0'>"}},
		{name: "microvm", os: "<type machine='microvm'>hvm</type><kernel>/nowhere</kernel>", pieces: nil},
		{name: "scsi", device: "<controller type='scsi' model='virtio-scsi'/>" + disk(qcow, "qcow2", "sda", "scsi", ""), pieces: []string{"model='virtio-scsi'", "<address type='drive'"}},
		{name: "usb", device: disk(raw, "raw", "sda", "usb", "") + "<input type='tablet' bus='usb'/>", pieces: []string{"model='qemu-xhci'", "<address type='usb'"}},
		{name: "floppy", os: "<type machine='pc'>hvm</type>", device: "<disk type='file' device='floppy'><source file='" + raw + "'/><target dev='fda' bus='fdc'/></disk>", pieces: []string{"<controller type='fdc'"}},
		{name: "chain", device: disk(overlay, "qcow2", "vda", "virtio", ""), pieces: []string{"<source file='" + overlay + "' index='"}},
		{name: "iothread", more: "<iothreads>2</iothreads>", device: "<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none' io='native' discard='unmap' iothread='1'/><source file='" + raw + "'/><target dev='vda' bus='virtio'/></disk>", pieces: []string{"<iothreads>2</iothreads>", "iothread='1'"}},
		{name: "numa", more: "<vcpu>4</vcpu><cpu mode='custom' match='exact'><model>qemu64</model><topology sockets='2' dies='1' cores='2' threads='1'/><numa><cell id='0' cpus='0-1' memory='48' unit='MiB'/><cell id='1' cpus='2-3' memory='48' unit='MiB'/></numa></cpu>", pieces: []string{"<cell id='1' cpus='2-3' memory='49152' unit='KiB'/>"}},
		{name: "nics", device: "<interface type='user'><model type='e1000e'/></interface><interface type='network'><source network='lan'/><model type='virtio'/><driver queues='2'/></interface><interface type='bridge'><source bridge='br-lan'/><model type='e1000'/></interface>", pieces: []string{"<model type='e1000e'/>", "queues='2'", "<source bridge='br-lan'"}},
		{name: "spice", device: "<graphics type='spice' autoport='yes'/><video><model type='qxl'/></video><channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/></channel>", pieces: []string{"<graphics type='spice' port='59", "name='com.redhat.spice.0'"}},
		{name: "watchdog", device: "<watchdog model='i6300esb' action='reset'/><panic model='isa'/><rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>", pieces: []string{"<watchdog model='i6300esb' action='reset'>", "<panic model='isa'>"}},
		{name: "balloon", device: "<memballoon model='virtio' freePageReporting='on'><stats period='2'/></memballoon>", pieces: []string{"freePageReporting='on'", "<stats period='2'/>"}},
		{name: "argv", more: "", device: "", pieces: []string{"<emulator>/usr/bin/qemu-system-x86_64</emulator>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "spice" && !strings.Contains(d.virsh(t, "domcapabilities"), "<value>spice</value>") {
				t.Skip("this QEMU has no spice: Debian 13 has it in a package of its own")
			}
			if c.os == "" {
				c.os = "<type machine='q35'>hvm</type>"
			}
			if c.name == "microvm" {
				c.os = strings.ReplaceAll(c.os, "/nowhere", guestKernel(t))
			}
			xml := fmt.Sprintf("<domain type='%s'><name>%s</name><memory unit='MiB'>96</memory><os>%s</os>%s<features><acpi/>%s</features><devices>%s</devices></domain>",
				d.kind(t), c.name, c.os, c.more, d.translation(t, 32), c.device)
			d.virsh(t, "create", "--paused", d.file(t, c.name+".xml", xml))
			contains(t, "the XML", d.virsh(t, "dumpxml", c.name), c.pieces...)
			d.virsh(t, "destroy", c.name)
		})
	}
}

// TestFirmware boots guests that need more than SeaBIOS.
func TestFirmware(t *testing.T) {
	needs(t)
	if _, err := os.Stat("/usr/share/OVMF/OVMF_CODE_4M.fd"); err != nil {
		t.Skip("needs OVMF, which is not installed here")
	}
	d := start(t)
	define := func(name, os, device string) {
		t.Helper()
		d.virsh(t, "define", d.file(t, name+".xml", fmt.Sprintf(
			"<domain type='%s'><name>%s</name><memory unit='MiB'>160</memory>%s<features><acpi/>%s</features><devices>%s</devices></domain>",
			d.kind(t), name, os, d.translation(t, 64), device)))
	}
	define("uefi", "<os firmware='efi'><type machine='q35'>hvm</type></os>", "")
	d.virsh(t, "start", "uefi")
	xml := d.virsh(t, "dumpxml", "uefi")
	contains(t, "the XML of a UEFI guest", xml, "<loader readonly='yes'", "type='pflash'>/usr/share/OVMF/", "<nvram template='")
	_, rest, _ := strings.Cut(xml, "<nvram template='")
	_, rest, _ = strings.Cut(rest, "'>")
	nvram, _, _ := strings.Cut(rest, "<")
	if _, err := os.Stat(nvram); err != nil {
		t.Errorf("the guest's UEFI variables: %v", err)
	}
	d.virsh(t, "destroy", "uefi")
	d.virsh(t, "undefine", "uefi", "--nvram")
	if _, err := os.Stat(nvram); err == nil {
		t.Errorf("%s is left after undefine --nvram", nvram)
	}
}

func TestTPM(t *testing.T) {
	needs(t, "swtpm", "swtpm_setup")
	d := start(t)
	g := d.define(t, shape{name: "sealed", devices: "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"})
	d.virsh(t, "start", "sealed")
	g.waitForAgent(t)
	if version := g.shell(t, "cat /sys/class/tpm/tpm0/tpm_version_major"); version != "2" {
		t.Errorf("the guest sees a TPM of version %q", version)
	}
	d.virsh(t, "destroy", "sealed")
	for pid, words := range d.processes() {
		if strings.Contains(words, "swtpm") {
			t.Errorf("process %d is left after the guest's end: %s", pid, words)
		}
	}
	d.virsh(t, "undefine", "sealed", "--nvram")
}
