package network

import (
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

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
		if conflictingRoute(netip.PrefixFrom(host, 24), routes) == nil {
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
