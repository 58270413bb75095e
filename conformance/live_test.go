package conformance

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// liveDevices are the devices of TestRunningGuest's guest.
const liveDevices = `
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='threads' discard='unmap'/>
      <source file='%s'/><target dev='vda' bus='virtio'/><serial>first</serial>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='%s'/><target dev='vdz' bus='virtio'/>
    </disk>
    <disk type='file' device='cdrom'><source file='%s'/><target dev='sda' bus='sata'/><readonly/></disk>
    <interface type='network'><mac address='52:54:00:10:d9:e0'/><source network='lan'/><model type='virtio'/></interface>
    <graphics type='vnc' autoport='yes'/>
    <video><model type='vga'/></video>
    <memballoon model='virtio'><stats period='1'/></memballoon>
    <controller type='pci' index='16' model='pcie-root-port'/>`

// blank makes an empty raw disk.
func (d *daemon) blank(t *testing.T, name string, size int64) string {
	t.Helper()
	path := filepath.Join(d.dir, name)
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRunningGuest boots one guest and makes the usual calls for running guests. The parts share the guest, and
// each restores it at its end.
func TestRunningGuest(t *testing.T) {
	needs(t)
	d := start(t)
	d.lan(t, "lan", 1)
	g := d.boot(t, shape{
		name: "live", vcpus: "<vcpu current='1'>3</vcpu>", memory: 256,
		devices: fmt.Sprintf(liveDevices, d.blank(t, "first.raw", 64<<20), d.blank(t, "leaves.raw", 1<<20), d.blank(t, "leaves.iso", 1<<20)),
	})
	for _, part := range []struct {
		name string
		run  func(*testing.T, *guest)
	}{
		{"letting go", liveLettingGo}, // first: the others know two drives
		{"xml", liveXML},
		{"statistics", liveStatistics},
		{"agent", liveAgent},
		{"addresses", liveAddresses},
		{"console", liveConsole},
		{"screenshot", liveScreenshot},
		{"metadata", liveMetadata},
		{"memory", liveMemory},
		{"disk", liveDisk},
		{"media", liveMedia},
		{"interface", liveInterface},
		{"link", liveLink},
		{"device", liveDevice},
		{"keys", liveKeys},
		{"tuning", liveTuning},
		{"file system", liveFileSystem},
		{"dump", liveDump},
		{"save", liveSave},
		{"managed save", liveManagedSave},
		{"processors", liveProcessors},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, g) })
	}
}

func liveXML(t *testing.T, g *guest) {
	active := g.d.virsh(t, "dumpxml", "live")
	if first, _, _ := strings.Cut(active, "\n"); !strings.HasPrefix(first, "<domain type='"+g.d.kind(t)+"' id='") {
		t.Errorf("the active XML begins with %q", first)
	}
	contains(t, "the active XML", active, "  <name>live</name>\n", "  <memory unit='KiB'>262144</memory>\n", "<currentMemory unit='KiB'>262144</currentMemory>",
		"<vcpu placement='static' current='1'>3</vcpu>", "<alias name='net0'/>", "<alias name='virtio-disk0'/>", "<alias name='serial0'/>",
		"<target dev='vnet", "<address type='pci' domain='0x0000' bus='0x", "<console type='pty' tty='/dev/pts/", "<controller type='pci' index='0' model='pcie-root'>",
		"state='connected'", "<source network='lan'", "port='5900' autoport='yes'")
	inactive := g.d.virsh(t, "dumpxml", "--inactive", "live")
	for _, piece := range []string{"<alias name=", "' id='1'>", "vnet", "tty="} {
		if strings.Contains(inactive, piece) {
			t.Errorf("the inactive XML has %s", piece)
		}
	}
	// The daemon must accept the XML that it printed.
	redefined := func(from string) string {
		g.d.virsh(t, "define", g.d.file(t, "again.xml", from))
		return g.d.virsh(t, "dumpxml", "--inactive", "live")
	}
	again := redefined(inactive)
	if !sameLines(again, inactive) {
		t.Errorf("defining the printed XML changes it to\n%s\nfrom\n%s", again, inactive)
	}
	if third := redefined(again); third != again {
		t.Errorf("defining it again changes it to\n%s\nfrom\n%s", third, again)
	}
}

