package nested

import (
	"strings"
	"testing"
)

// A guest boots under KVM. udev handles an event of /dev/kvm for each machine that KVM creates, and these events
// must not make the daemon probe QEMU again.
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
