package guest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// userNetworks counts the processes that serve networks of type user to guests of this daemon.
func (d *daemon) userNetworks() (n int) {
	d.t.Helper()
	out, err := exec.CommandContext(d.ctx(), "ps", "-eo", "uid,args").Output()
	ok(d.t, err)
	for line := range strings.Lines(string(out)) {
		uid, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		id, err := strconv.ParseUint(uid, 10, 32)
		if err == nil && strings.Contains(args, "-name lodge-user-network") && d.Isolation.Users.Has(uint32(id)) {
			n++
		}
	}
	return n
}

// TestUserNetwork_PluggedIntoAGuestWithoutOne: a guest that has no need of the host's network is
// started apart from it. It stays so when it gets an interface of type user, which works.
func TestUserNetwork_PluggedIntoAGuestWithoutOne(t *testing.T) {
	d := newDaemonOf(t, true)
	if !d.Isolation.Builder.HasNetNS() {
		t.Skip("guests have the host's network here")
	}
	if _, err := os.Stat("/usr/lib/ipxe/qemu/efi-virtio.rom"); err != nil {
		t.Skipf("no firmware that asks for an address: %v", err)
	}
	said := filepath.Join(d.dir, "said")
	says := func(words string) func() bool {
		return func() bool {
			text, err := os.ReadFile(said)
			return err == nil && strings.Contains(string(text), words)
		}
	}
	doc := speaking("plugged", "<serial type='file'><source path='"+said+"'/></serial>")
	g := d.define(strings.Replace(doc, "</os>", "<boot dev='network'/></os>", 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	eventually(t, "the firmware to find nothing to boot from", says("No bootable device"))
	nic := "<interface type='user'><mac address='52:54:00:00:00:01'/><model type='virtio'/></interface>"
	live := machine.Affect{Live: true}
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), nic, live))
	ok(t, guest.Reset(d.ctx(), g, scope.Daemon("a test")))
	eventually(t, "the guest to be given an address", says("net0: 10.0.2.15"))
	if v := g.View(); (kernel.Root{}).SharesNetwork(v.PID) || !slices.Contains(v.Isolation, "network") {
		t.Errorf("the guest has come to have the host's network: %v", v.Isolation)
	}

	d.reopen(func() {}) // the next daemon knows what serves it
	g = d.again(g)
	if n := d.userNetworks(); n != 1 {
		t.Fatalf("%d processes serve one interface", n)
	}
	ok(t, hotplug.DetachAlias(d.ctx(), g, scope.Daemon("a test"), "net0", live))
	ok(t, guest.Reset(d.ctx(), g, scope.Daemon("a test"))) // the firmware answers no request, and a reset grants it
	eventually(t, "what served the interface to end", func() bool { return d.userNetworks() == 0 })

	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), nic, live))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	eventually(t, "what served the interface to end with the guest", func() bool { return d.userNetworks() == 0 })
}