// sameLines reports whether two texts have the same lines, in any order. Controllers that the definition names
// stand last, as with libvirt, until the printed XML is defined.
func sameLines(a, b string) bool {
	return slices.Equal(slices.Sorted(strings.Lines(a)), slices.Sorted(strings.Lines(b)))
}

func liveStatistics(t *testing.T, g *guest) {
	contains(t, "domstats", g.d.virsh(t, "domstats", "live"), "state.state=1", "cpu.time=", "balloon.current=262144", "balloon.maximum=262144",
		"vcpu.current=1", "vcpu.maximum=3", "vcpu.0.state=1", "net.count=1", "net.0.name=vnet", "net.0.rx.bytes=", "block.count=2", "block.0.name=vda",
		"block.0.rd.reqs=", "block.0.capacity=67108864")
	for _, c := range []struct {
		command string
		pieces  []string
	}{
		{"dommemstat live", []string{"actual 262144", "rss "}},
		{"domblkstat live vda", []string{"vda rd_req ", "vda wr_bytes "}},
		{"domblkinfo live vda", []string{"Capacity:       67108864", "Allocation:", "Physical:"}},
		{"domblklist live --details", []string{"vda", "first.raw", "cdrom"}},
		{"domiflist live", []string{"vnet", "network", "lan", "virtio", "52:54:00:10:d9:e0"}},
		{"cpu-stats live --total", []string{"cpu_time"}},
		{"vcpuinfo live", []string{"VCPU:           0", "State:          running", "CPU time:"}},
		{"vcpucount live", []string{"maximum      config", "current      live"}},
		{"vcpupin live", []string{"0   ", "2   "}},
		{"domcontrol live", []string{"ok"}},
		{"domjobinfo live", []string{"None"}},
		{"domblkerror live", []string{"No errors found"}},
		{"vncdisplay live", []string{"127.0.0.1:0"}},
		{"domdisplay live", []string{"vnc://127.0.0.1:0"}},
		{"ttyconsole live", []string{"/dev/pts/"}},
		{"list --title", []string{"live"}},
	} {
		contains(t, c.command, g.d.virsh(t, strings.Fields(c.command)...), c.pieces...)
	}
	device := strings.Fields(g.d.virsh(t, "domiflist", "live"))[0]
	contains(t, "domifstat", g.d.virsh(t, "domifstat", "live", device), device+" rx_bytes ", device+" tx_packets ")
}

func liveAgent(t *testing.T, g *guest) {
	v := func(args ...string) string { return g.d.virsh(t, args...) }
	contains(t, "guest-ping", v("qemu-agent-command", "live", `{"execute":"guest-ping"}`), `{"return":{}}`)
	contains(t, "domhostname", v("domhostname", "live", "--source", "agent"), "live")
	contains(t, "guestinfo", v("guestinfo", "live", "--os", "--hostname"), "os.id", "lodge-guest", "hostname")
	contains(t, "domtime", v("domtime", "live"), "Time: ")
	if mounted := v("domfsinfo", "live"); mounted != "" {
		t.Errorf("domfsinfo of a guest without file systems on disks: %s", mounted)
	}
	contains(t, "a command the agent lacks", g.d.mustFail(t, "qemu-agent-command", "live", `{"execute":"guest-wish"}`), "guest-wish")
}

func liveAddresses(t *testing.T, g *guest) {
	eventually(t, "an address by DHCP", func() bool {
		return strings.Contains(g.d.virsh(t, "domifaddr", "live"), "10.78.1.")
	})
	for _, source := range []string{"lease", "agent"} {
		contains(t, "domifaddr --source "+source, g.d.virsh(t, "domifaddr", "live", "--source", source), "52:54:00:10:d9:e0", "ipv4", "10.78.1.")
	}
	contains(t, "net-dhcp-leases", g.d.virsh(t, "net-dhcp-leases", "lan"), "52:54:00:10:d9:e0", "10.78.1.", "live")
	g.shell(t, "ping -c 1 -W 5 10.78.1.1")
	contains(t, "domifaddr --source arp", g.d.virsh(t, "domifaddr", "live", "--source", "arp"), "52:54:00:10:d9:e0", "10.78.1.")
}

