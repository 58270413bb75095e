package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// emulatorPIDs returns the process numbers of the QEMUs in the daemon's world.
func (d *daemon) emulatorPIDs() map[int]bool {
	found := map[int]bool{}
	for pid, words := range d.processes() {
		if strings.Contains(words, "-name guest=") {
			found[pid] = true
		}
	}
	return found
}

// The daemon is killed at work, and another one starts. Guests keep running, and the new daemon knows everything
// about them that the old one knew.
// Promise: G2
func TestDaemonKilled_GuestsKeepRunning(t *testing.T) {
	needs(t)
	d := start(t)
	d.lan(t, "lan", 1)
	g := d.boot(t, shape{name: "survivor", devices: `
		<interface type='network'><source network='lan'/><model type='virtio'/></interface>
		<controller type='pci' index='9' model='pcie-root-port'/>`})
	paused := d.define(t, shape{name: "paused"})
	d.virsh(t, "start", "--paused", "paused")
	gone := d.define(t, shape{name: "gone"})
	d.virsh(t, "start", "gone")
	extra := d.blank(t, "extra.raw", 32<<20)
	d.virsh(t, "attach-disk", "survivor", extra, "vdb", "--targetbus", "virtio", "--live")
	unbroken := g.startMarker(t)
	before, xml := d.emulatorPIDs(), d.virsh(t, "dumpxml", "survivor")
	if len(before) != 3 {
		t.Fatalf("%d emulators run, not 3: %v", len(before), d.processes())
	}

	d.signal(t, "KILL")
	// The guest shuts down while no daemon runs, perhaps before it can answer. Its QEMU then stays.
	gone.waitForAgent(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, _ = gone.ask(ctx, line.Request{Do: line.Power})
	d.launch(t)
	eventually(t, "one emulator less", func() bool { return len(d.emulatorPIDs()) == 2 })

	unbroken(t)
	for pid := range d.emulatorPIDs() {
		if !before[pid] {
			t.Errorf("process %d is a new emulator", pid)
		}
	}
	if again := d.virsh(t, "dumpxml", "survivor"); again != xml {
		t.Errorf("the guest's XML is now\n%s\nand was\n%s", again, xml)
	}
	for guest, want := range map[*guest]string{g: "running", paused: "paused (", gone: "shut off"} {
		if got := guest.state(t); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, want %q", guest.name, got, want)
		}
	}
	// The new daemon can also change guests.
	d.virsh(t, "resume", "paused")
	paused.waitForAgent(t)
	d.virsh(t, "detach-disk", "survivor", "vdb", "--live")
	eventually(t, "the disk gone", func() bool { return !strings.Contains(strings.Join(g.waitForAgent(t).Disks, " "), "vdb") })
	contains(t, "the network", d.virsh(t, "net-list"), "lan", "active")
	eventually(t, "the lease", func() bool { return strings.Contains(d.virsh(t, "domifaddr", "survivor"), "10.78.1.") })
	d.virsh(t, "shutdown", "survivor")
	eventually(t, "shut off", func() bool { return g.state(t) == "shut off (shutdown)" })
}

// The same for a daemon that gets SIGTERM, several times in a row.
// Promise: G2
func TestDaemonStopped_GuestsKeepRunning(t *testing.T) {
	onlyInClients(t)
	needs(t)
	d := start(t)
	g := d.boot(t, shape{name: "steady"})
	unbroken := g.startMarker(t)
	for range 3 {
		d.signal(t, "TERM")
		d.launch(t)
		if got := d.virsh(t, "domstate", "steady"); got != "running" {
			t.Errorf("after a restart the guest is %s", got)
		}
	}
	unbroken(t)
	d.virsh(t, "destroy", "steady")
}

// The next daemon is started with a symbolic link to the run directory. It is the same instance, with all guests
// and networks.
// Promise: G2
func TestRunDirectory_ReachedByLink(t *testing.T) {
	needs(t)
	d := start(t)
	d.lan(t, "lan", 1)
	d.define(t, shape{name: "linked", devices: "<interface type='network'><source network='lan'/><model type='virtio'/></interface>"})
	d.virsh(t, "start", "linked")
	d.signal(t, "KILL")
	run, link := d.run, filepath.Join(d.dir, "by-a-link")
	if err := os.Symlink(run, link); err != nil {
		t.Fatal(err)
	}
	d.run = link
	d.launch(t)
	d.run = run
	d.virsh(t, "schedinfo", "linked", "--live", "--set", "cpu_shares=333")
	d.virsh(t, "destroy", "linked")
	d.virsh(t, "net-destroy", "lan")
	for pid, words := range d.processes() {
		if strings.Contains(words, "dnsmasq") {
			t.Errorf("process %d is left: %s", pid, words)
		}
	}
}

// The daemon is killed right after its answer.
// Promise: G3
func TestDaemonKilled_DefinitionsKept(t *testing.T) {
	needs(t)
	d := start(t)
	for i := range 5 {
		d.define(t, shape{name: fmt.Sprintf("kept%d", i)})
		d.signal(t, "KILL")
		d.launch(t)
	}
	list := d.virsh(t, "list", "--all", "--name")
	for i := range 5 {
		contains(t, "list --all", list, fmt.Sprintf("kept%d", i))
	}
}
