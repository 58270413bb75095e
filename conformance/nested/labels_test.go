package nested

import (
	"strings"
	"testing"
)

// Each guest's QEMU runs under an enforced profile of its own, which allows what the guest needs. The kernel
// denies nothing while guests start, get a disk and a card, and end. The profile is removed with the guest.
func TestNestedAppArmor_ProfileFitsGuest(t *testing.T) {
	m := begin(t)
	m.run("qemu-img create -q -f qcow2 /var/lib/libvirt/disk.qcow2 64M 2>/dev/null || { mkdir -p /var/lib/libvirt; qemu-img create -q -f qcow2 /var/lib/libvirt/disk.qcow2 64M; }\nqemu-img create -q -f raw /var/lib/libvirt/plugged.raw 8M")
	guests := []guest{
		{name: "one", kind: "kvm", devices: "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/var/lib/libvirt/disk.qcow2'/><target dev='vda' bus='virtio'/></disk>"},
		{name: "two"},
	}
	for _, g := range guests {
		uuid := m.paused(g)
		profile := "lodge-" + uuid
		if got := m.run("tr -d '\\0' </proc/" + m.pid(uuid) + "/attr/current"); got != profile+" (enforce)" {
			t.Errorf("QEMU of guest %s is confined by %q, want %s (enforce)", g.name, got, profile)
		}
		m.run("grep --quiet --fixed-strings '" + profile + " (enforce)' /sys/kernel/security/apparmor/profiles")
	}
	m.virsh("attach-disk", "one", "/var/lib/libvirt/plugged.raw", "vdb", "--subdriver", "raw")
	if got := m.virsh("domblkinfo", "one", "vdb"); !strings.Contains(got, "8388608") {
		t.Errorf("the disk that was plugged in is\n%s", got)
	}
	m.virsh("detach-disk", "one", "vdb")
	m.run("systemctl restart lodged")
	for _, g := range guests {
		m.virsh("destroy", g.name)
	}
	if denied := m.run("journalctl --dmesg --no-pager | grep 'apparmor=\"DENIED\"' || true"); denied != "" {
		t.Errorf("the kernel has denied accesses of guests or the daemon:\n%s", denied)
	}
	if left := m.run("grep ^lodge- /sys/kernel/security/apparmor/profiles || true"); left != "" {
		t.Errorf("profiles are left of guests that have ended:\n%s", left)
	}
}
