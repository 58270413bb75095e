package network

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// dnsmasqContent is the configuration of a network's dnsmasq; false if it needs none.
func (d *Definition) dnsmasqContent() (hostnet.DnsmasqContent, bool) {
	dhcp := false
	for _, ip := range d.IPs {
		dhcp = dhcp || ip.DHCP != nil || ip.TFTPRoot != ""
	}
	names := d.DNS.Enable.Or(true)
	if !d.Managed() || len(d.IPs) == 0 || !dhcp && !names {
		return hostnet.DnsmasqContent{}, false
	}
	w := &configLines{}
	d.writeBase(w)
	if names {
		d.writeDNS(w)
		if dhcp {
			// A guest with this name could give the browsers of the others a proxy.
			w.add("dhcp-name-match=set:wpad,wpad")
			w.add("dhcp-ignore-names=tag:wpad")
		}
	} else {
		w.add("port=0")
	}
	for _, ip := range d.IPs {
		ip.writeDHCP(w)
	}
	d.writeRouting(w)
	for _, o := range d.Options {
		w.add("%s", o)
	}
	return hostnet.DnsmasqContent{Config: w.String(), Hosts: d.hostsFile(), Names: d.namesFile()}, true
}

// configLines collects the lines of a configuration.
type configLines struct{ strings.Builder }

