package network

import (
	"cmp"
	"crypto/rand"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

// RandomMAC returns a random address in QEMU's range (52:54:00).
func RandomMAC() string {
	b := [6]byte{0x52, 0x54, 0x00}
	_, _ = rand.Read(b[3:]) // never fails
	return net.HardwareAddr(b[:]).String()
}

// bridgePattern is the pattern of libvirt's bridge names.
const bridgePattern = "virbr%d"

// isBridgePattern says whether a bridge's name is a pattern such as "virbr%d".
func isBridgePattern(name string) bool {
	return strings.Count(name, "%") == 1 && strings.Contains(name, "%d")
}

// patternOf returns the pattern of a chosen name: the name's last digits are its number.
func patternOf(name string) string {
	if row := strings.TrimRight(name, "0123456789"); row != "" && row != name {
		return row + "%d"
	}
	return bridgePattern
}

// freeBridge finds an unused name of a pattern.
func freeBridge(row string, taken func(string) bool) (string, error) {
	for i := range 2 * maxNetworks {
		name := strings.Replace(row, "%d", strconv.Itoa(i), 1)
		if hostnet.CheckName(name) != nil { // the numbers have become too long for the kernel
			break
		}
		if !taken(name) {
			return name, nil
		}
	}
	return "", fault.New(fault.NoCapacity, fault.Network, "no bridge name like %q is free", row)
}

// DefaultNetwork returns the document of the default network: NAT behind 192.168.122.0/24, or the next such
// network that the host has no route to.
func DefaultNetwork() (string, error) {
	routes, err := hostnet.Routes()
	if err != nil {
		return "", err
	}
	for i := range 200 {
		third := byte(i + 122)
		host := netip.AddrFrom4([4]byte{192, 168, third, 1})
		if clash(netip.PrefixFrom(host, 24), routes) == nil {
			d := defaultNetwork(third)
			return d.XML(0)
		}
	}
	return "", fault.New(fault.NoCapacity, fault.Network, "the host has routes into every network of 192.168.0.0/16; define a network yourself")
}

func defaultNetwork(third byte) Definition {
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, third, last}) }
	return Definition{
		Name:    "default",
		Forward: Forward{Mode: ForwardNAT, NAT: Translation{FirstPort: 1024, LastPort: 65535}},
		Bridge:  Bridge{STP: true},
		IPs: []IP{{
			Address: at(1), Bits: 24, Netmask: true,
			DHCP: &DHCP{Ranges: []Range{{First: at(2), Last: at(254)}}},
		}},
	}
}

// clash returns a route to the same addresses or a part of them: the network would take its traffic. Wider
// routes keep the rest.
func clash(p netip.Prefix, routes []hostnet.Route) *hostnet.Route {
	for i, r := range routes {
		if r.Destination.Bits() >= p.Bits() && p.Contains(r.Destination.Addr()) {
			return &routes[i]
		}
	}
	return nil
}

// RouteInto returns the link that the host uses to route to some of the addresses, or to a larger range; empty:
// only the default route does. A network with these addresses would take that traffic. The network's own
// bridge, but, does not count.
func RouteInto(p netip.Prefix, but string) (device string, err error) {
	routes, err := hostnet.Routes()
	if err != nil {
		return "", err
	}
	return overlap(p, routes, func(device string) bool { return device != but }), nil
}

// overlap is RouteInto with given routes and links.
func overlap(p netip.Prefix, routes []hostnet.Route, meant func(device string) bool) string {
	for _, r := range routes {
		if r.Destination.Overlaps(p) && !r.Destination.Addr().IsLinkLocalUnicast() && meant(r.Device) {
			return cmp.Or(r.Device, "several links")
		}
	}
	return ""
}

// claimAddresses reserves a starting network's addresses against concurrent starts, which have no routes yet.
// The reservation holds until the end of the turn.
func (s *Networks) claimAddresses(n *Network, d *Definition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.byUUID {
		if other == n || other.starting == nil {
			continue
		}
		for _, ip := range d.IPs {
			for _, theirs := range other.starting.IPs {
				if ip.Prefix().Overlaps(theirs.Prefix()) {
					return inUse(ip, other.starting.Bridge.Name)
				}
			}
		}
	}
	n.starting = d
	return nil
}

// otherBridges are the bridges of other running networks.
func (n *Network) otherBridges() map[string]bool {
	bridges := map[string]bool{}
	for _, other := range n.home.List() {
		if live := other.View().Live; other != n && live != nil && live.Managed() {
			bridges[live.Bridge.Name] = true
		}
	}
	return bridges
}