func liveScreenshot(t *testing.T, g *guest) {
	path := filepath.Join(g.d.dir, "screen")
	g.d.virsh(t, "screenshot", "live", path)
	picture, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(picture, []byte("P6")) && !bytes.HasPrefix(picture, []byte("\x89PNG")) {
		t.Errorf("a screenshot of %d bytes that begins with %q", len(picture), picture[:min(8, len(picture))])
	}
}

func liveMetadata(t *testing.T, g *guest) {
	v := func(args ...string) string { return g.d.virsh(t, args...) }
	v("desc", "live", "--live", "--config", "--title", "A fine guest")
	contains(t, "the title", v("desc", "live", "--title"), "A fine guest")
	v("metadata", "live", "http://example.org/app", "--key", "app", "--set", "<owner>me</owner>", "--live", "--config")
	contains(t, "the metadata", v("metadata", "live", "http://example.org/app", "--config"), "<owner>me</owner>")
	contains(t, "the XML", v("dumpxml", "live"), "<app:owner xmlns:app=\"http://example.org/app\">me</app:owner>")
	v("metadata", "live", "http://example.org/app", "--remove", "--live", "--config")
	// virsh 9 says that there is none; virsh 11 prints nothing.
	if out, _ := g.d.try(t, "metadata", "live", "http://example.org/app"); strings.Contains(out, "owner") {
		t.Errorf("metadata that were removed are\n%s", out)
	}
}

func liveMemory(t *testing.T, g *guest) {
	before := g.waitForAgent(t).MemoryKiB
	g.d.virsh(t, "setmem", "live", "196608", "--live")
	eventually(t, "the balloon at 192 MiB", func() bool {
		return strings.Contains(g.d.virsh(t, "dommemstat", "live"), "actual 196608")
	})
	eventually(t, "less memory in the guest", func() bool { return g.waitForAgent(t).MemoryKiB < before })
	g.d.virsh(t, "setmem", "live", "262144", "--live")
	eventually(t, "the balloon back", func() bool {
		return strings.Contains(g.d.virsh(t, "dommemstat", "live"), "actual 262144")
	})
	contains(t, "more than the maximum", g.d.mustFail(t, "setmem", "live", "999999999", "--live"), "memory")
}

func liveProcessors(t *testing.T, g *guest) {
	g.d.virsh(t, "setvcpus", "live", "2", "--live")
	if g.shell(t, "cat /sys/devices/system/cpu/possible") == "0" {
		// Linux 6.9 and later does not add a processor if it detects no hypervisor.
		t.Log("the guest's kernel takes no processors when it is emulated")
	} else {
		eventually(t, "two processors in the guest", func() bool { return g.waitForAgent(t).CPUs == 2 })
	}
	contains(t, "vcpucount", g.d.virsh(t, "vcpucount", "live", "--live", "--active"), "2")
	if g.d.kind(t) == "kvm" {
		g.d.virsh(t, "setvcpus", "live", "1", "--live")
		eventually(t, "one processor in the guest", func() bool { return g.waitForAgent(t).CPUs == 1 })
	} else { // QEMU's emulation breaks on it
		contains(t, "unplugging an emulated processor", g.d.mustFail(t, "setvcpus", "live", "1", "--live"), "emulated")
	}
	contains(t, "too many processors", g.d.mustFail(t, "setvcpus", "live", "4", "--live"), "4")
}

func liveDisk(t *testing.T, g *guest) {
	extra := g.d.blank(t, "extra.raw", 32<<20)
	has := func() bool { return strings.Contains(strings.Join(g.waitForAgent(t).Disks, " "), "vdb") }
	g.d.virsh(t, "attach-disk", "live", extra, "vdb", "--targetbus", "virtio", "--live")
	eventually(t, "vdb in the guest", has)
	g.shell(t, "echo written by the guest > /dev/vdb; sync")
	contains(t, "domblklist", g.d.virsh(t, "domblklist", "live"), "vdb")
	contains(t, "the same target again", g.d.mustFail(t, "attach-disk", "live", extra, "vdb", "--targetbus", "virtio", "--live"), "vdb")
	g.d.virsh(t, "detach-disk", "live", "vdb", "--live")
	eventually(t, "vdb gone from the guest", func() bool { return !has() })
	if content, err := os.ReadFile(extra); err != nil || !bytes.HasPrefix(content, []byte("written by the guest\n")) {
		t.Errorf("the disk's file begins with %q, %v", content[:min(20, len(content))], err)
	}
	g.d.virsh(t, "attach-disk", "live", extra, "vdc", "--targetbus", "virtio", "--config")
	contains(t, "the definition", g.d.virsh(t, "domblklist", "live", "--inactive"), "vdc")
	g.d.virsh(t, "detach-disk", "live", "vdc", "--config")
}

