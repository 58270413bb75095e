package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The test defines documents exactly as other clients write them.
// Promise: G12
func TestDefine_XMLOfOtherClients(t *testing.T) {
	needs(t)
	d := start(t)
	if err := os.WriteFile(filepath.Join(d.dir, "disk.raw"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func(*testing.T, *daemon){
		"encodings": foreignEncodings, "terraform": foreignTerraform, "ovirt": foreignOVirt, "defaults": foreignDefaults, "firmware": foreignFirmware,
	} {
		t.Run(name, func(t *testing.T) { try(t, d) })
	}
}

// foreignGuest is a small guest with additional elements in os and devices.
func foreignGuest(name, os, devices string) string {
	return "<domain type='qemu'><name>" + name + "</name><memory unit='MiB'>64</memory><os><type arch='x86_64' machine='q35'>hvm</type>" + os +
		"</os><features><acpi/></features><devices>" + devices + "</devices></domain>"
}

// startsAs defines a guest, starts it, and returns its live XML.
func (d *daemon) startsAs(t *testing.T, name, doc string) string {
	t.Helper()
	d.virsh(t, "define", d.file(t, name+".xml", doc))
	d.virsh(t, "start", name, "--paused")
	xml := d.virsh(t, "dumpxml", name)
	d.virsh(t, "destroy", name)
	d.virsh(t, "undefine", name, "--nvram")
	return xml
}

// foreignEncodings declares an encoding in documents of every kind, as XML writers of Python, Java and .NET do.
func foreignEncodings(t *testing.T, d *daemon) {
	const latin1 = "<?xml version='1.0' encoding='ISO-8859-1'?>\n"
	d.virsh(t, "define", d.file(t, "enc.xml", latin1+strings.Replace(foreignGuest("enc", "", ""), "<memory", "<title>caf\xe9</title><memory", 1)))
	contains(t, "the title of a guest whose document is in latin-1", d.virsh(t, "desc", "--title", "enc"), "caf\u00e9")
	for _, encoding := range []string{"us-ascii", "UTF-16", "utf8"} {
		say := func(text string) string { return "<?xml version=\"1.0\" encoding=\"" + encoding + "\"?>" + text }
		file := func(text string) string { return d.file(t, "said.xml", say(text)) }
		d.virsh(t, "define", file(foreignGuest("enc2", "", "")))
		d.virsh(t, "attach-device", "enc2", file("<interface type='user'><mac address='52:54:00:11:22:33'/></interface>"), "--config")
		d.virsh(t, "update-device", "enc2", file("<interface type='user'><mac address='52:54:00:11:22:33'/><link state='down'/></interface>"), "--config")
		d.virsh(t, "detach-device", "enc2", file("<interface type='user'><mac address='52:54:00:11:22:33'/></interface>"), "--config")
		d.virsh(t, "undefine", "enc2")
		d.virsh(t, "net-define", file("<network><name>enc</name><bridge name='enc0'/><ip address='10.9.8.1' netmask='255.255.255.0'><dhcp><range start='10.9.8.2' end='10.9.8.9'/></dhcp></ip></network>"))
		d.virsh(t, "net-update", "enc", "add-last", "ip-dhcp-host", file("<host mac='52:54:00:00:00:04' ip='10.9.8.3'/>"), "--config")
		d.virsh(t, "net-undefine", "enc")
		d.virsh(t, "pool-define", file("<pool type='dir'><name>enc</name><target><path>"+d.dir+"</path></target></pool>"))
		d.virsh(t, "pool-start", "enc")
		d.virsh(t, "vol-create", "enc", file("<volume><name>enc.raw</name><capacity>4096</capacity></volume>"))
		d.virsh(t, "vol-delete", "enc.raw", "enc")
		d.virsh(t, "pool-destroy", "enc")
		d.virsh(t, "pool-undefine", "enc")
		d.virsh(t, "secret-define", file("<secret><uuid>0e7f1a11-0000-4000-8000-00000000e0c0</uuid><usage type='volume'><volume>/enc</volume></usage></secret>"))
		d.virsh(t, "secret-undefine", "0e7f1a11-0000-4000-8000-00000000e0c0")
	}
	said := d.mustFail(t, "define", d.file(t, "said.xml", "<?xml version='1.0' encoding='klingon'?>"+foreignGuest("enc2", "", "")))
	contains(t, "the refusal of an encoding", said, `no encoding is called "klingon"`)
	if strings.Contains(said, "CharsetReader") {
		t.Errorf("a user is told of Go: %s", said)
	}
	d.virsh(t, "undefine", "enc")
}

// foreignTerraform replays the calls of the provider dmacvicar/libvirt 0.8.3 for a guest with two consoles.
func foreignTerraform(t *testing.T, d *daemon) {
	xml := d.startsAs(t, "tf", strings.ReplaceAll(`<domain type="qemu">
  <name>tf</name>
  <memory unit="MiB">64</memory>
  <vcpu placement="static">1</vcpu>
  <os><type arch="x86_64" machine="pc-i440fx-7.2">hvm</type><boot dev="hd"></boot></os>
  <features><pae></pae><acpi></acpi><apic></apic></features>
  <cpu></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type="file" device="disk"><driver name="qemu" type="raw"></driver><source file="@/disk.raw"></source><target dev="sda" bus="scsi"></target><wwn>05abcd4bcd2f1b5e</wwn></disk>
    <disk type="file" device="cdrom"><driver name="qemu" type="raw"></driver><target dev="hdd" bus="ide"></target><serial>cloudinit</serial></disk>
    <controller type="scsi" index="0" model="virtio-scsi"></controller>
    <interface type="user"><mac address="52:54:00:B2:2F:86"></mac><model type="virtio"></model></interface>
    <console><target type="serial" port="0"></target></console>
    <console><target type="virtio" port="1"></target></console>
    <channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"></target></channel>
    <graphics type="vnc" autoport="yes"><listen type="address" address="127.0.0.1"></listen></graphics>
    <video><model type="cirrus"></model></video>
    <rng model="virtio"><backend model="random">/dev/urandom</backend></rng>
  </devices>
</domain>`, "@", d.dir))
	if n := strings.Count(xml, "<console type='pty'"); n != 2 {
		t.Errorf("%d consoles are terminals:\n%s", n, xml)
	}
	contains(t, "the serial port", xml, "<serial type='pty'>", "<target type='virtio' port='1'/>")
}

// foreignOVirt is a guest as oVirt's engine writes it. Only elements that need oVirt's storage or certificates are
// left out.
func foreignOVirt(t *testing.T, d *daemon) {
	text, err := os.ReadFile("testdata/ovirt.xml")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.ReplaceAll(string(text), "@DIR@", d.dir)
	xml := d.startsAs(t, "ovirt", doc)
	contains(t, "the guest", xml, "<ovirt-vm:clusterVersion>4.7<", "<entry name='family'>oVirt</entry>", "startupPolicy='optional'")
	for part, says := range map[string]string{
		"<filterref filter='vdsm-no-mac-spoofing'/></interface>":                                                            "devices/interface/filterref",
		"</interface><lease><lockspace>x</lockspace><key>x</key><target path='/x'/></lease>":                                "devices/lease",
		"</interface><graphics type='spice' autoport='yes' tlsPort='-1'/>":                                                  "display",
		"</interface><hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='x'/></source></hostdev>": "devices/hostdev",
	} {
		said := d.mustFail(t, "define", d.file(t, "ovirt-more.xml", strings.Replace(doc, "</interface>", part, 1)))
		contains(t, "the refusal of a part", said, "unsupported configuration", says)
	}
}

// foreignDefaults leaves out, or spells differently, values for which libvirt allows that.
func foreignDefaults(t *testing.T, d *daemon) {
	const disk = "<disk type='file' device='disk'><source file='@/disk.raw'/><target dev='xvda' bus='virtio'/></disk>"
	for _, c := range []struct{ name, devices, want string }{
		{"interface", "<interface/>", "<interface type='user'>"},
		{"interface-of-a-network", "<interface><source network='none'/></interface>", "<interface type='user'>"},
		{"serial", "<serial/>", "<serial type='pty'>"},
		{"channel", "<channel><target type='virtio' name='a'/></channel>", "<channel type='pty'>"},
		{"parallel", "<parallel/>", "<parallel type='pty'>"},
		{"mac", "<interface type='user'><mac address='0:0:6c:28:30:d5'/></interface>", "<mac address='00:00:6c:28:30:d5'/>"},
		{"disk", strings.Replace(disk, "@", d.dir, 1), "<target dev='xvda' bus='virtio'/>"},
		{"vhost", "<interface type='bridge'><source bridge='@'/><model type='virtio'/><driver name='vhost'/></interface>", "<driver name='vhost'/>"},
		{strings.Repeat("n", 247), "<tpm><backend type='emulator'/></tpm>", "<tpm model='tpm-tis'>"},
	} {
		if strings.Contains(c.devices, "bridge='@'") {
			d.virsh(t, "net-define", d.file(t, "net.xml", "<network><name>vh</name><bridge name='lodgevh0'/><ip address='10.9.6.1' netmask='255.255.255.0'/></network>"))
			d.virsh(t, "net-start", "vh")
			c.devices = strings.Replace(c.devices, "'@'", "'lodgevh0'", 1)
		}
		contains(t, c.name, d.startsAs(t, c.name, foreignGuest(c.name, "", c.devices)), c.want)
	}
	d.virsh(t, "net-destroy", "vh")
	contains(t, "a name that is too long", d.mustFail(t, "define", d.file(t, "long.xml", foreignGuest(strings.Repeat("n", 248), "", ""))), "at most 247")

	d.virsh(t, "define", d.file(t, "two.xml", foreignGuest("two", "", "<graphics type='vnc'><listen type='address' address='127.0.0.1'/><listen type='address' address='127.0.0.2'/></graphics>")))
	contains(t, "the start of a display that listens twice", d.mustFail(t, "start", "two"), "devices/graphics/listen")
	d.virsh(t, "undefine", "two")
}

// foreignFirmware names a UEFI image and no file for its variables, in the spellings of several clients.
func foreignFirmware(t *testing.T, d *daemon) {
	const code, vars = "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"
	if _, err := os.Stat(code); err != nil {
		t.Skip("needs OVMF, which is not installed here")
	}
	const loader = "<loader readonly='yes' type='pflash'>" + code + "</loader>"
	for name, boot := range map[string]string{
		"path": loader, "empty": loader + "<nvram/>", "template": loader + "<nvram template='" + vars + "'/>",
		"source": loader + "<nvram type='file'><source file='" + d.dir + "/vars.fd'/></nvram>",
	} {
		xml := d.startsAs(t, "uefi-"+name, foreignGuest("uefi-"+name, boot, ""))
		contains(t, "the firmware's variables by "+name, xml, "<nvram template='"+vars+"'", "_VARS_4M.fd")
		if name == "source" {
			contains(t, "the source of variables", xml, "<source file='"+d.dir+"/vars.fd'/>")
		}
	}
	said := d.mustFail(t, "define", d.file(t, "qcow2.xml", foreignGuest("uefi", strings.Replace(loader, " type", " format='qcow2' type", 1), "")))
	contains(t, "the refusal of another format", said, "os/loader/@format", "is raw, not qcow2")
	said = d.mustFail(t, "define", d.file(t, "qcow2.xml", strings.Replace(foreignGuest("uefi", "<loader format='qcow2'/>", ""), "<os>", "<os firmware='efi'>", 1)))
	contains(t, "the refusal of a format that is not installed", said, "os/loader/@format")
}
