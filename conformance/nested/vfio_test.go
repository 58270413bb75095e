package nested

import (
	"fmt"
	"strings"
	"testing"
)

// A managed device is taken from its driver when its guest starts, and returned to the host when the guest ends,
// also if the daemon was restarted in between. virsh nodedev-detach and nodedev-reattach do the same by hand.
// Promise: G14
func TestNestedVFIO_AssignAndReturn(t *testing.T) {
	m := begin(t)
	link := m.run("basename $(dirname $(grep --files-with-matches " + nicMAC + " /sys/class/net/*/address))")
	slot := m.run("basename $(readlink /sys/class/net/" + link + "/device)")
	node := "pci_" + strings.NewReplacer(":", "_", ".", "_").Replace(slot)
	driver := func() string {
		t.Helper()
		return m.run("basename $(readlink /sys/bus/pci/devices/" + slot + "/driver)")
	}
	isHosts := func(after string) {
		t.Helper()
		if got := driver(); got != "vmxnet3" {
			t.Fatalf("after %s the driver is %s, want vmxnet3", after, got)
		}
		m.eventually("grep --quiet " + nicMAC + " /sys/class/net/*/address")
	}
	isGuests := func(after string) {
		t.Helper()
		if got := driver(); got != "vfio-pci" {
			t.Fatalf("after %s the driver is %s, want vfio-pci", after, got)
		}
		m.run("! grep --quiet " + nicMAC + " /sys/class/net/*/address")
	}
	isHosts("boot")
	m.virsh("nodedev-detach", node)
	isGuests("nodedev-detach")
	m.virsh("nodedev-reattach", node)
	isHosts("nodedev-reattach")

	var domain, bus, dev, function uint
	if _, err := fmt.Sscanf(slot, "%x:%x:%x.%x", &domain, &bus, &dev, &function); err != nil {
		t.Fatal(err)
	}
	hostdev := func(managed string) string {
		return fmt.Sprintf(`<hostdev mode='subsystem' type='pci' managed='%s'><source><address domain='%d' bus='%d' slot='%d' function='%d'/></source></hostdev>`,
			managed, domain, bus, dev, function)
	}
	uuid := m.paused(guest{name: "one", kind: "kvm", devices: hostdev("yes")})
	isGuests("start of the guest")
	m.run("ls -l /proc/" + m.pid(uuid) + "/fd | grep --quiet /dev/vfio/")
	if said := m.refused("nodedev-reattach", node); !strings.Contains(said, "in use by domain 'one'") {
		t.Errorf("reattaching a device in use says %q", said)
	}
	m.run("systemctl restart lodged")
	m.virsh("destroy", "one")
	isHosts("destroy")

	m.define(guest{name: "two", devices: hostdev("no")})
	if said := m.refused("start", "two"); !strings.Contains(said, "managed='yes'") {
		t.Errorf("an unmanaged device of the host's is refused with %q", said)
	}
	isHosts("a refused start")
	m.virsh("nodedev-detach", node)
	m.virsh("start", "--paused", "two")
	m.virsh("destroy", "two")
	isGuests("the end of a guest that did not take it")
	m.virsh("nodedev-reattach", node)
	isHosts("nodedev-reattach")
}
