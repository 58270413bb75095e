package conformance

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// codesOfMissing starts guests that name objects missing on the host, and prints the error codes of the refusals.
const codesOfMissing = `
import libvirt, sys
libvirt.registerErrorHandler(lambda *a: None, None)
c = libvirt.open(sys.argv[1])
codes = []
def code(call):
    try: call()
    except libvirt.libvirtError as e: codes.append(e.get_error_code())
for device in ("<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/nosuch.img'/><target dev='vda' bus='virtio'/></disk>",
               "<interface type='bridge'><source bridge='nosuchbr'/></interface>", "<interface type='network'><source network='nosuch'/></interface>"):
    d = c.defineXML("<domain type='qemu'><name>lacks</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>"
        "<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>" + device + "</devices></domain>")
    code(d.create)
    d.undefine()
pool = lambda target, name="lacks": "<pool type='dir'><name>%s</name><target><path>%s</path></target></pool>" % (name, target)
p = c.storagePoolDefineXML(pool("/nosuch/folder"), 0)
code(lambda: p.create(0))
p.undefine()
code(lambda: c.storagePoolCreateXML(pool("/nosuch/folder"), 0))
t = c.storagePoolCreateXML(pool(sys.argv[2], "passing"), libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD)
code(lambda: t.setAutostart(1))
code(lambda: t.createXML("<volume><name>v</name><capacity>4096</capacity><target><format type='qcow2'/></target><backingStore><path>/nosuch.img</path><format type='raw'/></backingStore></volume>", 0))
t.destroy()
print(codes)
`

// TestFreshDaemon checks the objects of a daemon on an empty data directory. It has libvirt's network "default",
// which an administrator can remove permanently, and no pool until the first tile needs one. Errors about objects
// missing on the host have the codes for that.
func TestFreshDaemon(t *testing.T) {
	needs(t, "dnsmasq", "nft", "qemu-img")
	d := start(t)
	contains(t, "net-list --all", strings.Join(strings.Fields(d.virsh(t, "net-list", "--all")), " "), "default inactive no yes")
	contains(t, "net-dumpxml default", d.virsh(t, "net-dumpxml", "default"), "<forward mode='nat'>", "<bridge name='virbr0' stp='on' delay='0'/>",
		"<ip address='192.168.122.1' netmask='255.255.255.0'>", "<range start='192.168.122.2' end='192.168.122.254'/>")
	if pools := d.virsh(t, "pool-list", "--all", "--name"); pools != "" {
		t.Errorf("there is a pool already: %s", pools)
	}
	d.virsh(t, "net-start", "default")
	contains(t, "the bridge", d.output(t, "ip", "-o", "addr", "show", "virbr0"), "192.168.122.1/24")

	// The first tile of README, and the pool that its volumes need.
	contains(t, "the first tile", d.set(t, 0, "tile", "create", "shop", "--template", "../packaging/tile.xml", "--count", "1"), "made pool default in "+filepath.Join(d.data, "images"))
	contains(t, "the pool", strings.Join(strings.Fields(d.virsh(t, "pool-list", "--details")), " "), "default running yes yes")
	d.set(t, 0, "tile", "remove", "shop")

	const python = "/usr/bin/python3"
	if exec.CommandContext(t.Context(), python, "-c", "import libvirt").Run() == nil {
		contains(t, "codes of what is missing", d.output(t, python, "-c", codesOfMissing, d.uri(), filepath.Join(d.dir, "passing")), "[38, 38, 43, 38, 38, 1, 38]")
	}

	d.virsh(t, "net-destroy", "default")
	d.virsh(t, "net-undefine", "default")
	d.signal(t, "TERM")
	d.launch(t)
	if networks := d.virsh(t, "net-list", "--all", "--name"); networks != "" {
		t.Errorf("the network that was removed is back: %s", networks)
	}
}
