package network

import (
	"encoding/xml"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/markup"
)

// Parse understands a network's document. What the format knows and Lodge has
// not built is refused by its path; with strict set, so is what the format does
// not know. The result is checked but not completed: UUID, bridge name and MAC
// may be empty.
func Parse(doc string, strict bool) (Definition, error) {
	submitted, err := markup.Parse(doc)
	if err != nil {
		return Definition{}, err
	}
	if submitted.Name != "network" {
		return Definition{}, fault.New(fault.Invalid, fault.XML, "the document describes a %q, not a network", submitted.Name)
	}
	var x libvirtxml.Network
	if err := x.Unmarshal(doc); err != nil {
		return Definition{}, fault.Wrap(err, fault.Invalid, fault.XML, "cannot read the network's document")
	}
	d, err := understand(&x)
	if err != nil {
		return Definition{}, err
	}
	d.takeTexts(submitted)
	if err := d.refuseLost(submitted, &x, strict); err != nil {
		return Definition{}, err
	}
	return d, d.check()
}

// takeTexts takes what libvirtxml has no words for, or would not keep whole.
func (d *Definition) takeTexts(submitted *markup.Element) {
	for _, e := range submitted.Elements("title", "description", "metadata") {
		switch e.Name {
		case "title":
			d.Title = e.Text()
		case "description":
			d.Description = e.Text()
		case "metadata":
			d.Metadata = markup.FormatInner(e)
		}
	}
}

func (d *Definition) refuseLost(submitted *markup.Element, x *libvirtxml.Network, strict bool) error {
	known, err := tree(x)
	if err != nil {
		return err
	}
	understood, err := tree(d.describe())
	if err != nil {
		return err
	}
	if lost := markup.Unbuilt(saying(submitted), known, understood); len(lost) > 0 {
		return fault.New(fault.Unsupported, fault.Config, "network %q uses what is not supported: %s", d.Name, strings.Join(lost, ", "))
	}
	if !strict {
		return nil
	}
	for _, path := range markup.Unknown(submitted, known) {
		if path != "title" && path != "description" && path != "@connections" {
			return fault.New(fault.Invalid, fault.XML, "the network's document holds an unknown element or attribute: %s", path)
		}
	}
	return nil
}

// saying gives a document without the elements that say nothing.
func saying(root *markup.Element) *markup.Element {
	out := *root
	out.Children = slices.DeleteFunc(slices.Clone(root.Children), func(n markup.Node) bool {
		e, ok := n.(*markup.Element)
		return ok && len(e.Attrs)+len(e.Children) == 0
	})
	return &out
}

func tree(x *libvirtxml.Network) (*markup.Element, error) {
	text, err := markup.Format(x)
	if err != nil {
		return nil, err
	}
	return markup.Parse(text)
}

// XML is the document of a definition, as libvirt prints it, with the number
// of NICs that are attached.
func (d *Definition) XML(connections int) (string, error) {
	root, err := tree(d.describe())
	if err != nil {
		return "", err
	}
	arrange(root)
	if connections > 0 {
		root.Attrs = append(root.Attrs, markup.Attr{Name: "connections", Value: strconv.Itoa(connections)})
	}
	var texts []markup.Node
	for _, t := range [][2]string{{"title", d.Title}, {"description", d.Description}} {
		if t[1] != "" {
			texts = append(texts, &markup.Element{Name: t[0], Children: []markup.Node{markup.Text(t[1])}})
		}
	}
	at := len(root.Elements("name", "uuid"))
	root.Children = append(root.Children[:at:at], append(texts, root.Children[at:]...)...)
	return markup.Format(root)
}

// libvirtOrder is the order in which libvirt prints the attributes and the
// elements of some elements, where that of libvirtxml is another.
var libvirtOrder = map[string][]string{
	"forward":   {"dev", "mode"},
	"ip":        {"family", "address", "netmask", "prefix", "localPtr", "tftp", "dhcp"},
	"dns":       {"enable", "forwardPlainNames", "forwarder", "txt", "srv", "host"},
	"srv":       {"service", "protocol", "domain", "target", "port", "priority", "weight"},
	"portgroup": {"name", "default"},
}

