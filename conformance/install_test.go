package conformance

import (
	"os"
	"strings"
	"testing"
)

// virtInstall returns the command line of virt-install for a guest that does not need to boot a system.
func (d *daemon) virtInstall(t *testing.T, name string, args ...string) []string {
	t.Helper()
	all := append([]string{
		"HOME=" + d.dir, "virt-install", "--connect", d.uri(), "--name", name, "--memory", "96", "--osinfo", "generic", "--noautoconsole", "--wait", "0",
	}, args...)
	if d.kind(t) == "qemu" {
		all = append(all, "--virt-type", "qemu", "--xml", "./features/tcg/tb-cache=32", "--xml", "./features/tcg/tb-cache/@unit=MiB")
	}
	return all
}

// The test starts guests with virt-install's options for devices and boot methods, as its manual shows them.
// Promise: G1
func TestVirtInstall_Options(t *testing.T) {
	onlyInClients(t)
	needs(t, "virt-install")
	d := start(t)
	d.lan(t, "lan", 1)
	d.output(t, "mkdir", d.dir+"/pool")
	d.virsh(t, "pool-create-as", "pool", "dir", "--target", d.dir+"/pool")
	iso := d.blank(t, "some.iso", 1<<20)
	for _, c := range []struct {
		name, args string
		pieces     []string
		needs      string // a file
	}{
		{name: "cdrom", args: "--cdrom " + iso + " --disk none --network none", pieces: []string{"device='cdrom'", "<on_reboot>destroy</on_reboot>"}},
		{name: "pxe", args: "--pxe --disk size=0.01,pool=pool --network network=lan", pieces: []string{"<boot dev='network'/>", d.dir + "/pool/pxe.qcow2"}},
		{name: "uefi", args: "--boot uefi --import --disk none --network none", pieces: []string{"type='pflash'"}, needs: "/usr/share/OVMF/OVMF_CODE_4M.fd"},
		{name: "tpm", args: "--tpm emulator --machine q35 --import --disk none --network none", pieces: []string{"<tpm model='tpm-crb'>"}, needs: "/usr/bin/swtpm"},
		{
			name: "desktop", args: "--import --disk none --network none --graphics spice --sound ich9 --channel spicevmc --redirdev usb,type=spicevmc --input tablet",
			pieces: []string{"<graphics type='spice'", "<sound model='ich9'>", "com.redhat.spice.0", "<redirdev"},
		},
		{name: "vnc", args: "--import --disk none --network none --graphics vnc,listen=none --video virtio", pieces: []string{"<listen type='none'/>"}},
		{
			name: "ports", args: "--import --disk none --network none --graphics none --serial file,source.path=/dev/null --channel unix,target.type=virtio,target.name=org.x.0",
			pieces: []string{"name='org.x.0'", "<serial type='file'>"},
		},
		{
			name: "devices", args: "--import --disk none --network user --graphics none --watchdog i6300esb,action=poweroff --rng /dev/urandom --panic default --iothreads 2 --cpu max --vcpus 1,maxvcpus=4",
			pieces: []string{"<watchdog model='i6300esb' action='poweroff'>", "<panic", "<iothreads>2", "<vcpu placement='static' current='1'>4"},
		},
		{
			name: "words", args: "--import --disk none --network none --graphics none --metadata title=abc,description=def --clock offset=localtime --boot network,hd,menu=on",
			pieces: []string{"<title>abc</title>", "<clock offset='localtime'", "<bootmenu enable='yes'/>"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat(c.needs); c.needs != "" && err != nil {
				t.Skipf("needs %s, which is not installed here", c.needs)
			}
			said := d.output(t, "env", d.virtInstall(t, c.name, strings.Fields(c.args)...)...)
			if strings.Contains(said, "Failed to get expanded CPU") {
				t.Errorf("virt-install misses an answer:\n%s", said)
			}
			contains(t, "the XML", d.virsh(t, "dumpxml", c.name), c.pieces...)
			d.virsh(t, "destroy", c.name)
		})
	}
}

// The test plugs, changes and unplugs devices in a running guest and its definition at once, as virt-xml and
// virt-manager do.
func TestVirtXML_RunningGuest(t *testing.T) {
	onlyInClients(t)
	needs(t, "virt-xml")
	d := start(t)
	d.lan(t, "lan", 1)
	disk := d.blank(t, "more", 1<<20)
	g := d.boot(t, shape{name: "changing"})
	edit := func(args string) {
		t.Helper()
		d.output(t, "env", append([]string{"HOME=" + d.dir, "virt-xml", "--connect", d.uri(), "changing"}, strings.Fields(args)...)...)
	}
	const mac = "52:54:00:99:88:77"
	both := func(piece string, want bool) {
		t.Helper()
		for _, xml := range []string{d.virsh(t, "dumpxml", "changing"), d.virsh(t, "dumpxml", "--inactive", "changing")} {
			if strings.Contains(xml, piece) != want {
				t.Errorf("that the XML has %s should be %v:\n%s", piece, want, xml)
			}
		}
	}
	edit("--add-device --disk " + disk + ",format=raw,bus=virtio,target.dev=vdx --update")
	both("<source file='"+disk+"'", true)
	eventually(t, "the guest sees the disk", func() bool { return strings.Contains(g.shell(t, "ls /sys/block"), "vda") })
	edit("--remove-device --disk target=vdx --update")
	both("<source file='"+disk+"'", false)
	edit("--add-device --network network=lan,model=virtio,mac=" + mac + " --update")
	both(mac, true)
	edit("--edit mac=" + mac + " --network link.state=down --update")
	both("<link state='down'/>", true)
	edit("--remove-device --network mac=" + mac + " --update")
	both(mac, false)
	edit("--edit --boot menu=on")
	if contains(t, "the definition", d.virsh(t, "dumpxml", "--inactive", "changing"), "<bootmenu enable='yes'/>"); strings.Contains(d.virsh(t, "dumpxml", "changing"), "<bootmenu") {
		t.Error("a change of the definition shows in the running guest")
	}
}
