package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// launchOn restarts the daemon with one of its directories on a new file system in memory.
func (d *daemon) launchOn(t *testing.T, dir, options string) {
	t.Helper()
	d.signal(t, "TERM")
	d.output(t, "mount", "-t", "tmpfs", "-o", options, "small", dir)
	d.launch(t)
}

// fillUp fills a file system up to the given number of free pages.
func (d *daemon) fillUp(t *testing.T, dir string, pages int) {
	t.Helper()
	d.output(t, "sh", "-c", fmt.Sprintf(`rm -f "$1/stuffing"; dd if=/dev/zero of="$1/stuffing" bs=4k 2>/dev/null; truncate -s -%d "$1/stuffing"`, 4096*pages), "sh", dir)
}

// The test fills /run, and leaves more free pages in each round. A guest that is reported as running also runs
// under the next daemon, and every change that was answered is still there.
// Promise: F30
func TestRunDirectory_Full(t *testing.T) {
	needs(t)
	d := start(t)
	d.launchOn(t, d.run, "mode=0755,size=256k")
	d.blank(t, "stick.raw", 1<<20)
	stick := d.file(t, "stick.xml", "<disk type='file'><driver name='qemu' type='raw'/><source file='"+d.dir+"/stick.raw'/><target dev='sdb' bus='usb'/></disk>")
	d.virsh(t, "define", d.file(t, "squeezed.xml", `<domain type='qemu'><name>squeezed</name><memory unit='MiB'>32</memory><os><type arch='x86_64' machine='q35'>hvm</type></os>
		<on_crash>restart</on_crash><devices><controller type='usb' model='qemu-xhci'/></devices></domain>`))
	started, saved := 0, 0
	for pages := range 10 {
		d.fillUp(t, d.run, pages)
		if _, err := d.try(t, "start", "--paused", "squeezed"); err != nil {
			contains(t, "the guest that was refused", d.virsh(t, "domstate", "squeezed"), "shut off")
			continue
		}
		started++
		d.fillUp(t, d.run, pages/2)
		_, plugged := d.try(t, "attach-device", "squeezed", stick, "--live")
		_, titled := d.try(t, "desc", "--live", "--title", "squeezed", "in a tight place")
		before := d.virsh(t, "dumpxml", "squeezed")
		if has := strings.Contains(before, "stick.raw"); has != (plugged == nil) {
			t.Errorf("%d pages: it has the disk: %v, and the plug ended with %v", pages, has, plugged)
		}
		d.signal(t, "KILL")
		d.output(t, "rm", d.run+"/stuffing") // sockets need some
		d.launch(t)
		contains(t, fmt.Sprintf("%d pages: the guest under the next daemon", pages), d.virsh(t, "domstate", "squeezed"), "paused")
		if after := d.virsh(t, "dumpxml", "squeezed"); after != before {
			t.Errorf("%d pages (%v, %v): it was\n%s\nand is under the next daemon\n%s", pages, plugged, titled, before, after)
		}
		d.fillUp(t, d.run, pages/2)
		image := fmt.Sprintf("%s/image%d", d.dir, pages)
		if _, err := d.try(t, "save", "squeezed", image); err == nil {
			saved++
			d.signal(t, "KILL")
			d.output(t, "rm", d.run+"/stuffing")
			d.launch(t)
			d.virsh(t, "restore", image)
		}
		d.virsh(t, "destroy", "squeezed")
		d.signal(t, "KILL")
		d.output(t, "rm", "-f", d.run+"/stuffing")
		d.launch(t)
		contains(t, "the guest that was destroyed", d.virsh(t, "domstate", "squeezed"), "shut off")
	}
	if started == 0 || saved == 0 {
		t.Errorf("%d starts and %d saves had room enough", started, saved)
	}
}

// While /run is read-only, guests cannot be started or changed, and the errors say why. Everything else works. The
// daemon makes up for delayed writes afterwards.
// Promise: F30
func TestRunDirectory_ReadOnly(t *testing.T) {
	needs(t)
	d := start(t)
	d.launchOn(t, d.run, "mode=0755")
	const stays = `<domain type='qemu'><name>stays</name><memory unit='MiB'>32</memory><os><type>hvm</type></os><on_crash>restart</on_crash></domain>`
	d.virsh(t, "define", d.file(t, "stays.xml", stays))
	d.virsh(t, "define", d.file(t, "ends.xml", strings.Replace(stays, ">stays<", ">ends<", 1)))
	d.virsh(t, "create", d.file(t, "passes.xml", strings.Replace(stays, ">stays<", ">passes<", 1)))
	d.virsh(t, "start", "stays")
	d.virsh(t, "start", "ends")
	d.output(t, "mount", "-o", "remount,ro", d.run)
	d.virsh(t, "suspend", "stays")
	d.virsh(t, "destroy", "ends")
	d.virsh(t, "destroy", "passes")
	for _, refused := range [][]string{{"save", "stays", d.dir + "/image"}, {"managedsave", "stays"}, {"desc", "--live", "--title", "stays", "lost"}, {"start", "ends"}} {
		contains(t, refused[0], d.mustFail(t, refused...), "read-only file system")
	}
	contains(t, "the guest", d.virsh(t, "domstate", "--reason", "stays"), "paused (user)")
	d.output(t, "mount", "-o", "remount,rw", d.run)
	eventually(t, "what ended guests held is given back", func() bool {
		return len(strings.Fields(d.output(t, "ls", d.run+"/guest"))) == 1
	})
	d.virsh(t, "desc", "--live", "--title", "stays", "kept")
	d.signal(t, "KILL")
	d.launch(t)
	contains(t, "the guest under the next daemon", d.virsh(t, "domstate", "--reason", "stays"), "paused (user)")
	contains(t, "its title", d.virsh(t, "desc", "--title", "stays"), "kept")
	contains(t, "the guest that was destroyed", d.virsh(t, "domstate", "ends"), "shut off")
	d.virsh(t, "start", "ends")
}

