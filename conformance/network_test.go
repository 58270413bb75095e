package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// lan defines and starts a NAT network 10.78.N.0/24.
func (d *daemon) lan(t *testing.T, name string, n int) {
	t.Helper()
	d.virsh(t, "net-define", d.file(t, name+".xml", fmt.Sprintf(`<network>
  <name>%s</name>
  <forward mode='nat'/>
  <bridge name='br-%s'/>
  <ip address='10.78.%d.1' netmask='255.255.255.0'>
    <dhcp><range start='10.78.%[3]d.10' end='10.78.%[3]d.99'/></dhcp>
  </ip>
</network>
`, name, name, n)))
	d.virsh(t, "net-start", name)
}

func TestNetworks(t *testing.T) {
	needs(t, "dnsmasq", "nft")
	d := start(t)
	d.lan(t, "office", 2)
	contains(t, "net-list", d.virsh(t, "net-list"), "office", "active", "no", "yes")
	contains(t, "net-info", d.virsh(t, "net-info", "office"), "Name:           office", "Active:         yes", "Persistent:     yes", "Autostart:      no", "Bridge:         br-office")
	contains(t, "net-dumpxml", d.virsh(t, "net-dumpxml", "office"), "<uuid>", "<forward mode='nat'>", "<bridge name='br-office' stp='on' delay='0'/>",
		"<mac address='52:54:00:", "<range start='10.78.2.10' end='10.78.2.99'/>")
	contains(t, "the bridge", d.output(t, "ip", "-o", "addr", "show", "br-office"), "10.78.2.1/24")
	contains(t, "the firewall", d.output(t, "nft", "list", "ruleset"), "10.78.2.0/24", "masquerade")

	d.virsh(t, "net-update", "office", "add", "ip-dhcp-host", "<host mac='52:54:00:00:aa:01' name='desk' ip='10.78.2.77'/>", "--live", "--config")
	contains(t, "the update", d.virsh(t, "net-dumpxml", "office"), "<host mac='52:54:00:00:aa:01' name='desk' ip='10.78.2.77'/>")
	g := d.boot(t, shape{name: "desk", devices: "<interface type='network'><mac address='52:54:00:00:aa:01'/><source network='office'/><model type='virtio'/></interface>"})
	eventually(t, "the reserved address", func() bool {
		return strings.Contains(d.virsh(t, "net-dhcp-leases", "office"), "10.78.2.77/24")
	})
	// The lease exists a moment before the guest has configured the address.
	eventually(t, "the address in the guest", func() bool { return strings.Contains(g.shell(t, "ip -4 address show eth0"), "10.78.2.77") })
	contains(t, "the network's name server", g.shell(t, "nslookup -type=a desk 10.78.2.1"), "10.78.2.77")
	contains(t, "a stranger's bridge", d.mustFail(t, "net-define", d.file(t, "clash.xml",
		"<network><name>clash</name><bridge name='br-office'/><ip address='10.78.9.1' netmask='255.255.255.0'/></network>")), "br-office")

	d.virsh(t, "net-autostart", "office")
	contains(t, "net-info", d.virsh(t, "net-info", "office"), "Autostart:      yes")
	d.virsh(t, "destroy", "desk")
	d.virsh(t, "net-destroy", "office")
	contains(t, "net-list --all", d.virsh(t, "net-list", "--all"), "office", "inactive")
	d.virsh(t, "net-undefine", "office")
	if list := d.virsh(t, "net-list", "--all"); strings.Contains(list, "office") {
		t.Errorf("left: %s", list)
	}
}

func TestNetwork_Isolated(t *testing.T) {
	onlyInClients(t)
	needs(t, "dnsmasq", "nft")
	d := start(t)
	d.virsh(t, "net-create", d.file(t, "cell.xml", `<network><name>cell</name><bridge name='br-cell'/>
  <ip address='10.78.3.1' netmask='255.255.255.0'><dhcp><range start='10.78.3.10' end='10.78.3.20'/></dhcp></ip></network>`))
	contains(t, "net-info", d.virsh(t, "net-info", "cell"), "Persistent:     no")
	// Another address of this world, which the guest must not reach.
	d.output(t, "sh", "-c", "ip link add outside type bridge && ip address add 10.99.0.1/24 dev outside && ip link set outside up")
	g := d.boot(t, shape{name: "cell", devices: "<interface type='network'><source network='cell'/><model type='virtio'/></interface>"})
	eventually(t, "an address", func() bool { return strings.Contains(g.shell(t, "ip -4 address show eth0"), "10.78.3.") })
	if out := g.shell(t, "ip route add default via 10.78.3.1; ping -c 1 -W 2 10.99.0.2 > /dev/null 2>&1 && echo through || echo stopped"); out != "stopped" {
		t.Errorf("traffic out of the isolated network is %s", out)
	}
	d.output(t, "ip", "link", "delete", "outside")
}