// liveLettingGo checks that QEMU closes every file that the guest was started with and has released. Another guest
// can then use the file, and its space is free after a deletion.
func liveLettingGo(t *testing.T, g *guest) {
	disk, disc := filepath.Join(g.d.dir, "leaves.raw"), filepath.Join(g.d.dir, "leaves.iso")
	if !g.d.open(t, disk) || !g.d.open(t, disc) {
		t.Fatal("the guest does not have the images of its start open")
	}
	g.d.virsh(t, "detach-disk", "live", "vdz", "--live")
	eventually(t, "the disk's image closed", func() bool { return !g.d.open(t, disk) })
	g.d.virsh(t, "change-media", "live", "sda", "--eject", "--live")
	if g.d.open(t, disc) {
		t.Error("the image of a medium that was ejected is open")
	}
}

// The test plugs a memory module into a guest that uses it, and unplugs it again with the guest's cooperation.
// Promise: G7
func TestMemory_PlugAndUnplug(t *testing.T) {
	needs(t)
	d := start(t)
	g := d.boot(t, shape{
		name: "grows", memory: 256, kernel: "memhp_default_state=online_movable", // or the guest's use of a module prevents its removal
		more: "<maxMemory slots='4' unit='MiB'>1024</maxMemory><cpu><numa><cell id='0' cpus='0' memory='256' unit='MiB'/></numa></cpu>",
	})
	before := g.waitForAgent(t).MemoryKiB
	module := d.file(t, "module.xml", "<memory model='dimm'><target><size unit='MiB'>256</size><node>0</node></target></memory>")
	d.virsh(t, "attach-device", "grows", module, "--live")
	contains(t, "dumpxml", d.virsh(t, "dumpxml", "grows"), "<maxMemory slots='4' unit='KiB'>1048576</maxMemory>", "<memory unit='KiB'>524288</memory>",
		"<memory model='dimm'>", "<size unit='KiB'>262144</size>", "<alias name='dimm0'/>", "<address type='dimm' slot='0' base='0x1")
	contains(t, "dominfo", d.virsh(t, "dominfo", "grows"), "524288 KiB")
	contains(t, "domstats", d.virsh(t, "domstats", "grows", "--balloon"), "balloon.current=524288", "balloon.maximum=524288")
	eventually(t, "more memory in the guest", func() bool { return g.waitForAgent(t).MemoryKiB >= before+250<<10 })
	contains(t, "too large a module", d.mustFail(t, "attach-device", "grows", d.file(t, "large.xml",
		"<memory model='dimm'><target><size unit='GiB'>1</size><node>0</node></target></memory>"), "--live"), "maxMemory")
	d.virsh(t, "detach-device", "grows", module, "--live")
	eventually(t, "the module gone", func() bool { return !strings.Contains(d.virsh(t, "dumpxml", "grows"), "<memory model='dimm'>") })
	contains(t, "dominfo without it", d.virsh(t, "dominfo", "grows"), "262144 KiB")
	eventually(t, "as much memory in the guest as before", func() bool { return g.waitForAgent(t).MemoryKiB < before+6<<10 })
}

// open reports whether an emulator has a file open.
func (d *daemon) open(t *testing.T, path string) bool {
	t.Helper()
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for pid := range d.emulatorPIDs() {
		held, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range held {
			if found, err := os.Stat(fd); err == nil && os.SameFile(found, file) {
				return true
			}
		}
	}
	return false
}

func liveMedia(t *testing.T, g *guest) {
	disc := g.d.blank(t, "disc.iso", 1<<20)
	g.d.virsh(t, "change-media", "live", "sda", disc, "--insert", "--live")
	contains(t, "domblklist", g.d.virsh(t, "domblklist", "live"), "disc.iso")
	g.d.virsh(t, "change-media", "live", "sda", "--eject", "--live")
	if list := g.d.virsh(t, "domblklist", "live"); strings.Contains(list, "disc.iso") {
		t.Errorf("the disc is still in:\n%s", list)
	}
}

