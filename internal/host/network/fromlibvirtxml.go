package network

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// fromLibvirtXML converts libvirtxml's types to a definition. Values without a field are found by converting the
// definition back.
func fromLibvirtXML(x *libvirtxml.Network) (Definition, error) {
	r := reader{}
	d := Definition{
		Name: x.Name, UUID: strings.ToLower(x.UUID), IPv6: r.yesNo("ipv6", x.IPv6),
		Forward: r.forward(x.Forward),
	}
	d.Bridge = r.bridge(x.Bridge, d.Managed())
	if x.MTU != nil {
		d.MTU = int(min(x.MTU.Size, 1<<20))
	}
	if x.MAC != nil {
		d.MAC = r.mac(x.MAC.Address)
	}
	if x.Domain != nil {
		d.Domain = Domain{Name: x.Domain.Name, LocalOnly: r.yesNo("localOnly", x.Domain.LocalOnly)}
	}
	if x.DNS != nil {
		d.DNS = r.dns(x.DNS)
	}
	if x.PortOptions != nil {
		d.Isolated = r.yesNo("isolated", x.PortOptions.Isolated)
	}
	for i := range x.IPs {
		d.IPs = append(d.IPs, r.ip(&x.IPs[i]))
	}
	for _, route := range x.Routes {
		d.Routes = append(d.Routes, r.route(route))
	}
	for _, g := range x.PortGroups {
		d.PortGroups = append(d.PortGroups, PortGroup{Name: g.Name, Default: r.yesNo("default", g.Default)})
	}
	if x.DnsmasqOptions != nil {
		for _, o := range x.DnsmasqOptions.Option {
			d.Options = append(d.Options, o.Value)
		}
	}
	return d, r.err
}

// reader parses values and keeps the first error.
type reader struct{ err error }

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fault.New(fault.Invalid, fault.XML, format, args...)
	}
}

func (r *reader) yesNo(what, s string) device.Switch {
	switch s {
	case "":
		return device.Unset
	case "yes":
		return device.On
	case "no":
		return device.Off
	}
	r.fail("%s is %q, not yes or no", what, s)
	return device.Unset
}

// mac gives an address in lower case with two digits an octet.
func (r *reader) mac(s string) string {
	if s == "" {
		return ""
	}
	mac, err := device.ParseMAC(s)
	if err != nil {
		r.fail("%v", err)
	}
	return mac.String()
}

func (r *reader) addr(what, s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		r.fail("%s %q is no IP address", what, s)
	}
	return a.Unmap()
}

// bits gives the length of a prefix that is written as such or as a mask; with
// neither, that of the address's class.
func (r *reader) bits(a netip.Addr, prefix uint, mask string) int {
	switch {
	case mask != "" && prefix != 0:
		r.fail("address %s has both a netmask and a prefix", a)
	case mask != "":
		m := r.addr("netmask", mask)
		ones, size := net.IPMask(m.AsSlice()).Size()
		if !m.Is4() || !a.Is4() || size == 0 {
			r.fail("%q is no netmask for %s", mask, a)
		}
		return ones
	case prefix != 0:
		return int(min(prefix, 1000))
	case a.Is4():
		return classBits(a)
	}
	return 64
}

func classBits(a netip.Addr) int {
	switch first := a.As4()[0]; {
	case first < 128:
		return 8
	case first < 192:
		return 16
	}
	return 24
}

func (r *reader) forward(x *libvirtxml.NetworkForward) Forward {
	if x == nil || Mode(x.Mode) == forwardIsolated {
		return Forward{}
	}
	f := Forward{Mode: Mode(x.Mode)}
	switch f.Mode {
	case ForwardNone:
		f.Mode = ForwardNAT // the default mode of <forward>
	case ForwardNAT, ForwardRoute, ForwardOpen, ForwardBridge, ForwardPrivate, ForwardVEPA, ForwardPassthrough:
	default:
		if r.err == nil {
			r.err = fault.New(fault.Unsupported, fault.Config, "network/forward/@mode %q is not supported; use nat, route, open, bridge, private, vepa or passthrough", x.Mode)
		}
	}
	for _, i := range x.Interfaces {
		f.Interfaces = append(f.Interfaces, i.Dev)
	}
	switch {
	case x.Dev == "":
	case len(f.Interfaces) == 0:
		f.Interfaces = []string{x.Dev}
	case f.Interfaces[0] != x.Dev:
		r.fail("the network forwards to %q and names %q as the first of its interfaces", x.Dev, f.Interfaces[0])
	}
	if x.NAT != nil && f.Mode != ForwardNAT {
		r.fail("only forward mode nat has <nat>, not %q", f.Mode)
	}
	if f.Mode == ForwardNAT {
		f.NAT = r.translation(x.NAT)
	}
	return f
}

func (r *reader) translation(x *libvirtxml.NetworkForwardNAT) Translation {
	// Ports below 1024 are left to services that treat them as trusted.
	t := Translation{FirstPort: 1024, LastPort: 65535}
	if x == nil {
		return t
	}
	t.IPv6 = r.yesNo("ipv6", x.IPv6)
	for _, p := range x.Ports {
		if p.Start == 0 || p.End > 65535 || p.Start > p.End {
			r.fail("%d to %d is no range of ports", p.Start, p.End)
		}
		t.FirstPort, t.LastPort = uint16(p.Start), uint16(p.End)
	}
	for _, a := range x.Addresses {
		t.First, t.Last = r.addr("address", a.Start), r.addr("address", a.End)
		if t.First.BitLen() != t.Last.BitLen() || t.Last.Less(t.First) || !t.First.Is4() {
			r.fail("%s to %s is no range of addresses for NAT", a.Start, a.End)
		}
	}
	return t
}

