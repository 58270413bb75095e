package network

import (
	"encoding/xml"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// toLibvirtXML is the inverse of fromLibvirtXML.
func (d *Definition) toLibvirtXML() *libvirtxml.Network {
	x := &libvirtxml.Network{
		Name: d.Name, UUID: d.UUID, IPv6: yesNo(d.IPv6),
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
		x.Domain = &libvirtxml.NetworkDomain{Name: d.Domain.Name, LocalOnly: yesNo(d.Domain.LocalOnly)}
	}
	if d.Isolated != device.Unset {
		x.PortOptions = &libvirtxml.NetworkPortOptions{Isolated: yesNo(d.Isolated)}
	}
	for _, ip := range d.IPs {
		x.IPs = append(x.IPs, ip.describe())
	}
	for _, r := range d.Routes {
		x.Routes = append(x.Routes, r.describe())
	}
	for _, g := range d.PortGroups {
		x.PortGroups = append(x.PortGroups, libvirtxml.NetworkPortGroup{Name: g.Name, Default: yesNo(g.Default)})
	}
	if len(d.Options) > 0 {
		x.DnsmasqOptions = &libvirtxml.NetworkDnsmasqOptions{XMLName: xml.Name{}}
		for _, o := range d.Options {
			x.DnsmasqOptions.Option = append(x.DnsmasqOptions.Option, libvirtxml.NetworkDnsmasqOption{Value: o})
		}
	}
	return x
}

func yesNo(s device.Switch) string { return [...]string{"", "yes", "no"}[s] }

func addressText(a netip.Addr) string {
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
			IPv6:  yesNo(t.IPv6),
			Ports: []libvirtxml.NetworkForwardNATPort{{Start: uint(t.FirstPort), End: uint(t.LastPort)}},
		}
		if t.First.IsValid() {
			x.NAT.Addresses = []libvirtxml.NetworkForwardNATAddress{{Start: addressText(t.First), End: addressText(t.Last)}}
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
	x := &libvirtxml.NetworkDNS{Enable: yesNo(d.Enable), ForwardPlainNames: yesNo(d.ForwardPlainNames)}
	for _, f := range d.Forwarders {
		x.Forwarders = append(x.Forwarders, libvirtxml.NetworkDNSForwarder{Domain: f.Domain, Addr: addressText(f.Address)})
	}
	for _, t := range d.TXTs {
		x.TXTs = append(x.TXTs, libvirtxml.NetworkDNSTXT{Name: t.Name, Value: t.Value})
	}
	for _, h := range d.Hosts {
		host := libvirtxml.NetworkDNSHost{IP: addressText(h.Address)}
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
	x := libvirtxml.NetworkIP{Address: addressText(ip.Address), Family: ip.Family, LocalPtr: yesNo(ip.LocalPTR)}
	x.Prefix, x.Netmask = mask(ip.Address, ip.Bits, ip.Netmask)
	if ip.TFTPRoot != "" {
		x.TFTP = &libvirtxml.NetworkTFTP{Root: ip.TFTPRoot}
	}
	if ip.DHCP == nil {
		return x
	}
	x.DHCP = &libvirtxml.NetworkDHCP{}
	for _, r := range ip.DHCP.Ranges {
		x.DHCP.Ranges = append(x.DHCP.Ranges, libvirtxml.NetworkDHCPRange{Start: addressText(r.First), End: addressText(r.Last), Lease: r.Lease.describe()})
	}
	for _, h := range ip.DHCP.Hosts {
		x.DHCP.Hosts = append(x.DHCP.Hosts, libvirtxml.NetworkDHCPHost{
			ID: h.ID, MAC: h.MAC, Name: h.Name, IP: addressText(h.Address), Lease: h.Lease.describe(),
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
	x := libvirtxml.NetworkRoute{Family: r.Family, Address: addressText(a), Gateway: addressText(r.Gateway)}
	x.Prefix, x.Netmask = mask(a, r.Destination.Bits(), r.Netmask)
	if r.Metric != 0 {
		x.Metric = strconv.Itoa(r.Metric)
	}
	return x
}