func arrange(e *markup.Element) {
	if order, ok := libvirtOrder[e.Name]; ok {
		slices.SortStableFunc(e.Attrs, func(a, b markup.Attr) int {
			return slices.Index(order, a.Name) - slices.Index(order, b.Name)
		})
		slices.SortStableFunc(e.Children, func(a, b markup.Node) int { return place(order, a) - place(order, b) })
	}
	for _, c := range e.Elements() {
		if c.Name != "metadata" {
			arrange(c)
		}
	}
}

func place(order []string, n markup.Node) int {
	if e, ok := n.(*markup.Element); ok {
		return slices.Index(order, e.Name)
	}
	return -1
}

func understand(x *libvirtxml.Network) (Definition, error) {
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
		d.MAC = strings.ToLower(x.MAC.Address)
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

// reader turns words into values and keeps the first thing that was wrong.
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
	if x == nil {
		return Forward{}
	}
	f := Forward{Mode: Mode(x.Mode)}
	switch f.Mode {
	case ForwardNone:
		f.Mode = ForwardNAT // the mode that <forward> without one has always meant
	case ForwardNAT, ForwardRoute, ForwardOpen, ForwardBridge, ForwardPrivate, ForwardVEPA, ForwardPassthrough:
	default:
		if r.err == nil {
			r.err = fault.New(fault.Unsupported, fault.Config, "forward mode %q is not supported", x.Mode)
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
	// Ports below 1024 are left to services that trust them.
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
	return Host{ID: x.ID, MAC: strings.ToLower(x.MAC), Name: x.Name, Address: r.addr("ip", x.IP), Lease: r.lease(x.Lease)}
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

// describe is the inverse of understand.
func (d *Definition) describe() *libvirtxml.Network {
	x := &libvirtxml.Network{
		Name: d.Name, UUID: d.UUID, IPv6: word(d.IPv6),
		Forward: d.Forward.describe(), Bridge: d.Bridge.describe(d.Managed()), DNS: d.DNS.describe(),
	}
	if d.Metadata != "" {
		x.Metadata = &libvirtxml.NetworkMetadata{XML: d.Metadata}
	}
	if d.MTU != 0 {
		x.MTU = &libvirtxml.NetworkMTU{Size: uint(d.MTU)}
	}
	if d.MAC != "" {
		x.MAC = &libvirtxml.NetworkMAC{Address: d.MAC}
	}
	if d.Domain != (Domain{}) {
		x.Domain = &libvirtxml.NetworkDomain{Name: d.Domain.Name, LocalOnly: word(d.Domain.LocalOnly)}
	}
	if d.Isolated != device.Unset {
		x.PortOptions = &libvirtxml.NetworkPortOptions{Isolated: word(d.Isolated)}
	}
	for _, ip := range d.IPs {
		x.IPs = append(x.IPs, ip.describe())
	}
	for _, r := range d.Routes {
		x.Routes = append(x.Routes, r.describe())
	}
	for _, g := range d.PortGroups {
		x.PortGroups = append(x.PortGroups, libvirtxml.NetworkPortGroup{Name: g.Name, Default: word(g.Default)})
	}
	if len(d.Options) > 0 {
		x.DnsmasqOptions = &libvirtxml.NetworkDnsmasqOptions{XMLName: xml.Name{}}
		for _, o := range d.Options {
			x.DnsmasqOptions.Option = append(x.DnsmasqOptions.Option, libvirtxml.NetworkDnsmasqOption{Value: o})
		}
	}
	return x
}

func word(s device.Switch) string { return [...]string{"", "yes", "no"}[s] }

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// mask writes a prefix the way it was written.
func mask(a netip.Addr, bits int, asMask bool) (prefix uint, netmask string) {
	if asMask && a.Is4() {
		return 0, net.IP(net.CIDRMask(bits, 32)).String()
	}
	return uint(bits), ""
}

func (f Forward) describe() *libvirtxml.NetworkForward {
	if f.Mode == ForwardNone {
		return nil
	}
	x := &libvirtxml.NetworkForward{Mode: string(f.Mode)}
	for i, dev := range f.Interfaces {
		if i == 0 {
			x.Dev = dev
		}
		x.Interfaces = append(x.Interfaces, libvirtxml.NetworkForwardInterface{Dev: dev})
	}
	if f.Mode == ForwardNAT {
		t := f.NAT
		x.NAT = &libvirtxml.NetworkForwardNAT{
			IPv6:  word(t.IPv6),
			Ports: []libvirtxml.NetworkForwardNATPort{{Start: uint(t.FirstPort), End: uint(t.LastPort)}},
		}
		if t.First.IsValid() {
			x.NAT.Addresses = []libvirtxml.NetworkForwardNATAddress{{Start: text(t.First), End: text(t.Last)}}
		}
	}
	return x
}

func (b Bridge) describe(managed bool) *libvirtxml.NetworkBridge {
	if !managed {
		if b.Name == "" {
			return nil
		}
		return &libvirtxml.NetworkBridge{Name: b.Name}
	}
	stp := "off"
	if b.STP {
		stp = "on"
	}
	return &libvirtxml.NetworkBridge{Name: b.Name, STP: stp, Delay: fmt.Sprint(b.Delay), MACTableManager: b.MACTable}
}

func (d DNS) describe() *libvirtxml.NetworkDNS {
	x := &libvirtxml.NetworkDNS{Enable: word(d.Enable), ForwardPlainNames: word(d.ForwardPlainNames)}
	for _, f := range d.Forwarders {
		x.Forwarders = append(x.Forwarders, libvirtxml.NetworkDNSForwarder{Domain: f.Domain, Addr: text(f.Address)})
	}
	for _, t := range d.TXTs {
		x.TXTs = append(x.TXTs, libvirtxml.NetworkDNSTXT{Name: t.Name, Value: t.Value})
	}
	for _, h := range d.Hosts {
		host := libvirtxml.NetworkDNSHost{IP: text(h.Address)}
		for _, n := range h.Names {
			host.Hostnames = append(host.Hostnames, libvirtxml.NetworkDNSHostHostname{Hostname: n})
		}
		x.Host = append(x.Host, host)
	}
	for _, s := range d.SRVs {
		x.SRVs = append(x.SRVs, libvirtxml.NetworkDNSSRV{
			Service: s.Service, Protocol: s.Protocol, Domain: s.Domain, Target: s.Target,
			Port: s.Port, Priority: s.Priority, Weight: s.Weight,
		})
	}
	empty := x.Enable == "" && x.ForwardPlainNames == "" && len(x.Forwarders)+len(x.TXTs)+len(x.Host)+len(x.SRVs) == 0
	if empty {
		return nil
	}
	return x
}

func (ip IP) describe() libvirtxml.NetworkIP {
	x := libvirtxml.NetworkIP{Address: text(ip.Address), Family: ip.Family, LocalPtr: word(ip.LocalPTR)}
	x.Prefix, x.Netmask = mask(ip.Address, ip.Bits, ip.Netmask)
	if ip.TFTPRoot != "" {
		x.TFTP = &libvirtxml.NetworkTFTP{Root: ip.TFTPRoot}
	}
	if ip.DHCP == nil {
		return x
	}
	x.DHCP = &libvirtxml.NetworkDHCP{}
	for _, r := range ip.DHCP.Ranges {
		x.DHCP.Ranges = append(x.DHCP.Ranges, libvirtxml.NetworkDHCPRange{Start: text(r.First), End: text(r.Last), Lease: r.Lease.describe()})
	}
	for _, h := range ip.DHCP.Hosts {
		x.DHCP.Hosts = append(x.DHCP.Hosts, libvirtxml.NetworkDHCPHost{
			ID: h.ID, MAC: h.MAC, Name: h.Name, IP: text(h.Address), Lease: h.Lease.describe(),
		})
	}
	if b := ip.DHCP.Bootp; b != nil {
		x.DHCP.Bootp = []libvirtxml.NetworkBootp{{File: b.File, Server: b.Server}}
	}
	return x
}

func (l *LeaseTime) describe() *libvirtxml.NetworkDHCPLease {
	if l == nil {
		return nil
	}
	return &libvirtxml.NetworkDHCPLease{Expiry: l.Count, Unit: l.Unit}
}

func (r Route) describe() libvirtxml.NetworkRoute {
	a := r.Destination.Addr()
	x := libvirtxml.NetworkRoute{Family: r.Family, Address: text(a), Gateway: text(r.Gateway)}
	x.Prefix, x.Netmask = mask(a, r.Destination.Bits(), r.Netmask)
	if r.Metric != 0 {
		x.Metric = strconv.Itoa(r.Metric)
	}
	return x
}
