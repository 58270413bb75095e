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

// RandomMAC gives an address of the range that QEMU guests use.
func RandomMAC() string {
	b := [6]byte{0x52, 0x54, 0x00}
	_, _ = rand.Read(b[3:]) // never fails
	return net.HardwareAddr(b[:]).String()
}

// bridgeRow is the row of names that libvirt's networks have.
const bridgeRow = "virbr%d"

// isBridgeRow says whether a bridge's name leaves its number open, as "virbr%d" does.
func isBridgeRow(name string) bool {
	return strings.Count(name, "%") == 1 && strings.Contains(name, "%d")
}

// rowOf gives the row that a chosen name is of: its number is where the digits at the end are.
func rowOf(name string) string {
	if row := strings.TrimRight(name, "0123456789"); row != "" && row != name {
		return row + "%d"
	}
	return bridgeRow
}

// freeBridge searches a name of a row that nobody has.
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

// DefaultNetwork gives the document of the network that guests use when nobody
// says otherwise: NAT behind 192.168.122.0/24, or the next such network that
// the host has no route to.
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
	return "", fault.New(fault.NoCapacity, fault.Network, "the host has routes into every network of 192.168.0.0/16; define a network by hand")
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

// clash gives the route that a network would take traffic from: one into the
// same addresses or into some of them. Wider ones stay as they are for the
// rest.
func clash(p netip.Prefix, routes []hostnet.Route) *hostnet.Route {
	for i, r := range routes {
		if r.Destination.Bits() >= p.Bits() && p.Contains(r.Destination.Addr()) {
			return &routes[i]
		}
	}
	return nil
}

// RouteInto gives the link by which the host has a route into some of the addresses, or into more
// of which they are a part; empty: none but the default route. A network that has them would take
// what the host sends there. Its own bridge, but, is none of them.
func RouteInto(p netip.Prefix, but string) (device string, err error) {
	routes, err := hostnet.Routes()
	if err != nil {
		return "", err
	}
	return overlap(p, routes, func(device string) bool { return device != but }), nil
}

// overlap is RouteInto by routes of the links that are meant.
func overlap(p netip.Prefix, routes []hostnet.Route, meant func(device string) bool) string {
	for _, r := range routes {
		if r.Destination.Overlaps(p) && !r.Destination.Addr().IsLinkLocalUnicast() && meant(r.Device) {
			return cmp.Or(r.Device, "several links")
		}
	}
	return ""
}

// claimAddresses keeps the addresses of a network that starts from those that start beside it: no route
// tells of them yet. It runs with the turn, until the end of which that holds.
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

// othersBridges are those of the other networks that run.
func (n *Network) othersBridges() map[string]bool {
	bridges := map[string]bool{}
	for _, other := range n.home.List() {
		if live := other.View().Live; other != n && live != nil && live.Managed() {
			bridges[live.Bridge.Name] = true
		}
	}
	return bridges
}
