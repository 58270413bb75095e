package nested

import (
	"strings"
	"testing"
)

// TestNestedKVM_GuestBootsAndQEMUIsProbedOnce: a guest boots under KVM, and the
// machines that KVM makes are no reason to probe QEMU again: udev handles an event
// of /dev/kvm for each.
// Promise: G15
func TestNestedKVM_GuestBootsAndQEMUIsProbedOnce(t *testing.T) {
	m := begin(t)
	m.boot(guest{name: "one", kind: "kvm"}, "")
	if got := m.virsh("qemu-monitor-command", "one", "--hmp", "info kvm"); !strings.Contains(got, "kvm support: enabled") {
		t.Errorf("QEMU says %q", got)
	}
	m.paused(guest{name: "two", kind: "kvm"})
	m.virsh("destroy", "two")
	m.virsh("start", "two")
	m.virsh("destroy", "one")
	m.run("udevadm settle")
	m.define(guest{name: "three", kind: "kvm"})
	if got := m.run("journalctl --unit=lodged --no-pager --output=cat | grep --count 'probed QEMU'"); got != "1" {
		t.Errorf("the daemon has probed QEMU %s times, want 1", got)
	}
}
