package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// excused are the fail points that no scenario of the matrix reaches, each with its reason.
var excused = map[string]string{
	"prepare.directory": "QEMUs are prepared on a host that is quiet only, which one that runs tests is not",
	"prepare.launched":  "as prepare.directory",
	"prepare.claimed":   "as prepare.directory",
	"prepare.entered":   "as prepare.directory",
	"launch.device":     "machines that run tests have no PCI device to give away; the nested host has one",
	// Networks that a daemon adopts lack nothing on hosts that run tests.
	"network-mend.resume":      "a running network lacks something where a daemon comes without dnsmasq or a firewall only",
	"network-mend.resume.done": "as network-mend.resume",
}

// scenarios are the actions during which the matrix kills the daemon.
func scenarios() []*scenario {
	return []*scenario{
		{name: "guest", prepare: (*crash).lan1, actions: guestActions()},
		{name: "devices", prepare: (*crash).machine, actions: deviceActions()},
		{name: "live and stored", prepare: (*crash).pairs, actions: pairActions()},
		{name: "growth", prepare: (*crash).machine, actions: growthActions()},
		{name: "media", prepare: (*crash).startWithDrive, actions: mediaActions(), every: "media.open"},
		{name: "commit", needs: []string{"qemu-img", "qemu-io"}, prepare: (*crash).layered, actions: commitActions(), act: (*crash).wholeChains, refused: map[string]func(*crash) error{"pivot": endCommit(0)}},
		{name: "books", prepare: (*crash).probe, actions: secretActions(), act: (*crash).killWhileWritingFiles},
		{name: "boots", prepare: (*crash).defineMarkedGuests, act: (*crash).killDuringAutostart},
		{name: "crashes", prepare: (*crash).lan1, act: (*crash).crashes},
		{name: "saves", prepare: (*crash).machine, actions: saveActions()},
		{name: "firmware", needs: []string{"swtpm"}, prepare: (*crash).probe, actions: firmwareActions()},
		{name: "networks", prepare: func(c *crash) { c.firewall = true }, actions: networkActions()},
		{name: "storage", prepare: func(c *crash) { c.must(os.Mkdir(filepath.Join(c.dir, "pool-passing"), 0o755)) }, actions: storageActions()},
		{name: "tiles", prepare: (*crash).disks, actions: tileActions()},
		{name: "clones", prepare: (*crash).defineCloneSource, actions: cloneActions()},
	}
}

// The guest that most actions work on.
var (
	crashUUID  = libvirt.UUID{0xc4, 15: 1}
	crashGuest = libvirt.Domain{Name: "victim", UUID: crashUUID, ID: -1}
)

// rootAndPorts names each PCI controller of the guest, so that a change of its definition does not move any.
var rootAndPorts = "<controller type='pci' model='pcie-root'/>" + strings.Repeat("<controller type='pci' model='pcie-root-port'/>", 8)

