package qemu

import (
	"strings"
	"testing"
)

// A device that cannot be prepared reports the reason, and all others can be prepared.
func TestPreparable(t *testing.T) {
	c := testCapabilities(t)
	const doc = `<domain type='qemu'><name>waits</name><uuid>00000000-1111-4222-8333-444444440001</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><devices>DEVICES</devices></domain>`
	for what, test := range map[string]struct{ old, new, refused string }{
		"nothing else":     {"DEVICES", "", ""},
		"controllers":      {"DEVICES", "<controller type='scsi' model='virtio-scsi'/><controller type='usb' model='qemu-xhci'/>", ""},
		"an empty drive":   {"DEVICES", "<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>", ""},
		"QEMU's own net":   {"DEVICES", "<interface type='user'><mac address='52:54:00:00:00:01'/></interface>", ""},
		"a terminal":       {"DEVICES", "<serial type='pty'/>", ""},
		"a kernel":         {"</type>", "</type><kernel>/boot/vmlinuz</kernel>", ""},
		"a disk":           {"DEVICES", "<disk type='file' device='disk'><source file='/images/a.raw'/><target dev='vda' bus='virtio'/></disk>", "the disk"},
		"an interface":     {"DEVICES", "<interface type='bridge'><source bridge='br0'/><mac address='52:54:00:00:00:01'/></interface>", "the interface"},
		"a display":        {"DEVICES", "<graphics type='vnc' autoport='yes'/>", "graphics"},
		"a socket":         {"DEVICES", "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>", "channel"},
		"a log":            {"DEVICES", "<serial type='file'><source path='/tmp/serial.log'/></serial>", "serial"},
		"a device":         {"DEVICES", "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1234'/><product id='0x5678'/></source></hostdev>", "hostdev"},
		"KVM":              {"'qemu'", "'kvm'", "type kvm"},
		"locked memory":    {"<os>", "<memoryBacking><locked/></memoryBacking><os>", "memory"},
		"huge pages":       {"<os>", "<memoryBacking><hugepages/></memoryBacking><os>", "memory"},
		"a local clock":    {"<devices>", "<clock offset='localtime'/><devices>", "localtime"},
		"a date":           {"<devices>", "<clock offset='absolute' start='0'/><devices>", "absolute"},
		"a standing clock": {"<devices>", "<clock offset='utc'><timer name='rtc' track='guest'/></clock><devices>", "guest"},
		"own arguments":    {"</domain>", "<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'><arg value='-full-screen'/></commandline></domain>", "user's own"},
	} {
		text := strings.Replace(strings.Replace(doc, test.old, test.new, 1), "DEVICES", "", 1)
		def, err := understand(text, c)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		switch err := Preparable(def); {
		case test.refused == "" && err != nil:
			t.Errorf("%s: %v", what, err)
		case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
			t.Errorf("%s: got %v, want it refused for %q", what, err, test.refused)
		}
	}
}
