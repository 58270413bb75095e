package hostnet

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Route is one entry of the host's main routing table.
type Route struct {
	Destination netip.Prefix // never the default route
	Device      string       // "" for one without a single device
}

// Routes gives the routes of the main table except default routes and those
// that lead nowhere.
func Routes() ([]Route, error) {
	routes, names, err := listRoutes(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, r := range routes {
		p, ok := prefixOf(r.Dst)
		if ok && p.Bits() > 0 && r.Type == unix.RTN_UNICAST {
			out = append(out, Route{Destination: p.Masked(), Device: names[r.LinkIndex]})
		}
	}
	return out, nil
}

// learntRouters gives the names of the links on which the host has default routes from
// routers' advertisements.
func learntRouters() ([]string, error) {
	routes, names, err := listRoutes(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range routes {
		if to, _ := prefixOf(r.Dst); to.Bits() <= 0 { // of none, too
			out = append(out, names[r.LinkIndex])
		}
	}
	return out, nil
}

// listRoutes returns the routes that match the filtered fields of like, and the names of
// all links by their indexes.
func listRoutes(family int, like *netlink.Route, by uint64) (routes []netlink.Route, names map[int]string, err error) {
	routes, err = dump(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, like, by) })
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot list routes")
	}
	links, err := All()
	if err != nil {
		return nil, nil, err
	}
	names = make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	return routes, names, nil
}

// AddRoute adds a route to a destination through a gateway on a link.
func AddRoute(name string, to netip.Prefix, via netip.Addr, metric int) error {
	return change(name, "add route "+to.String()+" to", func(l netlink.Link) error {
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: ipNet(to.Masked()), Gw: via.AsSlice(), Priority: metric,
		})
	})
}

// Neighbour is one entry of the host's ARP or neighbour discovery table.
type Neighbour struct {
	Address netip.Addr
	MAC     net.HardwareAddr
	Link    int // index of the link it was heard on
}

// Neighbours gives all entries that carry a hardware address, IPv4 and IPv6.
func Neighbours() ([]Neighbour, error) {
	list, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the neighbour table")
	}
	const heard = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT
	var out []Neighbour
	for _, n := range list {
		addr, ok := netip.AddrFromSlice(n.IP)
		if ok && len(n.HardwareAddr) == 6 && n.State&heard != 0 {
			out = append(out, Neighbour{Address: addr.Unmap(), MAC: n.HardwareAddr, Link: n.LinkIndex})
		}
	}
	return out, nil
}