func liveInterface(t *testing.T, g *guest) {
	const mac = "52:54:00:10:d9:e1"
	g.d.virsh(t, "attach-interface", "live", "network", "lan", "--model", "virtio", "--mac", mac, "--live")
	eventually(t, "a second interface with an address", func() bool {
		return strings.Contains(g.d.virsh(t, "domifaddr", "live"), mac)
	})
	g.d.virsh(t, "detach-interface", "live", "network", "--mac", mac, "--live")
	eventually(t, "the second interface gone", func() bool { return !strings.Contains(g.shell(t, "ip link"), mac) })
	if list := g.d.virsh(t, "domiflist", "live"); strings.Contains(list, mac) {
		t.Errorf("still listed:\n%s", list)
	}
}

func liveLink(t *testing.T, g *guest) {
	carrier := func() string { return g.shell(t, "cat /sys/class/net/eth0/carrier") }
	g.d.virsh(t, "domif-setlink", "live", "52:54:00:10:d9:e0", "down")
	eventually(t, "the cable out", func() bool { return carrier() == "0" })
	contains(t, "domif-getlink", g.d.virsh(t, "domif-getlink", "live", "52:54:00:10:d9:e0"), "down")
	g.d.virsh(t, "domif-setlink", "live", "52:54:00:10:d9:e0", "up")
	eventually(t, "the cable in", func() bool { return carrier() == "1" })
}

func liveDevice(t *testing.T, g *guest) {
	device := g.d.file(t, "rng.xml", "<rng model='virtio'><backend model='random'>/dev/urandom</backend><alias name='ua-extra'/></rng>\n")
	g.d.virsh(t, "attach-device", "live", device, "--live")
	contains(t, "the XML", g.d.virsh(t, "dumpxml", "live"), "ua-extra")
	g.d.virsh(t, "detach-device-alias", "live", "ua-extra", "--live")
	eventually(t, "the device gone", func() bool { return !strings.Contains(g.d.virsh(t, "dumpxml", "live"), "ua-extra") })
}

func liveKeys(t *testing.T, g *guest) {
	g.d.virsh(t, "send-key", "live", "KEY_T", "KEY_O")
	contains(t, "an unknown key", g.d.mustFail(t, "send-key", "live", "KEY_NONSENSE"), "KEY_NONSENSE")
}

// startMarker starts a program in the guest that a reboot would end. The returned check verifies that it still runs.
func (g *guest) startMarker(t *testing.T) func(*testing.T) {
	t.Helper()
	g.shell(t, "setsid sleep 100000 < /dev/null > /dev/null 2>&1 & echo $! > /run/mark")
	boot := g.waitForAgent(t).BootID
	return func(t *testing.T) {
		t.Helper()
		if again := g.waitForAgent(t).BootID; again != boot {
			t.Error("the guest has rebooted")
		}
		g.shell(t, "kill -0 $(cat /run/mark)")
	}
}

func liveSave(t *testing.T, g *guest) {
	unbroken := g.startMarker(t)
	path := filepath.Join(g.d.dir, "saved")
	g.d.virsh(t, "save", "live", path)
	if got := g.state(t); got != "shut off (saved)" {
		t.Errorf("after save the state is %q", got)
	}
	contains(t, "save-image-dumpxml", g.d.virsh(t, "save-image-dumpxml", path), "<name>live</name>")
	g.d.virsh(t, "restore", path)
	unbroken(t)
	if got := g.state(t); got != "running (restored)" {
		t.Errorf("after restore the state is %q", got)
	}
}

func liveManagedSave(t *testing.T, g *guest) {
	unbroken := g.startMarker(t)
	g.d.virsh(t, "managedsave", "live")
	contains(t, "dominfo", g.d.virsh(t, "dominfo", "live"), "Managed save:   yes", "State:          shut off")
	g.d.virsh(t, "start", "live")
	unbroken(t)
	contains(t, "dominfo", g.d.virsh(t, "dominfo", "live"), "Managed save:   no")
	id, err := strconv.Atoi(g.d.virsh(t, "domid", "live"))
	if err != nil || id < 2 {
		t.Errorf("the id is %d, %v: it must be a new one", id, err)
	}
}