// crashDoc is its definition.
func crashDoc(more string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>victim</name><uuid>%s</uuid>%s<maxMemory slots='2' unit='MiB'>512</maxMemory>
		<memory unit='MiB'>48</memory><vcpu current='1'>2</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
		<cpu><numa><cell id='0' cpus='0-1' memory='48' unit='MiB'/></numa></cpu><features><acpi/><tcg><tb-cache unit='MiB'>256</tb-cache></tcg></features>
		<cputune><shares>512</shares></cputune>
		<devices><controller type='usb' model='qemu-xhci'/>%s<controller type='sata'/>
		<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>
		<interface type='network'><mac address='52:54:00:00:c4:01'/><source network='lan'/><model type='virtio'/><link state='up'/></interface>
		<graphics type='vnc' autoport='yes' passwd='first'/><memballoon model='virtio'/></devices></domain>`, uuidText(crashUUID), more, rootAndPorts)
}

func (c *crash) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// lan1 creates a network, and makes the daemon probe QEMU.
func (c *crash) lan1() {
	c.lan(c.t, "lan", 1)
	c.probe()
}

func (c *crash) probe() {
	c.must(define(c))
	c.must(undefine(c))
}

// machine starts the guest, paused.
func (c *crash) machine() {
	c.lan1()
	c.blank(c.t, "stick.raw", 1<<20)
	c.must(define(c))
	c.must(startPaused(c))
}

func define(c *crash) error { _, err := c.l.DomainDefineXML(crashDoc("")); return err }

// undefineTPM is VIR_DOMAIN_UNDEFINE_TPM, which go-libvirt does not know.
const undefineTPM libvirt.DomainUndefineFlagsValues = 1 << 5

func undefine(c *crash) error {
	return c.l.DomainUndefineFlags(crashGuest, libvirt.DomainUndefineManagedSave|libvirt.DomainUndefineNvram|undefineTPM)
}

func startPaused(c *crash) error {
	_, err := c.l.DomainCreateWithFlags(crashGuest, uint32(libvirt.DomainStartPaused))
	return err
}

func startRunning(c *crash) error {
	_, err := c.l.DomainCreateWithFlags(crashGuest, 0)
	return err
}

func destroy(c *crash) error { return c.l.DomainDestroy(crashGuest) }

// restartGuest destroys the guest and starts it.
func restartGuest(c *crash) error {
	if err := destroy(c); err != nil {
		return err
	}
	return startPaused(c)
}

func suspend(c *crash) error { return c.l.DomainSuspend(crashGuest) }
func resume(c *crash) error  { return c.l.DomainResume(crashGuest) }

func autostart(on int32) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainSetAutostart(crashGuest, on) }
}

func guestActions() []action {
	transient := strings.ReplaceAll(crashDoc(""), "victim", "passing")
	passing := libvirt.Domain{Name: "passing", UUID: crashUUID, ID: -1}
	create := func(c *crash) error { _, err := c.l.DomainCreateXML(transient, libvirt.DomainStartPaused); return err }
	end := func(c *crash) error { return c.l.DomainDestroy(passing) }
	again := func(c *crash) error { _, err := c.l.DomainDefineXML(crashDoc("<title>again</title>")); return err }
	loosen := func(c *crash) error { return c.l.DomainUndefineFlags(crashGuest, libvirt.DomainUndefineManagedSave) }
	return []action{
		{"create a transient guest", create, end},
		{"destroy a transient guest", end, create},
		{"define", define, undefine},
		{"redefine", again, define},
		{"mark for autostart", autostart(1), autostart(0)},
		{"rename", func(c *crash) error {
			_, err := c.l.DomainRename(crashGuest, libvirt.OptString{"other"}, 0)
			return err
		}, func(c *crash) error {
			_, err := c.l.DomainRename(libvirt.Domain{Name: "other", UUID: crashUUID, ID: -1}, libvirt.OptString{"victim"}, 0)
			return err
		}},
		{"rename back", func(c *crash) error {
			_, err := c.l.DomainRename(libvirt.Domain{Name: "other", UUID: crashUUID, ID: -1}, libvirt.OptString{"victim"}, 0)
			return err
		}, func(c *crash) error {
			_, err := c.l.DomainRename(crashGuest, libvirt.OptString{"other"}, 0)
			return err
		}},
		{"start", startRunning, destroy},
		{"undefine as it runs", loosen, func(c *crash) error {
			if err := again(c); err != nil {
				return err
			}
			return autostart(1)(c)
		}},
		{"define as it runs", again, loosen},
		{"mark again", autostart(1), autostart(0)},
		{"suspend", suspend, resume},
		{"resume", resume, suspend},
		{"reset", func(c *crash) error { return c.l.DomainReset(crashGuest, 0) }, nil},
		{"ask for a reboot", func(c *crash) error { return c.l.DomainReboot(crashGuest, 0) }, nil},
		{"ask for a shutdown", func(c *crash) error { return c.l.DomainShutdown(crashGuest) }, nil}, // no system runs that would follow
		{"dump the memory", func(c *crash) error {
			return c.l.DomainCoreDump(crashGuest, filepath.Join(c.dir, "victim.core"), 0)
		}, func(c *crash) error { return os.Remove(filepath.Join(c.dir, "victim.core")) }},
		{"destroy", destroy, startRunning},
		{"undefine", undefine, func(c *crash) error {
			if err := again(c); err != nil {
				return err
			}
			return autostart(1)(c)
		}},
	}
}

// deviceActions begin with a paused guest. If the guest itself must release a device, the whole machine is
// restarted.
func deviceActions() []action {
	const live = uint32(libvirt.DomainAffectLive)
	// QEMU opens this file by its name, and closes it at once when the device is unplugged.
	port := always(`<serial type='dev'><source path='/dev/fuse'/><target type='usb-serial' port='1'/></serial>`)
	return []action{
		{"plug in a NIC", attach(secondNIC, live), restartGuest},
		{"pull the NIC's cable", setLink("down", live), setLink("up", live)},
		{"put the NIC's cable in", setLink("up", live), setLink("down", live)},
		{"add a processor", processors(2, live), func(c *crash) error {
			if err := restartGuest(c); err != nil {
				return err
			}
			if err := attach(secondNIC, live)(c); err != nil {
				return err
			}
			return setLink("up", live)(c)
		}},
		{"plug in a disk", attach(usbStickDoc, live), detach(usbStickDoc, live)},
		{"unplug a disk", detach(usbStickDoc, live), attach(usbStickDoc, live)},
		{"plug in a device of the host", attach(port, live), detach(port, live)},
		{"unplug a device of the host", detach(port, live), attach(port, live)},
		{"give a title", func(c *crash) error {
			return c.l.DomainSetMetadata(crashGuest, 1, libvirt.OptString{"named"}, nil, nil, libvirt.DomainAffectLive)
		}, func(c *crash) error {
			return c.l.DomainSetMetadata(crashGuest, 1, nil, nil, nil, libvirt.DomainAffectLive)
		}},
	}
}

// startWithDrive starts the guest, paused, with a drive that had a medium before.
func (c *crash) startWithDrive() {
	c.machine()
	for _, name := range []string{"one.iso", "two.iso"} {
		c.blank(c.t, name, 1<<20)
	}
	c.must(medium("one.iso", libvirt.DomainDeviceModifyLive|libvirt.DomainDeviceModifyConfig)(c))
	c.must(medium("", libvirt.DomainDeviceModifyLive|libvirt.DomainDeviceModifyConfig)(c))
}

// medium inserts a file into the drive, or ejects the medium if the name is empty.
func medium(file string, where libvirt.DomainDeviceModifyFlags) func(c *crash) error {
	return func(c *crash) error {
		source := ""
		if file != "" {
			source = fmt.Sprintf("<source file='%s'/>", filepath.Join(c.dir, file))
		}
		return c.l.DomainUpdateDeviceFlags(crashGuest, `<disk type='file' device='cdrom'><driver name='qemu' type='raw'/>`+source+
			`<target dev='sda' bus='sata'/></disk>`, where)
	}
}

func mediaActions() []action {
	const live, both = libvirt.DomainDeviceModifyLive, libvirt.DomainDeviceModifyLive | libvirt.DomainDeviceModifyConfig
	return []action{
		{"put a medium in for good", medium("one.iso", both), medium("", both)},
		{"exchange the medium", medium("two.iso", live), medium("one.iso", live)},
		{"take the medium out", medium("", live), medium("two.iso", live)},
	}
}

// crashImage is the file that the guest is saved to.
const crashImage = "victim.image"

func saveActions() []action {
	save := func(c *crash) error {
		return c.l.DomainSaveFlags(crashGuest, filepath.Join(c.dir, crashImage), nil, 0)
	}
	restore := func(c *crash) error { return c.l.DomainRestoreFlags(filepath.Join(c.dir, crashImage), nil, 0) }
	// A restore leaves the image, because the file belongs to the user.
	unsave := func(c *crash) error {
		if err := restore(c); err != nil {
			return err
		}
		return os.Remove(filepath.Join(c.dir, crashImage))
	}
	managed := func(c *crash) error { return c.l.DomainManagedSave(crashGuest, 0) }
	return []action{
		{"save", save, unsave},
		{"change the definition in an image", editImage("<title>again</title>", ""), editImage("", "<title>again</title>")},
		{"change it back in the image", editImage("", "<title>again</title>"), editImage("<title>again</title>", "")},
		{"restore", restore, destroy},
		{"managed save", managed, startPaused},
		{"start from the managed save", startPaused, managed},
		{"managed save again", managed, startPaused},
		{"change the definition in a managed save", editSaved("<title>again</title>", ""), editSaved("", "<title>again</title>")},
		{"change it back", editSaved("", "<title>again</title>"), editSaved("<title>again</title>", "")},
		{"remove the managed save", func(c *crash) error { return c.l.DomainManagedSaveRemove(crashGuest, 0) }, func(c *crash) error {
			if err := startPaused(c); err != nil {
				return err
			}
			return managed(c)
		}},
		{"start", startRunning, destroy},
		{"managed save of one that runs", managed, startRunning},
		{"go on from that", startRunning, managed},
	}
}

// editSaved replaces words in the definition inside a managed save image.
func editSaved(add, remove string) func(c *crash) error {
	return func(c *crash) error {
		doc, err := c.l.DomainManagedSaveGetXMLDesc(crashGuest, 0)
		if err != nil {
			return err
		}
		return c.l.DomainManagedSaveDefineXML(crashGuest, libvirt.OptString{exchanged(doc, add, remove)}, 0)
	}
}

// editImage is editSaved for an image in a file of the user's.
func editImage(add, remove string) func(c *crash) error {
	return func(c *crash) error {
		path := filepath.Join(c.dir, crashImage)
		doc, err := c.l.DomainSaveImageGetXMLDesc(path, 0)
		if err != nil {
			return err
		}
		return c.l.DomainSaveImageDefineXML(path, exchanged(doc, add, remove), 0)
	}
}

func exchanged(doc, add, remove string) string {
	doc = strings.Replace(strings.Replace(doc, remove, "", 1), "<metadata>", add+"<metadata>", 1)
	if add != "" && !strings.Contains(doc, add) {
		doc = strings.Replace(doc, "</uuid>", "</uuid>"+add, 1)
	}
	return doc
}

func firmwareActions() []action {
	doc := fmt.Sprintf(`<domain type='qemu'><name>victim</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
		<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>
		<devices><tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm></devices></domain>`, uuidText(crashUUID))
	def := func(c *crash) error { _, err := c.l.DomainDefineXML(doc); return err }
	used := func(c *crash) error { // as it is once it was started
		for _, step := range []func(*crash) error{def, startPaused, destroy} {
			if err := step(c); err != nil {
				return err
			}
		}
		return nil
	}
	return []action{
		{"define with firmware", def, undefine},
		{"start with firmware for the first time", startPaused, func(c *crash) error {
			for _, step := range []func(*crash) error{destroy, undefine, def} {
				if err := step(c); err != nil {
					return err
				}
			}
			return nil
		}},
		{"destroy with firmware", destroy, startPaused},
		{"start with firmware once more", startPaused, destroy},
		{"destroy with firmware once more", destroy, startPaused},
		{"undefine with firmware and TPM", undefine, used},
	}
}

// refused expects the daemon to refuse an action.
func refused(do func(c *crash) error) func(c *crash) error {
	return func(c *crash) error {
		err := do(c)
		if _, is := errors.AsType[libvirt.Error](err); is {
			return nil
		}
		return errors.Join(err, errors.New("it is not refused"))
	}
}

func networkActions() []action {
	doc := func(name, bridge string, n int) string {
		return fmt.Sprintf(`<network><name>%s</name><uuid>%s</uuid><forward mode='nat'/><bridge name='%s'/><mac address='52:54:00:00:c4:%02d'/>
			<ip address='10.79.%d.1' netmask='255.255.255.0'><dhcp><range start='10.79.%[5]d.10' end='10.79.%[5]d.99'/></dhcp></ip></network>`,
			name, uuidText(libvirt.UUID{0xc5, 15: byte(n)}), bridge, 80+n, n)
	}
	kept, passing := libvirt.Network{Name: "kept", UUID: libvirt.UUID{0xc5, 15: 1}}, libvirt.Network{Name: "passing", UUID: libvirt.UUID{0xc5, 15: 2}}
	def := func(c *crash) error { _, err := c.l.NetworkDefineXML(doc("kept", "br-kept", 1)); return err }
	start := func(c *crash) error { return c.l.NetworkCreate(kept) }
	stop := func(c *crash) error { return c.l.NetworkDestroy(kept) }
	auto := func(on int32) func(c *crash) error {
		return func(c *crash) error { return c.l.NetworkSetAutostart(kept, on) }
	}
	reserve := func(command libvirt.NetworkUpdateCommand) func(c *crash) error {
		return func(c *crash) error {
			return c.l.NetworkUpdateCompat(kept, command, libvirt.NetworkSectionIPDhcpHost, -1,
				`<host mac='52:54:00:00:c4:09' ip='10.79.1.50'/>`, libvirt.NetworkUpdateAffectLive|libvirt.NetworkUpdateAffectConfig)
		}
	}
	tooLong := "<srv service='x' protocol='tcp' target='" + strings.Repeat("x", 70) + "' port='1'/>" // dnsmasq takes no such name
	create := func(c *crash) error { _, err := c.l.NetworkCreateXML(doc("passing", "br-passing", 2)); return err }
	end := func(c *crash) error { return c.l.NetworkDestroy(passing) }
	return []action{
		{"define a network", def, func(c *crash) error { return c.l.NetworkUndefine(kept) }},
		{"start a network", start, stop},
		{"mark a network for autostart", auto(1), auto(0)},
		{"reserve an address", reserve(libvirt.NetworkUpdateCommandAddLast), reserve(libvirt.NetworkUpdateCommandDelete)},
		{"change a network to what dnsmasq refuses", refused(func(c *crash) error {
			return c.l.NetworkUpdateCompat(kept, libvirt.NetworkUpdateCommandAddLast, libvirt.NetworkSectionDNSSrv, -1, tooLong,
				libvirt.NetworkUpdateAffectLive|libvirt.NetworkUpdateAffectConfig)
		}), nil},
		{"create a network that dnsmasq refuses", refused(func(c *crash) error {
			_, err := c.l.NetworkCreateXML(strings.Replace(doc("passing", "br-passing", 2), "<ip", "<dns>"+tooLong+"</dns><ip", 1))
			return err
		}), nil},
		{"create a transient network", create, end},
		{"destroy a transient network", end, create},
		{"destroy a network", stop, start},
		{"undefine a network", func(c *crash) error { return c.l.NetworkUndefine(kept) }, func(c *crash) error {
			for _, step := range []func(*crash) error{def, start, reserve(libvirt.NetworkUpdateCommandAddLast), stop, auto(1)} {
				if err := step(c); err != nil {
					return err
				}
			}
			return nil
		}},
	}
}

func poolDoc(c *crash, name string, n byte) string {
	return fmt.Sprintf(`<pool type='dir'><name>%s</name><uuid>%s</uuid><target><path>%s</path></target></pool>`,
		name, uuidText(libvirt.UUID{0xc6, 15: n}), filepath.Join(c.dir, "pool-"+name))
}

func volumeDoc(name, format string, size int) string {
	return fmt.Sprintf(`<volume><name>%s</name><capacity unit='bytes'>%d</capacity><allocation>0</allocation><target><format type='%s'/></target></volume>`, name, size, format)
}

func storageActions() []action {
	pool := libvirt.StoragePool{Name: "store", UUID: libvirt.UUID{0xc6, 15: 1}}
	passing := libvirt.StoragePool{Name: "passing", UUID: libvirt.UUID{0xc6, 15: 2}}
	vol := func(c *crash, name string) libvirt.StorageVol {
		path := filepath.Join(c.dir, "pool-store", name)
		return libvirt.StorageVol{Pool: "store", Name: name, Key: path}
	}
	def := func(c *crash) error { _, err := c.l.StoragePoolDefineXML(poolDoc(c, "store", 1), 0); return err }
	start := func(c *crash) error { return c.l.StoragePoolCreate(pool, 0) }
	stop := func(c *crash) error { return c.l.StoragePoolDestroy(pool) }
	build := func(c *crash) error { return c.l.StoragePoolBuild(pool, 0) }
	scrap := func(c *crash) error { return c.l.StoragePoolDelete(pool, 0) }
	auto := func(on int32) func(c *crash) error {
		return func(c *crash) error { return c.l.StoragePoolSetAutostart(pool, on) }
	}
	make := func(name, format string) func(c *crash) error {
		return func(c *crash) error {
			_, err := c.l.StorageVolCreateXML(pool, volumeDoc(name, format, 1<<20), 0)
			return err
		}
	}
	remove := func(name string) func(c *crash) error {
		return func(c *crash) error { return c.l.StorageVolDelete(vol(c, name), 0) }
	}
	clone := func(c *crash) error {
		_, err := c.l.StorageVolCreateXMLFrom(pool, volumeDoc("copy", "qcow2", 1<<20), vol(c, "raw"), 0)
		return err
	}
	create := func(c *crash) error {
		_, err := c.l.StoragePoolCreateXML(poolDoc(c, "passing", 2), 0)
		return err
	}
	end := func(c *crash) error { return c.l.StoragePoolDestroy(passing) }
	return []action{
		{"define a pool", def, func(c *crash) error { return c.l.StoragePoolUndefine(pool) }},
		{"build a pool", build, scrap},
		{"start a pool", start, stop},
		{"mark a pool for autostart", auto(1), auto(0)},
		{"make a raw volume", make("raw", "raw"), remove("raw")},
		{"make a qcow2 volume", make("cow", "qcow2"), remove("cow")},
		{"clone a volume", clone, remove("copy")},
		{"grow a volume", func(c *crash) error { return c.l.StorageVolResize(vol(c, "cow"), 2<<20, 0) }, func(c *crash) error {
			return c.l.StorageVolResize(vol(c, "cow"), 1<<20, libvirt.StorageVolResizeShrink)
		}},
		{"upload to a volume", func(c *crash) error {
			return c.l.StorageVolUpload(vol(c, "raw"), bytes.NewReader(bytes.Repeat([]byte{7}, 1<<16)), 0, 1<<16, 0)
		}, nil},
		{"wipe a volume", func(c *crash) error { return c.l.StorageVolWipe(vol(c, "cow"), 0) }, nil},
		{"delete a volume", remove("raw"), make("raw", "raw")},
		{"delete a qcow2 volume", remove("copy"), make("copy", "qcow2")},
		{"delete the last volume", remove("cow"), func(c *crash) error {
			if err := make("cow", "qcow2")(c); err != nil {
				return err
			}
			return c.l.StorageVolResize(vol(c, "cow"), 2<<20, 0)
		}},
		{"stop a pool", stop, start},
		{"delete a pool's directory", scrap, build},
		{"undefine a pool", func(c *crash) error { return c.l.StoragePoolUndefine(pool) }, func(c *crash) error {
			if err := def(c); err != nil {
				return err
			}
			return auto(1)(c)
		}},
		{"create a transient pool", create, end},
		{"stop a transient pool", end, create},
	}
}

func (c *crash) disks() {
	c.anonymous = true
	_, err := c.l.StoragePoolCreateXML(poolDoc(c, "disks", 3), libvirt.StoragePoolCreateWithBuild)
	c.must(err)
	c.probe()
	const doc = `<tile>
  <volume pool='disks'><name>{name}-{tile}.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>
  <volume pool='disks'><name>{name}-{tile}.raw</name><capacity unit='MiB'>1</capacity><allocation>0</allocation></volume>
  <domain type='qemu'><name>{name}-{tile}-a</name><memory unit='MiB'>48</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>
  <domain type='qemu'><name>{name}-{tile}-b</name><memory unit='MiB'>48</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>
</tile>`
	c.file(c.t, "tile.xml", doc)
	last := strings.LastIndex(doc, "q35")
	c.file(c.t, "broken.xml", doc[:last]+"no-such-machine"+doc[last+len("q35"):])
}

// command runs a command of lodge.
func command(args ...string) func(c *crash) error {
	return func(c *crash) error {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		defer cancel()
		if out, err := c.lodge(ctx, c.t, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// tile runs a command of lodge on tiles.
func tile(args ...string) func(c *crash) error {
	return func(c *crash) error {
		whole := append([]string{"tile"}, args...)
		for i := range whole {
			whole[i] = strings.NewReplacer("TEMPLATE", filepath.Join(c.dir, "tile.xml"), "BROKEN", filepath.Join(c.dir, "broken.xml")).Replace(whole[i])
		}
		return command(whole...)(c)
	}
}

func tileActions() []action {
	create, remove := tile("create", "set", "--template", "TEMPLATE", "--count", "1"), tile("remove", "set")
	return []action{
		{"create a tile", create, remove},
		{"remove a tile", remove, create},
		{"create a tile that cannot be", refusedFor("no-such-machine", tile("create", "set", "--template", "BROKEN", "--count", "1")), nil},
	}
}

// refusedFor expects a command to fail with a reason in its output.
func refusedFor(reason string, do func(c *crash) error) func(c *crash) error {
	return func(c *crash) error {
		switch err := do(c); {
		case err == nil:
			return fmt.Errorf("it was done, and was to fail for %q", reason)
		case strings.Contains(err.Error(), reason):
			return nil
		default:
			return err
		}
	}
}

// defineCloneSource makes a guest with a disk, for clones, and one without a free target for a seed disk.
func (c *crash) defineCloneSource() {
	c.disks()
	pool := libvirt.StoragePool{Name: "disks", UUID: libvirt.UUID{0xc6, 15: 3}}
	_, err := c.l.StorageVolCreateXML(pool, "<volume><name>golden.raw</name><capacity unit='KiB'>64</capacity></volume>", 0)
	c.must(err)
	_, err = c.l.DomainDefineXML(`<domain type='qemu'><name>golden</name><memory unit='MiB'>48</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
		<devices><disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='disks' volume='golden.raw'/><target dev='vda' bus='virtio'/></disk></devices></domain>`)
	c.must(err)
	_, err = c.l.StorageVolCreateXML(pool, "<volume><name>full.raw</name><capacity unit='KiB'>64</capacity></volume>", 0)
	c.must(err)
	drives := "<disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='disks' volume='full.raw'/><target dev='sda' bus='sata'/></disk>"
	for letter := 'b'; letter <= 'z'; letter++ {
		drives += fmt.Sprintf("<disk type='file' device='cdrom'><target dev='sd%c' bus='sata'/></disk>", letter)
	}
	_, err = c.l.DomainDefineXML(`<domain type='qemu'><name>full</name><memory unit='MiB'>48</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
		<devices>` + drives + `</devices></domain>`)
	c.must(err)
}

func cloneActions() []action {
	unclone := func(name string, volumes ...string) func(c *crash) error {
		return func(c *crash) error {
			if err := command("undefine", name)(c); err != nil {
				return err
			}
			for _, volume := range volumes {
				if err := c.l.StorageVolDelete(libvirt.StorageVol{Pool: "disks", Name: volume, Key: filepath.Join(c.dir, "pool-disks", volume)}, 0); err != nil {
					return err
				}
			}
			return nil
		}
	}
	unthin := func(c *crash) error {
		if err := unclone("thin", "thin-vda.qcow2")(c); err != nil {
			return err
		}
		return command("set", "golden", "template=no")(c)
	}
	return []action{
		{"clone a guest", command("clone", "golden", "one", "--seed"), unclone("one", "one-vda.raw", "one-seed.iso")},
		{"clone a guest thinly", command("clone", "--thin", "golden", "thin"), unthin},
		{"clone a guest that cannot be", refusedFor("sdz", command("clone", "--thin", "full", "two", "--seed")), nil},
	}
}
