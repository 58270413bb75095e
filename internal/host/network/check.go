package network

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Bounds on what a definition may ask for.
const (
	maxRange = 65536 // addresses in one DHCP range
	maxMTU   = 65535
	maxIPs   = 256
	// maxWays bounds the pairs of subnet and outgoing interface of a network. Each pair needs one or two
	// firewall rules.
	maxWays = 4096
)

// check refuses a definition that could not run on any host.
func (d *Definition) check() error {
	for _, check := range []func() error{
		d.checkNames, d.checkBridge, d.checkForward, d.checkAddresses, d.checkDNS, d.checkRoutes, d.checkPortGroups, d.checkServed,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// invalidError is the error for a single wrong value: libvirt's code for an invalid document.
func invalidError(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.XML, format, args...)
}

// unsuitableError is the error for valid values that cannot be combined.
func unsuitableError(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Config, format, args...)
}

func (d *Definition) checkNames() error {
	if strings.TrimSpace(d.Name) == "" {
		return fault.New(fault.Invalid, fault.XML, "the network has no name")
	}
	if strings.ContainsAny(d.Name, "/\n") || len(d.Name) > 255 {
		return fault.New(fault.Invalid, fault.XML, "the network name %q contains a slash or a line end, or is too long", d.Name)
	}
	if d.UUID != "" {
		id, err := uuid.Parse(d.UUID)
		if err != nil {
			return fault.New(fault.Invalid, fault.XML, "%q is no UUID", d.UUID)
		}
		d.UUID = id.String()
	}
	if strings.Contains(d.Title, "\n") {
		return fault.New(fault.Invalid, fault.XML, "the title of network %q contains a line end", d.Name)
	}
	return nil
}