// A guest starts from its managed save while the store is full or its file system is read-only. It must never
// start from the same image again.
// Promise: F31
func TestManagedSave_UsedOnce(t *testing.T) {
	needs(t)
	d := start(t)
	d.launchOn(t, d.data, "mode=0700,size=8m")
	d.virsh(t, "define", d.spin(t, "once"))
	d.virsh(t, "start", "--paused", "once")
	d.virsh(t, "managedsave", "once")
	d.fillUp(t, d.data, 0)
	for n := range 64 { // free pages of its file the store has, too
		if _, err := d.try(t, "define", d.spin(t, fmt.Sprintf("filler%d", n))); err != nil {
			break
		}
	}
	d.virsh(t, "start", "once")
	contains(t, "the guest that went on", d.virsh(t, "dominfo", "once"), "Managed save:   no")
	d.virsh(t, "destroy", "once")
	d.virsh(t, "start", "--paused", "once")
	contains(t, "its next start", d.virsh(t, "domstate", "--reason", "once"), "paused (user)")
	d.output(t, "rm", d.data+"/stuffing")

	d.virsh(t, "managedsave", "once")
	saves := d.data + "/guest/save"
	d.output(t, "mount", "--bind", saves, saves)
	d.output(t, "mount", "-o", "remount,bind,ro", saves)
	contains(t, "the start from where nothing can be removed", d.mustFail(t, "start", "once"), "could not be removed", "read-only file system")
	d.output(t, "umount", saves)
	d.virsh(t, "start", "once")
	contains(t, "the guest that went on", d.virsh(t, "dominfo", "once"), "Managed save:   no")
}

// The image's file system becomes read-only after an error, as ext4 does. With some kernels it still looks
// writable, and no file can be removed.
// Promise: F31
func TestManagedSave_DiskFails(t *testing.T) {
	needs(t, "mkfs.ext4", "losetup")
	d := start(t)
	d.virsh(t, "define", d.spin(t, "once"))
	d.virsh(t, "start", "--paused", "once")
	disk, saves := d.blank(t, "disk", 16<<20), d.data+"/guest/save"
	d.output(t, "mkfs.ext4", "-q", disk)
	if out, err := d.command(t.Context(), "mount", "-o", "loop,errors=remount-ro", disk, saves).CombinedOutput(); err != nil {
		t.Skipf("no loop devices here: %s", out)
	}
	d.virsh(t, "managedsave", "once")
	loop := filepath.Base(strings.TrimSpace(d.output(t, "findmnt", "-no", "SOURCE", saves)))
	trigger := filepath.Join("/sys/fs/ext4", loop, "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("1"), 0); err != nil {
		t.Skipf("this kernel cannot be told to find an error: %v", err)
	}
	contains(t, "the start from where nothing can be removed", d.mustFail(t, "start", "once"), "could not be removed", "read-only file system")
	contains(t, "the guest", d.virsh(t, "domstate", "--reason", "once"), "shut off (saved)")
	d.output(t, "umount", saves)
}

// The store's file system is read-only when the host boots. Guests and networks with autostart start when it is
// writable again.
// Promise: F7
func TestBoot_StoreReadOnly(t *testing.T) {
	onlyInClients(t)
	needs(t)
	d := start(t)
	d.launchOn(t, d.data, "mode=0700")
	for _, name := range []string{"marked", "ended"} {
		d.virsh(t, "define", d.spin(t, name))
		d.virsh(t, "autostart", name)
	}
	d.signal(t, "TERM")
	d.output(t, "mount", "-o", "remount,ro", d.data)
	d.output(t, "mount", "--bind", d.file(t, "boot", "11111111-2222-3333-4444-555555555555\n"), "/proc/sys/kernel/random/boot_id")
	d.launch(t)
	for _, name := range []string{"marked", "ended"} {
		contains(t, "a guest before that", d.virsh(t, "domstate", name), "shut off")
	}
	d.virsh(t, "start", "ended")
	d.virsh(t, "destroy", "ended")
	d.output(t, "mount", "-o", "remount,rw", d.data)
	eventually(t, "the start with the host", func() bool { return d.virsh(t, "domstate", "marked") == "running" })
	contains(t, "the guest that its user has ended", d.virsh(t, "domstate", "ended"), "shut off")
	d.virsh(t, "destroy", "marked")
	d.signal(t, "KILL")
	d.launch(t)
	contains(t, "a guest under the next daemon of that boot", d.virsh(t, "domstate", "marked"), "shut off")
}
