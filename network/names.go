package network

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/link"
)

// RandomMAC gives an address of the range that QEMU guests use.
func RandomMAC() string {
	b := [6]byte{0x52, 0x54, 0x00}
	_, _ = rand.Read(b[3:]) // never fails
	return net.HardwareAddr(b[:]).String()
}

// freeBridge searches a name of libvirt's row that nobody has.
func freeBridge(taken func(string) bool) (string, error) {
	for i := range 2 * maxNetworks {
		if name := fmt.Sprintf("virbr%d", i); !taken(name) {
			return name, nil
		}
	}
	return "", fault.New(fault.NoCapacity, fault.Network, "no bridge name is free")
}

// DefaultNetwork gives the document of the network that guests use when nobody
// says otherwise: NAT behind 192.168.122.0/24, or the next such network that
// the host has no route to.
func DefaultNetwork() (string, error) {
	routes, err := link.Routes()
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
func clash(p netip.Prefix, routes []link.Route) *link.Route {
	for i, r := range routes {
		if r.Destination.Bits() >= p.Bits() && p.Contains(r.Destination.Addr()) {
			return &routes[i]
		}
	}
	return nil
}
