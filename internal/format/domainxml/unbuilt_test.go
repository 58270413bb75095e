package domainxml

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// TestUnbuilt_DiskAlternative: for network disks, which QEMU could open itself, the refusal names
// the way through the host.
func TestUnbuilt_DiskAlternative(t *testing.T) {
	for disk, want := range map[string]string{
		"<disk type='network'><source protocol='rbd' name='p/i'><host name='h'/></source><target dev='vda'/></disk>":       "rbd map",
		"<disk type='network'><source protocol='iscsi' name='iqn.x/1'><host name='h'/></source><target dev='vda'/></disk>": "iscsiadm --login",
		"<disk type='network'><source protocol='gluster' name='v/i'><host name='h'/></source><target dev='vda'/></disk>":   "a mount for gluster",
		"<disk type='nvme'><source type='pci' namespace='1'><address bus='0x01'/></source><target dev='vda'/></disk>":      "type block (/dev/nvme0n1)",
		"<disk type='dir' device='floppy'><source dir='/x'/><target dev='fda'/></disk>":                                    "image of the folder",
		"<disk type='vhostuser'><source type='unix' path='/x'/><target dev='vda'/></disk>":                                 "type file, block or volume",
	} {
		doc := "<domain type='qemu'><name>a</name><memory>65536</memory><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>" + disk + "</devices></domain>"
		_, err := Parse(doc, Options{})
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pool") {
			t.Errorf("%s: %v, want %q", disk, err, want)
		}
	}
}