func (r *reader) bridge(x *libvirtxml.NetworkBridge, managed bool) Bridge {
	if x == nil {
		return Bridge{STP: managed}
	}
	b := Bridge{Name: x.Name, STP: managed, MACTable: x.MACTableManager}
	switch x.STP {
	case "on", "":
	case "off":
		b.STP = false
	default:
		r.fail("stp is %q, not on or off", x.STP)
	}
	if x.Delay != "" {
		n, err := strconv.ParseUint(x.Delay, 10, 16)
		if err != nil {
			r.fail("delay %q is no number of seconds", x.Delay)
		}
		b.Delay = uint(n)
	}
	if b.MACTable != "" && b.MACTable != "kernel" && r.err == nil {
		r.err = fault.New(fault.Unsupported, fault.Config, "macTableManager %q is not supported; leave it to the kernel", b.MACTable)
	}
	return b
}

func (r *reader) dns(x *libvirtxml.NetworkDNS) DNS {
	d := DNS{
		Enable:            r.yesNo("enable", x.Enable),
		ForwardPlainNames: r.yesNo("forwardPlainNames", x.ForwardPlainNames),
	}
	for _, f := range x.Forwarders {
		d.Forwarders = append(d.Forwarders, Forwarder{Domain: f.Domain, Address: r.addr("forwarder", f.Addr)})
	}
	for _, t := range x.TXTs {
		d.TXTs = append(d.TXTs, TXT{Name: t.Name, Value: t.Value})
	}
	for _, h := range x.Host {
		d.Hosts = append(d.Hosts, r.nameHost(h))
	}
	for _, s := range x.SRVs {
		d.SRVs = append(d.SRVs, srv(s))
	}
	return d
}

func (r *reader) nameHost(x libvirtxml.NetworkDNSHost) NameHost {
	h := NameHost{Address: r.addr("ip", x.IP)}
	for _, n := range x.Hostnames {
		h.Names = append(h.Names, strings.TrimSpace(n.Hostname))
	}
	return h
}

func srv(x libvirtxml.NetworkDNSSRV) SRV {
	return SRV{
		Service: x.Service, Protocol: x.Protocol, Domain: x.Domain, Target: x.Target,
		Port: x.Port, Priority: x.Priority, Weight: x.Weight,
	}
}

func (r *reader) ip(x *libvirtxml.NetworkIP) IP {
	a := r.addr("address", x.Address)
	if !a.IsValid() {
		r.fail("an <ip> of the network has no address")
		return IP{}
	}
	ip := IP{
		Address: a, Bits: r.bits(a, x.Prefix, x.Netmask), Netmask: x.Netmask != "" || x.Prefix == 0 && a.Is4(),
		Family: x.Family, LocalPTR: r.yesNo("localPtr", x.LocalPtr),
	}
	r.family(x.Family, a)
	if x.TFTP != nil {
		ip.TFTPRoot = x.TFTP.Root
	}
	if x.DHCP != nil {
		ip.DHCP = r.dhcp(x.DHCP)
	}
	return ip
}

func (r *reader) family(written string, a netip.Addr) {
	is := "ipv6"
	if a.Is4() {
		is = "ipv4"
	}
	if written != "" && written != is {
		r.fail("address %s is not of family %q", a, written)
	}
}

func (r *reader) dhcp(x *libvirtxml.NetworkDHCP) *DHCP {
	d := &DHCP{}
	for _, p := range x.Ranges {
		d.Ranges = append(d.Ranges, r.dhcpRange(p))
	}
	for _, h := range x.Hosts {
		d.Hosts = append(d.Hosts, r.dhcpHost(h))
	}
	if len(x.Bootp) > 0 {
		d.Bootp = &Bootp{File: x.Bootp[0].File, Server: x.Bootp[0].Server}
	}
	return d
}

func (r *reader) dhcpRange(x libvirtxml.NetworkDHCPRange) Range {
	return Range{First: r.addr("start", x.Start), Last: r.addr("end", x.End), Lease: r.lease(x.Lease)}
}

func (r *reader) dhcpHost(x libvirtxml.NetworkDHCPHost) Host {
	return Host{ID: x.ID, MAC: r.mac(x.MAC), Name: x.Name, Address: r.addr("ip", x.IP), Lease: r.lease(x.Lease)}
}

func (r *reader) lease(x *libvirtxml.NetworkDHCPLease) *LeaseTime {
	if x == nil {
		return nil
	}
	switch x.Unit {
	case "", "seconds", "minutes", "hours":
	default:
		r.fail("lease time unit %q is not seconds, minutes or hours", x.Unit)
	}
	return &LeaseTime{Count: x.Expiry, Unit: x.Unit}
}

func (r *reader) route(x libvirtxml.NetworkRoute) Route {
	a := r.addr("route address", x.Address)
	out := Route{Family: x.Family, Netmask: x.Netmask != "", Gateway: r.addr("gateway", x.Gateway)}
	if !a.IsValid() || !out.Gateway.IsValid() || a.BitLen() != out.Gateway.BitLen() {
		r.fail("a <route> needs an address and a gateway of one family")
		return out
	}
	r.family(x.Family, a)
	out.Destination = netip.PrefixFrom(a, r.bits(a, x.Prefix, x.Netmask))
	if x.Metric != "" {
		n, err := strconv.ParseUint(x.Metric, 10, 31)
		if err != nil || n == 0 {
			r.fail("route metric %q is no number above 0", x.Metric)
		}
		out.Metric = int(n)
	}
	return out
}
