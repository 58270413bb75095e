package conformance

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// spin defines a guest without a boot device, so it runs at once.
func (d *daemon) spin(t *testing.T, name string) string {
	t.Helper()
	return d.file(t, name+".xml", fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>32</memory><os><type>hvm</type></os></domain>`, name))
}

// The test follows an administrator whose store is damaged while guests run, from the check to the import.
// Promise: S10
func TestStore_CheckExportRepairImport(t *testing.T) {
	needs(t)
	d := start(t)
	d.virsh(t, "define", d.spin(t, "runs"))
	d.virsh(t, "start", "--paused", "runs")
	d.virsh(t, "define", d.spin(t, "lost"))
	d.virsh(t, "autostart", "lost")
	d.set(t, 0, "set", "lost", "template=yes")
	d.virsh(t, "net-define", d.file(t, "lan.xml", `<network><name>lan</name><bridge name='lan0'/><ip address='10.9.8.1' netmask='255.255.255.0'/></network>`))
	d.virsh(t, "net-autostart", "lan")
	d.virsh(t, "pool-define-as", "images", "dir", "--target", d.dir+"/images")
	d.virsh(t, "pool-build", "images")
	d.virsh(t, "pool-start", "images")
	d.virsh(t, "vol-create-as", "images", "made-raw", "1M", "--format", "raw")
	d.virsh(t, "define", d.file(t, "pooled.xml", `<domain type='qemu'><name>pooled</name><memory unit='MiB'>32</memory><os><type arch='x86_64'>hvm</type></os>
		<devices><disk type='volume'><source pool='images' volume='made-raw'/><target dev='vda' bus='virtio'/></disk></devices></domain>`))

	data := "--data=" + d.data
	contains(t, "the check under a daemon", d.set(t, 0, "store", "check", data), "domain     3", "nothing is wrong")
	tree := filepath.Join(d.dir, "tree")
	contains(t, "the export", d.set(t, 0, "store", "export", tree, data), "domain", "lan", "images")
	for _, file := range []string{"qemu/runs.xml", "qemu/autostart/lost.xml", "qemu/networks/autostart/lan.xml", "storage/images.xml"} {
		if _, err := os.Stat(filepath.Join(tree, file)); err != nil {
			t.Error(err)
		}
	}
	// A guest can write a header into its raw volume. That must not change the format which the next daemon uses.
	if text, err := os.ReadFile(filepath.Join(tree, "qemu/pooled.xml")); err != nil || !strings.Contains(string(text), "type='raw'") {
		t.Errorf("an export loses the format of a volume (%v):\n%s", err, text)
	}
	d.set(t, 2, "store", "export", tree, data) // it is not empty now
	d.set(t, 2, "store", "repair", data)       // a daemon has it

	id := d.virsh(t, "domuuid", "lost")
	d.signal(t, "KILL")
	d.overwriteStore(t, `"Name":"lost"`, `"Name":"l0st"`)
	contains(t, "the check of a damaged store", d.set(t, 1, "store", "check", data), id, "checksum")
	contains(t, "the repair", d.set(t, 0, "store", "repair", data), "kept as "+d.data+"/lodge.db.damaged-")
	d.set(t, 0, "store", "check", data)
	d.launch(t)
	contains(t, "the guests", d.virsh(t, "list", "--all"), "runs", "paused")

	contains(t, "the dry run", d.set(t, 0, "import", "--dry-run", tree), "would be defined", "left alone")
	if list := d.virsh(t, "list", "--all", "--name"); strings.Contains(list, "lost") {
		t.Errorf("a dry run changed something, or the repair restored a damaged record: %s", list)
	}
	contains(t, "the import", d.set(t, 0, "import", tree), "defined, starts with the host, a template")
	contains(t, "the imported guest", d.virsh(t, "dominfo", "lost"), id, "Autostart:      enable")
	contains(t, "the start of the imported template", d.mustFail(t, "start", "lost"), "is a template")
	put := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("nwfilter/clean-traffic.xml", "<filter name='clean-traffic'/>")
	contains(t, "the import of filters that nobody uses", d.set(t, 0, "import", tree), "nwfilter", "left out: 1")
	const foreign = "9a05da11-e96b-47f3-8253-a3a482e445f5" // libvirt's "default" on the host that the tree is of
	theirs := "<network><name>default</name><uuid>" + foreign + "</uuid><forward mode='nat'/><ip address='10.9.7.1' netmask='255.255.255.0'/></network>"
	taken := strings.Replace(theirs, "<ip", "<bridge name='lan0'/><ip", 1) // which is another network's
	put("qemu/networks/default.xml", theirs)
	put("qemu/networks/autostart/default.xml", "")
	contains(t, "the import of a network that every daemon has", d.set(t, 0, "import", tree), "left alone", "--replace")
	d.virsh(t, "net-autostart", "default")
	before := d.virsh(t, "net-info", "default")
	put("qemu/networks/default.xml", taken)
	contains(t, "the import of one that is refused", d.set(t, 1, "import", "--replace", tree), "lan0")
	if after := d.virsh(t, "net-info", "default"); after != before {
		t.Errorf("the network that another could not replace is\n%s, and was\n%s", after, before)
	}
	d.virsh(t, "net-autostart", "default", "--disable")
	put("qemu/networks/default.xml", theirs)
	contains(t, "the import in its place", d.set(t, 0, "import", "--replace", tree), "replaced, starts with the host")
	contains(t, "the replaced network", d.virsh(t, "net-info", "default"), foreign, "Autostart:      yes")
	put("qemu/bad.xml", "<domain")
	put("qemu/filtered.xml", "<domain type='qemu'><devices><interface type='user'><filterref filter='clean-traffic'/></interface></devices></domain>")
	d.importFirmware(t)
	contains(t, "the import of bad files", d.set(t, 1, "import", tree), "qemu/bad.xml", "qemu/filtered.xml", "nwfilter/clean-traffic.xml", "network filters are not built")
}

// importFirmware imports a guest from libvirt that asks only for UEFI. It must keep the firmware that libvirt
// chose at its start, and the Secure Boot keys beside its definition.
func (d *daemon) importFirmware(t *testing.T) {
	t.Helper()
	const template = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"
	vars, err := os.ReadFile(template)
	if err != nil {
		t.Log("no UEFI guest is imported: ", err)
		return
	}
	copy(vars[len(vars)-4:], "mine") // what its guest has written
	host := filepath.Join(d.dir, "host")
	for name, text := range map[string]string{
		"etc/libvirt/qemu/efi.xml":               "<domain type='qemu'><name>efi</name><memory unit='MiB'>64</memory><os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features></domain>",
		"var/lib/libvirt/qemu/nvram/efi_VARS.fd": string(vars),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(host, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(host, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	contains(t, "the import of a UEFI guest", d.set(t, 0, "import", filepath.Join(host, "etc/libvirt")), "defined; its UEFI variables are copied from "+host)
	xml := d.virsh(t, "dumpxml", "efi")
	contains(t, "its definition", xml, "/OVMF_CODE_4M.ms.fd<", "secure='yes'", template)
	d.virsh(t, "start", "efi", "--paused")
	_, rest, _ := strings.Cut(xml, "<nvram template='"+template+"'>")
	nvram, _, _ := strings.Cut(rest, "<")
	if is, err := os.ReadFile(nvram); err != nil || string(is) != string(vars) {
		t.Errorf("it began with other UEFI variables than it had (%v)", err)
	}
	d.virsh(t, "destroy", "efi")
	d.virsh(t, "undefine", "efi", "--nvram")
}

// overwriteStore overwrites bytes in the store's file. No daemon may run.
func (d *daemon) overwriteStore(t *testing.T, from, to string) {
	t.Helper()
	path := filepath.Join(d.data, "lodge.db")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(file, []byte(from)) {
		t.Fatalf("the store has no %s", from)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(file, []byte(from), []byte(to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// With a full disk the daemon serves running guests and starts defined ones. It refuses changes that it cannot
// store, and says why. It can be replaced, and works again without help once there is free space.
// Promise: S7
func TestStore_DiskFull(t *testing.T) {
	needs(t)
	d := start(t)
	d.launchOn(t, d.data, "mode=0700,size=4m")
	d.virsh(t, "define", d.spin(t, "runs"))
	d.virsh(t, "define", d.spin(t, "starts"))
	d.virsh(t, "start", "--paused", "runs")
	_, _ = d.command(t.Context(), "dd", "if=/dev/zero", "of="+d.data+"/stuffing", "bs=4k").CombinedOutput() // until it is full

	full := func() {
		t.Helper()
		contains(t, "the refusal", d.mustFail(t, "define", d.spin(t, "refused")), "is full", "make room")
		contains(t, "the refusal of both", d.mustFail(t, "desc", "--live", "--config", "runs", strings.Repeat("long ", 4096)), "is full")
		if text := d.virsh(t, "dumpxml", "runs"); strings.Contains(text, "long") {
			t.Errorf("a change of both that was refused is made in the one: %s", text)
		}
		contains(t, "the guests", d.virsh(t, "list", "--all"), "runs", "paused")
		contains(t, "the statistics", d.virsh(t, "domstats", "--state", "runs"), "state.state=3")
		d.virsh(t, "start", "starts")
		d.virsh(t, "destroy", "starts")
	}
	full()
	d.signal(t, "KILL")
	d.launch(t)
	full()
	d.virsh(t, "resume", "runs")
	d.virsh(t, "destroy", "runs")
	d.output(t, "rm", d.data+"/stuffing")
	eventually(t, "changes taken again", func() bool {
		_, err := d.try(t, "define", d.spin(t, "taken"))
		return err == nil
	})
	d.signal(t, "KILL")
	d.launch(t)
	contains(t, "what was acknowledged", d.virsh(t, "list", "--all", "--name"), "runs", "taken")
}

// The test overwrites every file that the daemon keeps, while a guest runs. The next daemon starts, reports the
// damage, and leaves the guest alone.
// Promise: S8
func TestDaemon_EachFileDamaged(t *testing.T) {
	needs(t)
	d := start(t)
	d.virsh(t, "define", d.spin(t, "runs"))
	d.virsh(t, "start", "runs")
	d.virsh(t, "net-define", d.file(t, "lan.xml", `<network><name>lan</name><bridge name='lan0'/><ip address='10.9.8.1' netmask='255.255.255.0'/></network>`))
	d.virsh(t, "pool-create-as", "images", "dir", "--target", d.dir+"/images", "--build")
	d.virsh(t, "vol-create-as", "images", "one.qcow2", "1M", "--format", "qcow2")
	d.signal(t, "KILL")
	damaged := 0
	for _, dir := range []string{d.data, d.run} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			damaged++
			return os.WriteFile(path, []byte(strings.Repeat("\x00\xff{[rubbish", 1000)), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if damaged < 3 {
		t.Fatalf("only %d files were there to damage", damaged)
	}
	d.launch(t)
	if n := len(d.emulatorPIDs()); n != 1 {
		t.Errorf("%d emulators run, not 1", n)
	}
	d.virsh(t, "define", d.spin(t, "more"))
	d.virsh(t, "start", "more")
	d.virsh(t, "destroy", "more")
	for pid := range d.emulatorPIDs() { // no daemon knows its guest
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "no emulator", func() bool { return len(d.emulatorPIDs()) == 0 })
	d.signal(t, "TERM")
	d.launch(t) // which clears away what the dead guest left
}
