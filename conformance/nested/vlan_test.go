package nested

import "testing"

// vlans creates two other hosts, the name spaces far10 and far20, at the far end of a trunk. The host's bridge is
// in VLAN 10 of the trunk.
const vlans = `
modprobe 8021q
for vlan in 10 20; do ip netns add far$vlan; done
ip link add trunk type veth peer name far
ip link set trunk up
ip link set far up
ip link add link trunk name trunk.10 type vlan id 10
ip link add bridge10 type bridge
ip link set trunk.10 master bridge10 up
ip link set bridge10 up
for vlan in 10 20; do
	ip link add link far name far.$vlan type vlan id $vlan
	ip link set far.$vlan netns far$vlan
	ip -n far$vlan link set far.$vlan up
done
`

// A guest is on a bridge over a VLAN of a trunk. It can be reached from that VLAN, and not from another one.
func TestNestedVLAN_BridgeOverVLAN(t *testing.T) {
	m := begin(t)
	m.run(vlans)
	m.boot(guest{name: "one", devices: `<interface type='bridge'><mac address='52:54:00:00:00:10'/><source bridge='bridge10'/><model type='virtio'/></interface>`}, "")
	// The guest's link-local address, derived from its card's MAC address.
	const address = "fe80::5054:ff:fe00:10"
	m.eventually("ip netns exec far10 ping -6 -c 1 -W 2 " + address + "%far.10")
	m.run("! ip netns exec far20 ping -6 -c 3 -W 2 " + address + "%far.20")
	m.run("ip netns exec far10 ping -6 -c 1 -W 5 " + address + "%far.10")
	m.virsh("destroy", "one")
	if links := m.run("ip -brief link show master bridge10 | cut --delimiter=@ --fields=1"); links != "trunk.10" {
		t.Errorf("on the bridge there is left %s", links)
	}
}

// The same with a bridge that filters VLANs and carries the whole trunk. The administrator puts the guest's port
// into one of the VLANs.
func TestNestedVLAN_FilteringBridge(t *testing.T) {
	m := begin(t)
	m.run(vlans + `
ip link set trunk.10 nomaster down
ip link delete trunk.10
ip link set bridge10 type bridge vlan_filtering 1 vlan_default_pvid 0
ip link set trunk master bridge10
bridge vlan add dev trunk vid 10
bridge vlan add dev trunk vid 20`)
	m.boot(guest{name: "one", devices: `<interface type='bridge'><mac address='52:54:00:00:00:20'/><source bridge='bridge10'/><target dev='port20'/><model type='virtio'/></interface>`},
		"bridge vlan add dev port20 vid 20 pvid untagged")
	const address = "fe80::5054:ff:fe00:20"
	m.eventually("ip netns exec far20 ping -6 -c 1 -W 2 " + address + "%far.20")
	m.run("! ip netns exec far10 ping -6 -c 3 -W 2 " + address + "%far.10")
}