func (w *configLines) add(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

func (d *Definition) writeBase(w *configLines) {
	w.add("strict-order")
	w.add("except-interface=lo")
	w.add("bind-dynamic")
	w.add("interface=%s", d.Bridge.Name)
}

func (d *Definition) writeDNS(w *configLines) {
	if d.DNS.ForwardPlainNames == device.Off {
		w.add("domain-needed")
		w.add("local=//")
	}
	if d.Domain.Name != "" {
		if d.Domain.LocalOnly == device.On {
			w.add("local=/%s/", d.Domain.Name)
		}
		w.add("domain=%s", d.Domain.Name)
		w.add("expand-hosts")
	}
	everything := false
	for _, f := range d.DNS.Forwarders {
		domain, server := "", "#" // "#" means the host's own servers
		if f.Domain != "" {
			domain = "/" + f.Domain + "/"
		}
		if f.Address.IsValid() {
			server = addressText(f.Address)
		}
		everything = everything || f.Domain == ""
		w.add("server=%s%s", domain, server)
	}
	// Guests of an isolated network get no answers from outside.
	if everything || d.Forward.Mode == ForwardNone {
		w.add("no-resolv")
	}
	for _, t := range d.DNS.TXTs {
		w.add(`txt-record=%s,"%s"`, t.Name, quoted.Replace(t.Value))
	}
	for _, s := range d.DNS.SRVs {
		w.add("srv-host=%s", s.record())
	}
	for _, ip := range d.IPs {
		if ip.LocalPTR == device.On {
			w.add("local=/%s/", reverseZone(ip))
		}
	}
}

// quoted escapes a text in quotation marks for dnsmasq.
var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (s SRV) record() string {
	name := fmt.Sprintf("_%s._%s", s.Service, s.Protocol)
	if s.Domain != "" {
		name += "." + s.Domain
	}
	if s.Target == "" {
		return name
	}
	fields := []string{name, s.Target}
	numbers := []uint{s.Port, s.Priority, s.Weight}
	if numbers[0] == 0 {
		numbers[0] = 1
	}
	for i, n := range numbers {
		if i == 0 || n != 0 || i == 1 && numbers[2] != 0 {
			fields = append(fields, fmt.Sprint(n))
		}
	}
	return strings.Join(fields, ",")
}

// reverseZone is the reverse zone of a network's addresses, cut to whole octets (IPv4) or nibbles (IPv6).
func reverseZone(ip IP) string {
	b := ip.Prefix().Masked().Addr().AsSlice()
	var labels []string
	if ip.Address.Is4() {
		for i := 0; i < max(ip.Bits/8, 1); i++ {
			labels = append([]string{fmt.Sprint(b[i])}, labels...)
		}
		return strings.Join(labels, ".") + ".in-addr.arpa"
	}
	for i := 0; i < max(ip.Bits/4, 1); i++ {
		nibble := b[i/2] >> 4
		if i%2 == 1 {
			nibble = b[i/2] & 15
		}
		labels = append([]string{fmt.Sprintf("%x", nibble)}, labels...)
	}
	return strings.Join(labels, ".") + ".ip6.arpa"
}

func (ip IP) writeDHCP(w *configLines) {
	if ip.TFTPRoot != "" {
		w.add("enable-tftp")
		w.add("tftp-root=%s", ip.TFTPRoot)
	}
	if ip.DHCP == nil {
		if ip.Address.Is6() {
			w.add("dhcp-range=%s,ra-only", addressText(ip.Address))
		}
		return
	}
	for _, r := range ip.DHCP.Ranges {
		w.add("dhcp-range=%s,%s,%s%s", addressText(r.First), addressText(r.Last), ip.maskWord(), leaseWord(r.Lease))
	}
	switch {
	case len(ip.DHCP.Ranges) > 0:
	case len(ip.DHCP.Hosts) > 0:
		w.add("dhcp-range=%s,static", addressText(ip.Address))
	default:
		return
	}
	if ip.Address.Is4() {
		w.add("dhcp-no-override")
		w.add("dhcp-authoritative")
		// Before an offer dnsmasq would ping the address for three seconds and serve no one else meanwhile, so
		// that a boot storm would wait for each guest in turn.
		w.add("no-ping")
		// This is the number of addresses, so it never limits leases. It must not depend on the hosts, which
		// are reloaded without a restart.
		w.add("dhcp-lease-max=%d", 1<<min(32-ip.Bits, 16))
	}
	if b := ip.DHCP.Bootp; b != nil {
		boot := "dhcp-boot=" + b.File
		if b.Server != "" {
			boot += ",," + b.Server
		}
		w.add("%s", boot)
	}
}

// maskWord is the subnet's size in the syntax of dnsmasq's ranges.
func (ip IP) maskWord() string {
	if ip.Address.Is4() {
		return net.IP(net.CIDRMask(ip.Bits, 32)).String()
	}
	return fmt.Sprint(ip.Bits)
}

// leaseWord is a lease time as the last field of a line, with its comma.
func leaseWord(l *LeaseTime) string {
	switch {
	case l == nil:
		return ""
	case l.Count == 0:
		return ",infinite"
	case l.Unit == "seconds":
		return fmt.Sprintf(",%d", max(l.Count, 120)) // dnsmasq refuses less
	case l.Unit == "hours":
		return fmt.Sprintf(",%dh", l.Count)
	}
	return fmt.Sprintf(",%dm", max(l.Count, 2))
}

// writeRouting gives guests the default route, or none.
func (d *Definition) writeRouting(w *configLines) {
	for _, ip := range d.IPs {
		if ip.Address.Is6() {
			w.add("enable-ra")
			break
		}
	}
	if d.Forward.Mode == ForwardNone {
		w.add("dhcp-option=3") // no router
	}
	if d.MTU != 0 {
		w.add("dhcp-option=option:mtu,%d", d.MTU)
	}
}

// hostsFile is the file of DHCP hosts.
func (d *Definition) hostsFile() string {
	w := &configLines{}
	for _, ip := range d.IPs {
		if ip.DHCP == nil {
			continue
		}
		for _, h := range ip.DHCP.Hosts {
			w.add("%s", h.line())
		}
	}
	return w.String()
}

// servedName matches what dnsmasq accepts as a name in such a line. otherWord matches words that it reads as a
// lease time, or as "ignore"; it skips a line with neither.
var (
	servedName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{1,63})*\.?$`)
	otherWord  = regexp.MustCompile(`^(infinite|ignore|[0-9]+[wdhmsWDHMS]?)$`)
)

func (h Host) line() string {
	// A host with a MAC or an ID at least gets its address.
	if _, isAddress := netip.ParseAddr(h.Name); h.MAC+h.ID != "" && (isAddress == nil || !servedName.MatchString(h.Name) || otherWord.MatchString(h.Name)) {
		h.Name = ""
	}
	var fields []string
	if h.ID != "" {
		fields = append(fields, "id:"+h.ID)
	}
	for _, f := range []string{h.MAC, h.Name} {
		if f != "" {
			fields = append(fields, f)
		}
	}
	switch {
	case h.Address.Is6():
		fields = append(fields, "["+addressText(h.Address)+"]")
	case h.Address.IsValid():
		// The address goes between the MAC and the name.
		at := len(fields)
		if h.Name != "" {
			at--
		}
		fields = append(fields[:at:at], append([]string{addressText(h.Address)}, fields[at:]...)...)
	}
	return strings.Join(fields, ",") + leaseWord(h.Lease)
}

// namesFile is the file of DNS hosts.
func (d *Definition) namesFile() string {
	w := &configLines{}
	for _, h := range d.DNS.Hosts {
		w.add("%s\t%s", addressText(h.Address), strings.Join(h.Names, "\t"))
	}
	return w.String()
}

// rules are a network's firewall rules; false if it has none.
func (d *Definition) rules() (hostnet.ForwardRules, bool) {
	r := hostnet.ForwardRules{Bridge: d.Bridge.Name, Uplinks: d.Forward.Interfaces}
	switch d.Forward.Mode {
	case ForwardNone:
		return r, true
	case ForwardNAT:
		t := d.Forward.NAT
		r.NAT = &hostnet.Translation{FirstPort: t.FirstPort, LastPort: t.LastPort, First: t.First, Last: t.Last}
	case ForwardRoute:
	case ForwardOpen, ForwardBridge, ForwardPrivate, ForwardVEPA, ForwardPassthrough:
		return r, false
	}
	for _, ip := range d.IPs {
		nat := r.NAT != nil && (ip.Address.Is4() || d.Forward.NAT.IPv6 == device.On)
		r.Subnets = append(r.Subnets, hostnet.Subnet{Prefix: ip.Prefix().Masked(), NAT: nat})
	}
	for _, route := range d.Routes {
		r.Subnets = append(r.Subnets, hostnet.Subnet{Prefix: route.Destination, NAT: r.NAT != nil && route.Destination.Addr().Is4()})
	}
	return r, true
}