func (d *Definition) checkBridge() error {
	if name := d.Bridge.Name; name != "" {
		if d.Managed() && isBridgePattern(name) {
			name = strings.Replace(name, "%d", "0", 1)
		}
		if err := hostnet.CheckName(name); err != nil {
			return invalidError("%v", err)
		}
		if strings.ContainsAny(d.Bridge.Name, `,*"\`) { // dnsmasq would parse these and serve other bridges, too
			return invalidError("the bridge of network %q is called %q: leave out commas, asterisks, quotes and backslashes", d.Name, d.Bridge.Name)
		}
	}
	if d.MTU != 0 && (d.MTU < 68 || d.MTU > maxMTU) {
		return invalidError("an MTU of %d bytes is outside of 68 to %d", d.MTU, maxMTU)
	}
	if d.MAC == "" {
		return nil
	}
	if !d.Managed() {
		return unsuitableError("network %q has forward mode %q and so no bridge to give the MAC address %s to", d.Name, d.Forward.Mode, d.MAC)
	}
	return checkMAC(d.MAC)
}

func checkMAC(s string) error {
	mac, err := device.ParseMAC(s)
	if err != nil {
		return invalidError("%v", err)
	}
	if mac[0]&1 != 0 {
		return invalidError("the MAC address %s is for groups, not for one", s)
	}
	return nil
}

func (d *Definition) checkForward() error {
	seen := map[string]bool{}
	for _, name := range d.Forward.Interfaces {
		if err := hostnet.CheckName(name); err != nil {
			return invalidError("%v", err)
		}
		if seen[name] {
			return invalidError("network %q names interface %q twice", d.Name, name)
		}
		seen[name] = true
	}
	if ways := max(len(d.IPs)+len(d.Routes), 1) * max(len(seen), 1); ways > maxWays {
		return unsuitableError("network %q has %d ways out, by each of its interfaces from each of its addresses and routes, and may have %d", d.Name, ways, maxWays)
	}
	switch d.Forward.Mode {
	case ForwardNone:
	case ForwardNAT, ForwardRoute:
		if len(d.IPs) == 0 {
			return invalidError("network %q forwards by %s and has no address; give it an <ip>", d.Name, d.Forward.Mode)
		}
	case ForwardOpen:
		if len(d.IPs) == 0 {
			return invalidError("network %q is open and has no address; give it an <ip>", d.Name)
		}
		if len(d.Forward.Interfaces) > 0 {
			return invalidError("network %q is open, which leaves no interface to forward to", d.Name)
		}
	case ForwardBridge, ForwardPrivate, ForwardVEPA, ForwardPassthrough:
		return d.checkUnmanaged()
	}
	return nil
}

func (d *Definition) checkUnmanaged() error {
	if len(d.IPs)+len(d.Routes) > 0 || d.DNS.describe() != nil || d.Domain != (Domain{}) {
		return unsuitableError("network %q has forward mode %q: addresses, routes, names and DHCP come from outside and cannot be defined", d.Name, d.Forward.Mode)
	}
	hasBridge, hasLinks := d.Bridge.Name != "", len(d.Forward.Interfaces) > 0
	switch {
	case hasBridge && hasLinks:
		return invalidError("network %q names both a bridge and interfaces to forward to; give one", d.Name)
	case hasBridge && d.Forward.Mode != ForwardBridge:
		return invalidError("network %q has forward mode %q, which uses no bridge; name an interface", d.Name, d.Forward.Mode)
	case !hasBridge && !hasLinks:
		return invalidError("network %q has forward mode %q and names neither a bridge nor an interface", d.Name, d.Forward.Mode)
	}
	return nil
}

func (d *Definition) checkAddresses() error {
	if len(d.IPs) > maxIPs {
		return unsuitableError("network %q has %d addresses and may have %d", d.Name, len(d.IPs), maxIPs)
	}
	served := map[bool]bool{} // is IPv4 -> DHCP has been seen
	for i, ip := range d.IPs {
		if err := checkHostAddress(ip); err != nil {
			return err
		}
		for _, other := range d.IPs[:i] {
			if ip.Prefix().Overlaps(other.Prefix()) {
				return unsuitableError("the addresses %s and %s of network %q overlap", other.Prefix(), ip.Prefix(), d.Name)
			}
		}
		if ip.TFTPRoot != "" && (!strings.HasPrefix(ip.TFTPRoot, "/") || !isOneLine(ip.TFTPRoot)) {
			return invalidError("the TFTP root %q is no absolute path", ip.TFTPRoot)
		}
		if ip.DHCP == nil {
			continue
		}
		if served[ip.Address.Is4()] {
			return unsuitableError("network %q serves DHCP on more than one address of a family", d.Name)
		}
		served[ip.Address.Is4()] = true
		if err := ip.checkDHCP(); err != nil {
			return err
		}
	}
	return nil
}

func checkHostAddress(ip IP) error {
	p := ip.Prefix()
	if !p.IsValid() || ip.Bits == 0 {
		return invalidError("a prefix of %d bits does not go with address %s", ip.Bits, ip.Address)
	}
	if ip.Address.IsUnspecified() || ip.Address.IsMulticast() || ip.Address.IsLoopback() {
		return invalidError("the host cannot have the address %s", ip.Address)
	}
	if ip.Address.Is4() && ip.Bits < 31 && (ip.Address == p.Masked().Addr() || ip.Address == lastAddress(p)) {
		return invalidError("the address %s is the first or the last of its network, which a host cannot have", p)
	}
	return nil
}

// lastAddress is the highest address of a prefix; in IPv4 it is the broadcast address.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (ip IP) checkDHCP() error {
	for _, r := range ip.DHCP.Ranges {
		if err := ip.checkRange(r); err != nil {
			return err
		}
	}
	sorted := slices.SortedFunc(slices.Values(ip.DHCP.Ranges), func(a, b Range) int { return a.First.Compare(b.First) })
	for i := 1; i < len(sorted); i++ {
		if before, r := sorted[i-1], sorted[i]; !before.Last.Less(r.First) {
			return unsuitableError("the DHCP ranges %s to %s and %s to %s overlap", before.First, before.Last, r.First, r.Last)
		}
	}
	known := map[any]bool{}
	for _, h := range ip.DHCP.Hosts {
		if err := ip.checkHost(h); err != nil {
			return err
		}
		// The three cannot be confused with each other, and a missing value belongs to no host.
		for _, is := range []any{"MAC " + h.MAC, "ID " + h.ID, h.Address} {
			if known[is] && is != "MAC " && is != "ID " && is != (netip.Addr{}) {
				return invalidError("two DHCP hosts share a MAC address, an ID or an address (%s %s)", h.MAC+h.ID, addressText(h.Address))
			}
			known[is] = true
		}
	}
	b := ip.DHCP.Bootp
	if b == nil {
		return nil
	}
	if ip.Address.Is6() {
		return invalidError("<bootp> is for IPv4 only")
	}
	if b.File == "" || !isListItem(b.File) || !isListItem(b.Server) {
		return invalidError("<bootp> needs a file, and neither file nor server may hold a comma or a blank")
	}
	return nil
}

func (ip IP) checkRange(r Range) error {
	p := ip.Prefix()
	if !r.First.IsValid() || !r.Last.IsValid() {
		return invalidError("a DHCP range needs a start and an end")
	}
	if !p.Contains(r.First) || !p.Contains(r.Last) {
		return invalidError("the DHCP range %s to %s is not within %s", r.First, r.Last, p.Masked())
	}
	if r.Last.Less(r.First) {
		return invalidError("the DHCP range %s to %s ends before it starts", r.First, r.Last)
	}
	if ip.Address.Is4() && ip.Bits < 31 && (r.First == p.Masked().Addr() || r.Last == lastAddress(p)) {
		return invalidError("the DHCP range %s to %s holds the first or the last address of %s", r.First, r.Last, p.Masked())
	}
	if extraAddresses(r) >= maxRange {
		return unsuitableError("the DHCP range %s to %s holds more than %d addresses", r.First, r.Last, maxRange)
	}
	return nil
}

// extraAddresses counts the addresses of a range after its first, up to 64 bits.
func extraAddresses(r Range) uint64 {
	first, last := r.First.As16(), r.Last.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	if high, _ := bits.Sub64(binary.BigEndian.Uint64(last[:]), binary.BigEndian.Uint64(first[:]), borrow); high > 0 {
		return math.MaxUint64
	}
	return low
}

func (ip IP) checkHost(h Host) error {
	if h.MAC == "" && h.Name == "" && h.ID == "" {
		return invalidError("a DHCP host needs a MAC address, a name or an ID to be known by")
	}
	if h.MAC != "" {
		if err := checkMAC(h.MAC); err != nil {
			return err
		}
	}
	if h.Name != "" && !isHostName(h.Name) {
		return invalidError("%q is no name for a DHCP host", h.Name)
	}
	if h.ID != "" && !isListItem(h.ID) {
		return invalidError("%q is no DHCP client ID", h.ID)
	}
	switch {
	case ip.Address.Is4() && h.ID != "":
		return invalidError("DHCP host %q: IDs are for IPv6; use the MAC address", h.ID)
	case ip.Address.Is6() && h.MAC != "":
		return invalidError("DHCP host %s: IPv6 knows hosts by ID or name, not by MAC address", h.MAC)
	case !h.Address.IsValid():
		if h.Name == "" {
			return invalidError("DHCP host %s%s has neither an address nor a name to be given", h.MAC, h.ID)
		}
	case !ip.Prefix().Contains(h.Address) || h.Address == ip.Address:
		return invalidError("the address %s of a DHCP host is not within %s, or is the host's own", h.Address, ip.Prefix().Masked())
	}
	return nil
}

func (d *Definition) checkDNS() error {
	if d.Domain.Name != "" && !isHostName(d.Domain.Name) || d.Domain.Name == "" && d.Domain.LocalOnly != device.Unset {
		return invalidError("%q is no name for a DNS domain", d.Domain.Name)
	}
	for _, f := range d.DNS.Forwarders {
		if f.Domain == "" && !f.Address.IsValid() || f.Domain != "" && !isHostName(f.Domain) {
			return invalidError("a DNS forwarder needs a domain or an address")
		}
	}
	for _, t := range d.DNS.TXTs {
		if t.Name == "" || !isListItem(t.Name) || !isOneLine(t.Value) {
			return invalidError("the DNS text record %q has no name, or holds a blank in it or a line end", t.Name)
		}
	}
	named := map[netip.Addr]bool{}
	for _, h := range d.DNS.Hosts {
		if err := checkNameHost(h); err != nil {
			return err
		}
		if named[h.Address] {
			return invalidError("two DNS hosts have the address %s; give one all the names", h.Address)
		}
		named[h.Address] = true
	}
	for _, s := range d.DNS.SRVs {
		if err := s.check(); err != nil {
			return err
		}
	}
	for _, o := range d.Options {
		if !isOneLine(o) {
			return invalidError("a dnsmasq option holds a line end")
		}
	}
	return nil
}

func checkNameHost(h NameHost) error {
	if !h.Address.IsValid() || len(h.Names) == 0 {
		return invalidError("a DNS host needs an address and a name")
	}
	for _, n := range h.Names {
		if !isHostName(n) {
			return invalidError("%q is no name for a DNS host", n)
		}
	}
	return nil
}

func (s SRV) check() error {
	if s.Service == "" || s.Protocol == "" {
		return invalidError("a DNS service record needs a service and a protocol")
	}
	for _, name := range []string{s.Service, s.Protocol, s.Domain, s.Target} {
		if name != "" && !isHostName(name) {
			return invalidError("%q is no name for a DNS service record", name)
		}
	}
	if s.Target == "" && (s.Port != 0 || s.Priority != 0 || s.Weight != 0) {
		return invalidError("the DNS service record %q needs a target to have a port, a priority or a weight", s.Service)
	}
	if s.Port > 65535 || s.Priority > 65535 || s.Weight > 65535 {
		return invalidError("a number of the DNS service record %q is above 65535", s.Service)
	}
	return nil
}

func (d *Definition) checkRoutes() error {
	for _, r := range d.Routes {
		if !r.Destination.IsValid() || r.Destination != r.Destination.Masked() {
			return invalidError("the route %s has bits beyond its prefix", r.Destination)
		}
		near := false
		for _, ip := range d.IPs {
			near = near || ip.Prefix().Contains(r.Gateway)
		}
		if !near {
			return unsuitableError("the gateway %s of the route to %s is in none of the networks of %q", r.Gateway, r.Destination, d.Name)
		}
	}
	return nil
}

func (d *Definition) checkPortGroups() error {
	seen, defaults := map[string]bool{}, 0
	for _, g := range d.PortGroups {
		if g.Name == "" {
			return invalidError("a port group of network %q has no name", d.Name)
		}
		if seen[g.Name] {
			return unsuitableError("two port groups of network %q have the name %q", d.Name, g.Name)
		}
		seen[g.Name] = true
		if g.Default == device.On {
			defaults++
		}
	}
	if defaults > 1 {
		return unsuitableError("network %q has more than one default port group", d.Name)
	}
	return nil
}

// checkServed refuses texts that dnsmasq would parse differently from their meaning.
func (d *Definition) checkServed() error {
	content, _ := d.dnsmasqContent()
	return content.Check()
}

// isOneLine reports whether a text can stand on one line of a configuration.
func isOneLine(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// isListItem reports whether a text can be one of a comma-separated list.
func isListItem(s string) bool { return isOneLine(s) && !strings.ContainsAny(s, ", \"") }

// isHostName says whether a text has only the characters of DNS names.
func isHostName(s string) bool {
	return s != "" && len(s) <= 253 && strings.IndexFunc(s, notInName) < 0
}

func notInName(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.', r > 0x9f:
		return false
	}
	return true
}
