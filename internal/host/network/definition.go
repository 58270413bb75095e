package network

import (
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Definition says what a network is to be. It is a value: once published it is
// never changed, only replaced.
type Definition struct {
	Name, UUID         string
	Title, Description string
	Metadata           string        // what <metadata> holds, kept as it is
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

// Mode says how a network is joined to the world.
type Mode string

// The modes, with libvirt's words; isolation is the absence of <forward>.
const (
	ForwardNone        Mode = ""
	ForwardNAT         Mode = "nat"
	ForwardRoute       Mode = "route"
	ForwardOpen        Mode = "open"   // routed, and no firewall rules of ours
	ForwardBridge      Mode = "bridge" // a bridge of the host, or macvtaps that form one
	ForwardPrivate     Mode = "private"
	ForwardVEPA        Mode = "vepa"
	ForwardPassthrough Mode = "passthrough"
	// forwardIsolated is what documents may say in place of leaving <forward> out.
	forwardIsolated Mode = "none"
)

// Forward is the way out of a network.
type Forward struct {
	Mode Mode
	// Interfaces are the host's links that traffic may take (nat, route), or
	// that guests are given macvtaps on (the others).
	Interfaces []string
	NAT        Translation
}

// Translation is what guests' addresses become under NAT.
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

// DNS is what a network's name server knows beside the names of its guests.
type DNS struct {
	Enable            device.Switch
	ForwardPlainNames device.Switch
	Forwarders        []Forwarder
	TXTs              []TXT
	Hosts             []NameHost
	SRVs              []SRV
}

// Forwarder answers for a domain, or for everything when Domain is empty.
// Without an address the domain is asked for at the host's own servers.
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

// IP is an address of the host on a network's bridge, and what is served there.
type IP struct {
	Address  netip.Addr
	Bits     int    // of the prefix
	Netmask  bool   // the prefix was written as a mask
	Family   string // as written
	LocalPTR device.Switch
	DHCP     *DHCP
	TFTPRoot string
}

// Prefix is the address with the bits of its network.
func (ip IP) Prefix() netip.Prefix { return netip.PrefixFrom(ip.Address, ip.Bits) }

// DHCP says which addresses are given to whom.
type DHCP struct {
	Ranges []Range
	Hosts  []Host
	Bootp  *Bootp
}

// Range is a row of addresses for anybody.
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

// LeaseTime is how long an address is given for; a Count of 0 is for ever.
type LeaseTime struct {
	Count uint
	Unit  string // seconds, minutes, hours; empty for minutes
}

// Bootp names a file to boot from, on this host unless Server says otherwise.
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

// Managed reports whether Lodge makes the bridge of such a network itself.
func (d *Definition) Managed() bool {
	switch d.Forward.Mode {
	case ForwardNone, ForwardNAT, ForwardRoute, ForwardOpen:
		return true
	case ForwardBridge, ForwardPrivate, ForwardVEPA, ForwardPassthrough:
	}
	return false
}

// direct reports whether guests get macvtaps rather than ports of a bridge.
func (d *Definition) direct() bool {
	return !d.Managed() && (d.Forward.Mode != ForwardBridge || d.Bridge.Name == "")
}
