package network

import (
	"cmp"
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

// conflictingRoute returns a route to the same addresses or a part of them: the network would take its traffic. Wider
// routes keep the rest.
func conflictingRoute(p netip.Prefix, routes []hostnet.Route) *hostnet.Route {
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
	return overlappingLink(p, routes, func(device string) bool { return device != but }), nil
}

// overlappingLink is RouteInto with given routes and links.
func overlappingLink(p netip.Prefix, routes []hostnet.Route, meant func(device string) bool) string {
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
		if other == n || other.startingDefinition == nil {
			continue
		}
		for _, ip := range d.IPs {
			for _, theirs := range other.startingDefinition.IPs {
				if ip.Prefix().Overlaps(theirs.Prefix()) {
					return addressesInUse(ip, other.startingDefinition.Bridge.Name)
				}
			}
		}
	}
	n.startingDefinition = d
	return nil
}

// otherBridges are the bridges of other running networks.
func (n *Network) otherBridges() map[string]bool {
	bridges := map[string]bool{}
	for _, other := range n.networks.List() {
		if live := other.View().Live; other != n && live != nil && live.Managed() {
			bridges[live.Bridge.Name] = true
		}
	}
	return bridges
}
