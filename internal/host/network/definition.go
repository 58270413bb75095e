package network

import (
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Definition is the definition of a network. It is a value: once published it is replaced and never changed.
type Definition struct {
	Name, UUID         string
	Title, Description string
	Metadata           string        // the content of <metadata>, unchanged
	IPv6               device.Switch // guests may speak IPv6 though the host has no address
	Forward            Forward
	Bridge             Bridge
	MTU                int // bytes; 0 for the kernel's choice
	MAC                string
	Domain             Domain
	DNS                DNS
	Isolated           device.Switch // ports never reach each other
	IPs                []IP
	Routes             []Route
	PortGroups         []PortGroup
	Options            []string // lines for dnsmasq's configuration, as given
}

// Mode says how a network is connected to the outside.
type Mode string

// The modes, in libvirt's words. An isolated network has no <forward>.
const (
	ForwardNone        Mode = ""
	ForwardNAT         Mode = "nat"
	ForwardRoute       Mode = "route"
	ForwardOpen        Mode = "open"   // routed, and no firewall rules of ours
	ForwardBridge      Mode = "bridge" // a bridge of the host, or macvtaps that form one
	ForwardPrivate     Mode = "private"
	ForwardVEPA        Mode = "vepa"
	ForwardPassthrough Mode = "passthrough"
	// forwardIsolated is an explicit <forward> of an isolated network.
	forwardIsolated Mode = "none"
)

// Forward is the connection of a network to the outside.
type Forward struct {
	Mode Mode
	// Interfaces are the host's links for outgoing traffic (nat, route), or the links of the guests' macvtaps
	// (other modes).
	Interfaces []string
	NAT        Translation
}

// Translation is the source address and ports of guests' packets under NAT.
type Translation struct {
	IPv6                device.Switch // IPv6 is translated too, not routed
	FirstPort, LastPort uint16
	First, Last         netip.Addr // invalid: the address of the link out
}

// Bridge is the link that joins a network's guests.
type Bridge struct {
	Name     string
	STP      bool
	Delay    uint   // seconds that a new port listens
	MACTable string // "kernel" when said
}

// Domain is the DNS domain of a network.
type Domain struct {
	Name      string
	LocalOnly device.Switch // its names are never asked for outside
}

// DNS is what a network's name server knows in addition to the guests' names.
type DNS struct {
	Enable            device.Switch
	ForwardPlainNames device.Switch
	Forwarders        []Forwarder
	TXTs              []TXT
	Hosts             []NameHost
	SRVs              []SRV
}

// Forwarder answers for a domain, or for everything if Domain is empty. Without an address the host's own
// servers are asked.
type Forwarder struct {
	Domain  string
	Address netip.Addr
}

// TXT is a text record.
type TXT struct{ Name, Value string }

// NameHost gives names to an address.
type NameHost struct {
	Address netip.Addr
	Names   []string
}

// SRV is a service record.
type SRV struct {
	Service, Protocol, Domain, Target string
	Port, Priority, Weight            uint
}

// IP is an address of the host on a network's bridge, with its DHCP and TFTP service.
type IP struct {
	Address  netip.Addr
	Bits     int    // of the prefix
	Netmask  bool   // the prefix was written as a mask
	Family   string // as written
	LocalPTR device.Switch
	DHCP     *DHCP
	TFTPRoot string
}

// Prefix is the address with its prefix length.
func (ip IP) Prefix() netip.Prefix { return netip.PrefixFrom(ip.Address, ip.Bits) }

// DHCP is the addresses to give out.
type DHCP struct {
	Ranges []Range
	Hosts  []Host
	Bootp  *Bootp
}

// Range is a range of addresses for any client.
type Range struct {
	First, Last netip.Addr
	Lease       *LeaseTime
}

// Host is a client that is known by its MAC (or, in DHCPv6, its ID) or name.
type Host struct {
	ID, MAC, Name string
	Address       netip.Addr // invalid: any
	Lease         *LeaseTime
}

// LeaseTime is the duration of a lease; a Count of 0 is infinite.
type LeaseTime struct {
	Count uint
	Unit  string // seconds, minutes, hours; empty for minutes
}

// Bootp is a boot file, on this host unless Server is set.
type Bootp struct{ File, Server string }

// Route is a network that is reached through a guest.
type Route struct {
	Destination netip.Prefix
	Netmask     bool   // the prefix was written as a mask
	Family      string // as written
	Gateway     netip.Addr
	Metric      int // 0: the kernel's
}

// PortGroup is a name that NICs may be attached under.
type PortGroup struct {
	Name    string
	Default device.Switch
}

// Managed says whether Lodge makes the network's bridge.
func (d *Definition) Managed() bool {
	switch d.Forward.Mode {
	case ForwardNone, ForwardNAT, ForwardRoute, ForwardOpen:
		return true
	case ForwardBridge, ForwardPrivate, ForwardVEPA, ForwardPassthrough:
	}
	return false
}

// direct says whether guests get macvtaps, not ports of a bridge.
func (d *Definition) direct() bool {
	return !d.Managed() && (d.Forward.Mode != ForwardBridge || d.Bridge.Name == "")
}
