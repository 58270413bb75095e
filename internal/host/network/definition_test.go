package network

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

var update = flag.Bool("update", false, "rewrite the golden files under testdata")

// golden compares a text with a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		ok(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	ok(t, err)
	if got != string(want) {
		t.Errorf("%s differs; got\n%s", path, got)
	}
}

// TestDefinition_Golden parses each document under testdata, and compares its printed form and the configuration of
// dnsmasq.
func TestDefinition_Golden(t *testing.T) {
	docs, err := filepath.Glob("testdata/definitions/*.xml")
	ok(t, err)
	for _, path := range docs {
		t.Run(filepath.Base(path), func(t *testing.T) {
			doc, err := os.ReadFile(path)
			ok(t, err)
			d, err := Parse(string(doc), true)
			ok(t, err)
			printed, err := d.XML(0)
			ok(t, err)
			stem := strings.TrimSuffix(path, ".xml")
			golden(t, stem+".printed", printed)
			again, err := Parse(printed, true)
			ok(t, err)
			if twice, err := again.XML(0); err != nil || twice != printed {
				t.Errorf("printed again: %v\n%s", err, twice)
			}
			served := "nothing is served\n"
			if c, needed := d.dnsmasqContent(); needed {
				served = c.Config + "-- hosts\n" + c.Hosts + "-- names\n" + c.Names
			}
			golden(t, stem+".served", served)
			if c, needed := d.dnsmasqContent(); needed {
				acceptable(t, c)
			}
		})
	}
}

// acceptable lets dnsmasq check its configuration.
func acceptable(t *testing.T, c hostnet.DnsmasqContent) {
	t.Helper()
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skip("needs the program dnsmasq:", err)
	}
	dir := t.TempDir()
	config, hosts := filepath.Join(dir, "conf"), filepath.Join(dir, "hosts")
	ok(t, os.WriteFile(config, []byte(c.Config), 0o644))
	ok(t, os.WriteFile(hosts, []byte(c.Hosts), 0o644))
	out, err := exec.CommandContext(t.Context(), "dnsmasq", "--test", "--conf-file="+config, "--dhcp-hostsfile="+hosts).CombinedOutput()
	if err != nil {
		t.Errorf("dnsmasq refuses its configuration: %s", out)
	}
}

const someNAT = "<forward mode='nat'/><ip address='10.0.0.1' prefix='24'/>"

// dhcp is an address element of a network with a DHCP range.
func dhcp(inner string) string {
	return "<ip address='10.0.0.1' prefix='24'><dhcp>" + inner + "</dhcp></ip>"
}

// refusedParts are elements that no network may hold, and a part of the error.
var refusedParts = map[string]string{
	"<forward mode='nat'/>": "has no address",
	"<forward mode='hostdev'><interface dev='eth0'/></forward>":                                        `network/forward/@mode "hostdev" is not supported`,
	"<forward mode='magic'/>":                                                                          `"magic" is not supported`,
	"<forward mode='bridge'/>":                                                                         "neither a bridge nor an interface",
	"<forward mode='private'/><bridge name='br0'/>":                                                    "uses no bridge",
	"<forward mode='bridge'/><bridge name='br0'/><mac address='52:54:00:0:0:1'/>":                      "no bridge to give",
	"<forward mode='bridge'/><bridge name='br0'/><ip address='10.0.0.1' prefix='24'/>":                 "come from outside",
	someNAT + "<bandwidth><inbound average='1000'/></bandwidth>":                                       "not supported: network/bandwidth; limit each guest by interface/bandwidth",
	someNAT + "<vlan><tag id='42'/></vlan>":                                                            "not supported: network/vlan",
	someNAT + "<portgroup name='a'><vlan><tag id='42'/></vlan></portgroup>":                            "not supported: network/portgroup/vlan",
	someNAT + "<virtualport type='openvswitch'/>":                                                      "not supported: network/virtualport",
	someNAT + "<bridge name='a' zone='x'/>":                                                            "not supported: network/bridge/@zone",
	someNAT + "<bridge macTableManager='libvirt'/>":                                                    "macTableManager",
	someNAT + "<bridge name='a-name-that-is-too-long'/>":                                               "longer than 15",
	someNAT + "<bridge name='br0,eth0'/>":                                                              "commas",
	someNAT + "<bridge name='br*'/>":                                                                   "asterisks",
	someNAT + "<mtu size='12'/>":                                                                       "MTU",
	someNAT + "<mac address='53:54:00:00:00:01'/>":                                                     "for groups",
	someNAT + "<mac address='x'/>":                                                                     "not a MAC address",
	someNAT + "<ip address='10.0.0.129' prefix='25'/>":                                                 "overlap",
	"<ip address='10.0.0.0' prefix='24'/>":                                                             "first or the last",
	"<ip address='10.0.0.1' prefix='33'/>":                                                             "does not go with",
	"<ip address='10.0.0.1' netmask='255.0.255.0'/>":                                                   "no netmask",
	"<ip address='10.0.0.1' netmask='255.255.255.0' prefix='24'/>":                                     "both",
	"<ip address='10.0.0.1' family='ipv6' prefix='24'/>":                                               "not of family",
	"<ip prefix='24'/>":                                                                                "no address",
	"<ip address='fe80::1%eth0'/>":                                                                     "no IP address",
	dhcp("<range start='10.0.0.2' end='10.0.1.2'/>"):                                                   "not within",
	dhcp("<range start='10.0.0.9' end='10.0.0.2'/>"):                                                   "ends before",
	dhcp("<range start='10.0.0.9'/>"):                                                                  "a start and an end",
	dhcp("<range start='10.0.0.0' end='10.0.0.9'/>"):                                                   "first or the last",
	dhcp("<range start='10.0.0.2' end='10.0.0.9'/><range start='10.0.0.9' end='10.0.0.12'/>"):          "overlap",
	dhcp("<range start='10.0.0.2' end='10.0.0.9'><lease expiry='1' unit='days'/></range>"):             "unit",
	dhcp("<host ip='10.0.0.2'/>"):                                                                      "to be known by",
	dhcp("<host mac='52:54:00:00:00:01' ip='10.1.0.2'/>"):                                              "not within",
	dhcp("<host mac='52:54:00:00:00:01' ip='10.0.0.1'/>"):                                              "host's own",
	dhcp("<host mac='52:54:00:00:00:01'/>"):                                                            "neither an address nor a name",
	dhcp("<host name='a&#10;b' ip='10.0.0.2'/>"):                                                       "no name",
	dhcp("<host mac='52:54:00:00:00:01' ip='10.0.0.2'/><host mac='52:54:00:00:00:02' ip='10.0.0.2'/>"): "share",
	dhcp("<bootp file='a,b'/>"):                                                                        "comma",
	"<ip address='10.0.0.1' prefix='8'><dhcp><range start='10.0.0.2' end='10.9.0.0'/></dhcp></ip>":     "more than 65536",
	"<dns><txt name='a' value='b&#10;conf-file=/etc/shadow'/></dns>":                                   "line end",
	"<dns><host ip='10.0.0.1'><hostname>a b</hostname></host></dns>":                                   "no name",
	"<dns><srv service='a' protocol='tcp' port='1'/></dns>":                                            "needs a target",
	"<dns><forwarder/></dns>":                                                                          "a domain or an address",
	"<domain name='a b'/>":                                                                             "no name for a DNS domain",
	"<forward mode='nat'><nat><port start='9' end='1'/></nat></forward>":                               "no range of ports",
	"<forward mode='open' dev='eth0'/><ip address='10.0.0.1' prefix='24'/>":                            "leaves no interface",
	someNAT + "<route address='10.9.0.0' prefix='16' gateway='10.1.0.1'/>":                             "is in none of",
	someNAT + "<route address='10.9.0.1' prefix='16' gateway='10.0.0.2'/>":                             "beyond its prefix",
	"<portgroup name='a'/><portgroup name='a'/>":                                                       "two port groups",
	"<uuid>x</uuid>": "no UUID",
	"<nonsense/>":    "unknown element or attribute: nonsense",
}

func TestDefinition_Refused(t *testing.T) {
	for inner, want := range refusedParts {
		_, err := Parse("<network><name>n</name>"+inner+"</network>", true)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %q", inner, err, want)
		}
	}
	for doc, want := range map[string]string{
		"<network/>": "no name", "<network><name>a/b</name></network>": "slash",
		"<domain><name>a</name></domain>": "not a network", "<network>": "",
	} {
		if _, err := Parse(doc, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", doc, err, want)
		}
	}
	if _, err := Parse("<network><name>n</name><nonsense/></network>", false); err != nil {
		t.Errorf("unknown elements without strictness: %v", err)
	}
}

// No new network has a control character in its name. A network of an earlier daemon that has one is still
// read.
func TestDefinition_ControlCharacterInName(t *testing.T) {
	for _, name := range []string{"a\tb", "a\x1b[2J", "a\u009b2J"} {
		s := &Networks{byName: map[string]*Network{}, byUUID: map[string]*Network{}}
		if _, err := s.register(&Definition{Name: name}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := Parse("<network><name>a&#9;b</name></network>", false); err != nil {
		t.Error(err)
	}
}

// dnsmasq reads a bounded number of bytes as one line, and the rest as an option, which could be any text of a
// client. No definition and no update has a line that long.
func TestDefinition_LongTextForDnsmasq(t *testing.T) {
	const option = "dhcp-script=/bin/false"
	texts := map[string]string{
		"bootp file":   dhcp("<range start='10.0.0.2' end='10.0.0.9'/><bootp file='@'/>"),
		"bootp server": dhcp("<range start='10.0.0.2' end='10.0.0.9'/><bootp file='a' server='@'/>"),
		"txt name":     "<dns><txt name='@' value='b'/></dns>" + someNAT,
		"txt value":    "<dns><txt name='a' value='@'/></dns>" + someNAT,
		"host id":      "<ip address='fd00::1' prefix='64'><dhcp><host id='@' ip='fd00::2'/></dhcp></ip>",
		"option":       someNAT + "<dnsmasq:options xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'><dnsmasq:option value='log-tag=@'/></dnsmasq:options>",
	}
	for what, inner := range texts {
		doc := "<network><name>n</name><bridge name='br0'/>" + inner + "</network>"
		d, err := Parse(strings.Replace(doc, "@", "a"+option, 1), true)
		ok(t, err)
		if c, _ := d.dnsmasqContent(); !strings.Contains(c.Config+c.Hosts, option) {
			t.Fatalf("%s is not served: %s", what, c.Config)
		}
		if _, err = Parse(strings.Replace(doc, "@", strings.Repeat("a", 1024)+option, 1), true); err == nil || !strings.Contains(err.Error(), "a dnsmasq configuration line can have 1023 bytes") {
			t.Errorf("%s of more than a line: %v", what, err)
		}
	}
	d, err := Parse("<network><name>n</name>"+someNAT+"</network>", true)
	ok(t, err)
	d, err = d.apply(Update{Command: AddLast, Section: SectionDNSTXT, Parent: -1, XML: "<txt name='" + strings.Repeat("a", 1024) + option + "' value='b'/>"})
	if err == nil {
		err = d.check()
	}
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("a change: %v", err)
	}
}

// A definition of the maximum size is checked within seconds, and none makes more rules than a firewall can
// take.
// Promise: X14
func TestDefinition_LargeIsChecked(t *testing.T) {
	six := IP{Address: netip.MustParseAddr("fd00::1"), Bits: 64, DHCP: &DHCP{}}
	for i := range uint32(50_000) {
		at := func(n byte) netip.Addr {
			a := [16]byte{0: 0xfd, 8: 1, 15: n}
			binary.BigEndian.PutUint32(a[9:], i<<8)
			if n > 0 {
				a[14] = 0xff
			}
			return netip.AddrFrom16(a)
		}
		six.DHCP.Ranges = append(six.DHCP.Ranges, Range{First: at(0), Last: at(0xff)})
	}
	four := IP{Address: netip.MustParseAddr("10.0.0.1"), Bits: 8, DHCP: &DHCP{}}
	var d Definition
	d.Name = "large"
	for i := range uint32(100_000) {
		a := [4]byte{10, 1}
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+i)
		four.DHCP.Hosts = append(four.DHCP.Hosts, Host{MAC: fmt.Sprintf("52:54:00:%02x:%02x:%02x", i>>16, i>>8&0xff, i&0xff), Address: netip.AddrFrom4(a)})
		d.DNS.Hosts = append(d.DNS.Hosts, NameHost{Address: netip.AddrFrom4(a), Names: []string{"x"}})
	}
	d.IPs = []IP{four, six}
	checked := make(chan error, 1)
	go func() { checked <- d.check() }()
	select {
	case err := <-checked:
		ok(t, err)
	case <-time.After(time.Minute):
		t.Fatal("a definition is not checked within a minute")
	}

	d = Definition{Name: "wide", Forward: Forward{Mode: ForwardRoute}}
	d.IPs = []IP{{Address: four.Address, Bits: 8}}
	for i := range 1000 {
		d.Forward.Interfaces = append(d.Forward.Interfaces, fmt.Sprint("eth", i))
		d.Routes = append(d.Routes, Route{Destination: netip.MustParsePrefix("10.0.0.0/8"), Gateway: four.Address})
	}
	if err := d.check(); err == nil || !strings.Contains(err.Error(), "ways out") {
		t.Errorf("a thousand routes by a thousand interfaces: %v", err)
	}
	d.Routes = nil
	for range maxIPs + 1 {
		d.IPs = append(d.IPs, d.IPs[0])
	}
	d.Forward = Forward{}
	if err := d.check(); err == nil || !strings.Contains(err.Error(), "may have 256") {
		t.Errorf("many addresses: %v", err)
	}
}

func TestDefinition_FirewallRules(t *testing.T) {
	for mode, want := range map[string]string{
		"":      "{b [] [] <nil>} true",
		"nat":   "{b [{10.0.0.0/24 true} {fd00::/64 false}] [] nat 1024-65535} true",
		"route": "{b [{10.0.0.0/24 false} {fd00::/64 false}] [] <nil>} true",
		"open":  "{b [] [] <nil>} false",
	} {
		forward := ""
		if mode != "" {
			forward = "<forward mode='" + mode + "'/>"
		}
		d, err := Parse("<network><name>n</name>"+forward+"<bridge name='b'/><ip address='10.0.0.1' prefix='24'/><ip address='fd00::1' prefix='64'/></network>", false)
		ok(t, err)
		r, some := d.rules()
		nat := "<nil>"
		if r.NAT != nil {
			nat = fmt.Sprintf("nat %d-%d", r.NAT.FirstPort, r.NAT.LastPort)
		}
		if got := fmt.Sprintf("{%s %v %v %s} %v", r.Bridge, r.Subnets, r.Uplinks, nat, some); got != want {
			t.Errorf("mode %q: got %s, want %s", mode, got, want)
		}
	}
}

// A host with a MAC address gets its address whatever its name is: dnsmasq takes some names for keywords and
// ignores those lines.
func TestDefinition_HostNamedLikeKeyword(t *testing.T) {
	for name, want := range map[string]string{
		"db": ",db", "db-1.example": ",db-1.example", "1st": ",1st", "h": ",h", "": "",
		"ignore": "", "infinite": "", "10": "", "2h": "", "10.0.0.9": "", "-x": "", "_x": "", "ä": "", ".": "", strings.Repeat("a", 64): "",
	} {
		d, err := Parse("<network><name>n</name>"+dhcp("<host mac='52:54:00:00:00:01' name='"+name+"' ip='10.0.0.2'/>")+"</network>", true)
		ok(t, err)
		c, _ := d.dnsmasqContent()
		if want := "52:54:00:00:00:01,10.0.0.2" + want + "\n"; c.Hosts != want {
			t.Errorf("%q is served as %q, not %q", name, c.Hosts, want)
		}
	}
	if got := (Host{Name: "10", Address: netip.MustParseAddr("10.0.0.2")}).line(); got != "10.0.0.2,10" {
		t.Errorf("a host that is known by its name alone is served as %q", got)
	}
}

// TestUpdate_AmbiguousEntryShown: an update must match one entry, and the error lists the matches.
func TestUpdate_AmbiguousEntryShown(t *testing.T) {
	d, err := Parse("<network><name>n</name>"+dhcp("<host mac='52:54:00:00:00:01' ip='10.0.0.2'/><host mac='52:54:00:00:00:02' ip='10.0.0.3'/>")+"</network>", true)
	ok(t, err)
	_, err = d.apply(Update{Command: Modify, Section: SectionDHCPHost, Parent: -1, XML: "<host mac='52:54:00:00:00:01' ip='10.0.0.3'/>"})
	want := "<host mac='52:54:00:00:00:01' ip='10.0.0.2'/>, <host mac='52:54:00:00:00:02' ip='10.0.0.3'/>; give more"
	if !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), want) {
		t.Errorf("no %q in %v", want, err)
	}
	_, err = d.apply(Update{Command: Delete, Section: SectionDHCPHost, Parent: -1, XML: "<host mac='none'/>"})
	if !fault.Is(err, fault.Invalid) || fault.About(err) != fault.XML {
		t.Errorf("a MAC address that is none: %v", err)
	}
}

// TestDefinition_EmptyElements: elements that clients print to ask for nothing.
func TestDefinition_EmptyElements(t *testing.T) {
	const dnsmasq = "http://libvirt.org/schemas/network/dnsmasq/1.0"
	for _, part := range []string{
		"<options xmlns='" + dnsmasq + "'></options>", "<options xmlns='" + dnsmasq + "'>\n  </options>", "<d:options xmlns:d='" + dnsmasq + "'/>",
		"<forward mode='none'/>", "<forward mode='none'></forward>", "<mtu size='0'/>", "<mtu/>", "<bandwidth/>", "<dns></dns>", "<domain/>", "<metadata/>", "<port/>",
	} {
		d, err := Parse("<network><name>n</name><bridge name='b'/>"+part+"</network>", true)
		if err != nil {
			t.Errorf("%s: %v", part, err)
			continue
		}
		doc, err := d.XML(0)
		if want := "<network>\n  <name>n</name>\n  <bridge name='b' stp='on' delay='0'/>\n</network>\n"; err != nil || doc != want {
			t.Errorf("%s: %v\n%s", part, err, doc)
		}
	}
	for part, want := range map[string]string{
		"<options xmlns='" + dnsmasq + "'><option/></options>": "has no value", "<vlan/>": "not supported: network/vlan", "<virtualport/>": "not supported: network/virtualport",
	} {
		if _, err := Parse("<network><name>n</name>"+part+"</network>", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", part, err, want)
		}
	}
	d, err := Parse("<network><name>n</name><options xmlns='"+dnsmasq+"'><option value='cache-size=100'/><option value=''/></options></network>", false)
	ok(t, err)
	if !slices.Equal(d.Options, []string{"cache-size=100", ""}) {
		t.Errorf("options %q", d.Options)
	}
}

// TestXML_BridgePattern: libvirt replaces "virbr%d" by a free name.
func TestXML_BridgePattern(t *testing.T) {
	for name, is := range map[string]bool{"virbr%d": true, "br%d.5": true, "%d": true, "br%s": false, "br%d%d": false, "br%": false, "br0": false, "": false} {
		_, err := Parse("<network><name>n</name><bridge name='"+name+"'/></network>", true)
		if isBridgePattern(name) != is || (err != nil) != (!is && strings.Contains(name, "%")) {
			t.Errorf("%q leaves its number open: %v, %v", name, isBridgePattern(name), err)
		}
	}
	taken := map[string]bool{"br0": true, "br1": true}
	if name, err := freeBridgeName("br%d", func(name string) bool { return taken[name] }); name != "br2" || err != nil {
		t.Errorf("free is %q, %v", name, err)
	}
	if name, err := freeBridgeName("a-name-so-long%d", func(name string) bool { return true }); err == nil {
		t.Errorf("free is %q", name)
	}
	for name, row := range map[string]string{"virbr3": "virbr%d", "br12": "br%d", "12": "virbr%d", "lan": "virbr%d", "": "virbr%d"} {
		if got := patternOf(name); got != row {
			t.Errorf("%q is of the row %q, want %q", name, got, row)
		}
	}
}

func TestUpdate_Sections(t *testing.T) {
	const before = `<network><name>n</name><forward mode='nat' dev='eth0'/><bridge name='b'/>
<dns><txt name='t' value='1'/><host ip='10.0.0.2'><hostname>h</hostname></host><srv service='s' protocol='tcp'/></dns>
<ip address='fd00::1' prefix='64'/><ip address='10.0.0.1' prefix='24'><dhcp><range start='10.0.0.5' end='10.0.0.9'/><host mac='52:54:00:00:00:01' name='a' ip='10.0.0.2'/></dhcp></ip>
<portgroup name='p'/></network>`
	for _, c := range []struct {
		command Command
		section Section
		parent  int
		xml     string
		want    string // in the new document, or after "!" in the error
	}{
		{AddLast, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:02' ip='10.0.0.3'/>", "ip='10.0.0.2'/>\n      <host mac='52:54:00:00:00:02' ip='10.0.0.3'/>"},
		{AddFirst, SectionDHCPHost, 1, "<host mac='52:54:00:00:00:02' ip='10.0.0.3'/>", "ip='10.0.0.3'/>\n      <host mac='52:54:00:00:00:01'"},
		{AddLast, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:02' ip='10.0.0.2'/>", "!already has an entry with the address 10.0.0.2: <host mac='52:54:00:00:00:01' name='a' ip='10.0.0.2'/>"},
		{AddLast, SectionDHCPHost, -1, "<host mac='52:54:0:0:0:1' ip='10.0.0.3'/>", "!already has an entry with the MAC address 52:54:00:00:00:01: <host mac='52:54:00:00:00:01' name='a' ip='10.0.0.2'/>"},
		{AddLast, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:02' name='a' ip='10.0.0.3'/>", "!already has an entry with the name a"},
		{AddLast, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:02' name='v6' ip='fd00::2'/>", "!not of the family of the <ip> 10.0.0.1"},
		{AddLast, SectionDHCPHost, 0, "<host id='0:1' name='v4' ip='10.0.0.3'/>", "!not of the family of the <ip> fd00::1"},
		{AddLast, SectionDHCPRange, -1, "<range start='fd00::20' end='fd00::29'/>", "!not of the family"},
		{AddLast, SectionDHCPHost, -1, "<host mac='none' ip='10.0.0.3'/>", `!"none" is not a MAC address`},
		{Modify, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:09' ip='10.0.0.2'/>", "<host mac='52:54:00:00:00:09' ip='10.0.0.2'/>"},
		{Modify, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:09' name='a' ip='10.0.0.4'/>", "<host mac='52:54:00:00:00:09' name='a' ip='10.0.0.4'/>"},
		{Delete, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:01' ip='10.0.0.9'/>", "!no entry"},
		{AddLast, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:02' ip='10.9.0.2'/>", "!not within"},
		{AddLast, SectionDHCPHost, 7, "<host mac='52:54:00:00:00:02' ip='10.0.0.3'/>", "!no <ip> with the number 7"},
		{AddLast, SectionDHCPHost, 0, "<host id='0:1' name='six' ip='fd00::2'/>", "<host id='0:1' name='six' ip='fd00::2'/>"},
		{AddLast, SectionDHCPHost, -1, "<range start='10.0.0.20' end='10.0.0.29'/>", "!takes a <host>"},
		{Modify, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:01' ip='10.0.0.4'/>", "<host mac='52:54:00:00:00:01' ip='10.0.0.4'/>"},
		{Modify, SectionDHCPHost, -1, "<host mac='52:54:00:00:00:09' ip='10.0.0.4'/>", `!network "n" has no entry in section ip-dhcp-host like <host mac='52:54:00:00:00:09' ip='10.0.0.4'/>`},
		{Delete, SectionDHCPHost, -1, "<host name='a'/>", "end='10.0.0.9'/>\n    </dhcp>"},
		{AddLast, SectionDHCPRange, -1, "<range start='10.0.0.20' end='10.0.0.29'/>", "<range start='10.0.0.20' end='10.0.0.29'/>"},
		{AddLast, SectionDHCPRange, -1, "<range start='10.0.0.9' end='10.0.0.29'/>", "!overlap"},
		{Modify, SectionDHCPRange, -1, "<range start='10.0.0.5' end='10.0.0.9'/>", "!cannot be modified"},
		{Delete, SectionDHCPRange, -1, "<range start='10.0.0.5' end='10.0.0.9'/>", "<dhcp>\n      <host"},
		{AddLast, SectionForwardInterface, -1, "<interface dev='eth1'/>", "<interface dev='eth0'/>\n    <interface dev='eth1'/>"},
		{Delete, SectionForwardInterface, -1, "<interface dev='eth0'/>", "<forward mode='nat'>\n    <nat>"},
		{AddLast, SectionPortGroup, -1, "<portgroup name='q'/>", "<portgroup name='q'/>"},
		{AddLast, SectionPortGroup, -1, "<portgroup name='p'/>", "!already has an entry"},
		{AddLast, SectionPortGroup, -1, "<portgroup name='q'><vlan><tag id='42'/></vlan></portgroup>", "!not supported: vlan"},
		{Modify, SectionPortGroup, -1, "<portgroup name='p' trustGuestRxFilters='yes'/>", "!not supported"},
		{Modify, SectionPortGroup, -1, "<portgroup name='p' default='yes'/>", "<portgroup name='p' default='yes'/>"},
		{AddLast, SectionDNSHost, -1, "<host ip='10.0.0.3'><hostname>h</hostname></host>", "<host ip='10.0.0.3'>"},
		{AddLast, SectionDNSHost, -1, "<host ip='10.0.0.2'><hostname>g</hostname></host>", "!already has an entry with the address 10.0.0.2: <host ip='10.0.0.2'><hostname>h</hostname></host>"},
		{Delete, SectionDNSHost, -1, "<host ip='10.0.0.2'/>", "<srv"},
		{Modify, SectionDNSTXT, -1, "<txt name='t' value='2'/>", "<txt name='t' value='2'/>"},
		{Delete, SectionDNSSRV, -1, "<srv service='s' protocol='tcp'/>", "</host>\n  </dns>"},
		{AddLast, SectionDNSSRV, -1, "<srv service='s' protocol='tcp'/>", "!already has an entry"},
		{AddLast, "bridge", -1, "<bridge name='c'/>", "!cannot be changed alone"},
		{"none", SectionDNSTXT, -1, "<txt name='u' value='2'/>", "!no command"},
		{AddLast, SectionDNSTXT, -1, "<txt", "!"},
	} {
		d, err := Parse(before, true)
		ok(t, err)
		unchanged, err := d.XML(0)
		ok(t, err)
		after, err := d.apply(Update{Command: c.command, Section: c.section, Parent: c.parent, XML: c.xml})
		if err == nil {
			err = after.check()
		}
		if reason, refused := strings.CutPrefix(c.want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s %s %s: got %v, want %q", c.command, c.section, c.xml, err, reason)
			}
			continue
		}
		ok(t, err)
		doc, err := after.XML(0)
		ok(t, err)
		if !strings.Contains(doc, c.want) {
			t.Errorf("%s %s %s: no %q in\n%s", c.command, c.section, c.xml, c.want, doc)
		}
		if still, _ := d.XML(0); still != unchanged {
			t.Errorf("%s %s %s changed the definition before it", c.command, c.section, c.xml)
		}
	}
}

func TestConflictingRoute(t *testing.T) {
	routes := []hostnet.Route{{Destination: netip.MustParsePrefix("10.0.0.0/8"), Device: "vpn"}, {Destination: netip.MustParsePrefix("192.168.122.0/24"), Device: "eth0"}}
	for prefix, want := range map[string]string{
		"192.168.122.1/24": "eth0", "192.168.0.1/16": "eth0", "192.168.122.129/25": "", "10.1.0.1/24": "", "10.0.0.1/8": "vpn", "172.16.0.1/12": "",
	} {
		got := ""
		if r := conflictingRoute(netip.MustParsePrefix(prefix), routes); r != nil {
			got = r.Device
		}
		if got != want {
			t.Errorf("%s clashes with %q, want %q", prefix, got, want)
		}
	}
}

// A network inside of a route's addresses, or around them, would take their traffic. Link-local addresses are
// on every link.
// Promise: A3
func TestOverlappingLink(t *testing.T) {
	routes := []hostnet.Route{
		{Destination: netip.MustParsePrefix("10.0.0.0/8"), Device: "vpn"},
		{Destination: netip.MustParsePrefix("192.168.122.0/24"), Device: "virbr0"},
		{Destination: netip.MustParsePrefix("fe80::/64"), Device: "eth0"},
	}
	for prefix, want := range map[string]string{
		"192.168.122.129/25": "virbr0", "192.168.0.1/16": "virbr0", "192.168.123.1/24": "", "10.1.0.1/24": "", "fe80::1/64": "",
	} {
		if got := overlappingLink(netip.MustParsePrefix(prefix), routes, func(device string) bool { return device != "vpn" }); got != want {
			t.Errorf("%s overlaps %q, want %q", prefix, got, want)
		}
	}
}

func TestDefaultNetwork_AvoidsHostNetworks(t *testing.T) {
	d := defaultNetwork(122)
	doc, err := d.XML(0)
	ok(t, err)
	if _, err := Parse(doc, true); err != nil || !strings.Contains(doc, "192.168.122.254") {
		t.Errorf("%v in\n%s", err, doc)
	}
}

func TestTryNames_FreeName(t *testing.T) {
	next := uint64(3)
	count := func(n uint64) uint64 { next += n; return next }
	var tried []string
	err := tryNames("", "vnet%d", count, func(name string) error {
		tried = append(tried, name)
		if len(tried) < 3 {
			return fault.New(fault.Exists, fault.Interface, "taken")
		}
		return nil
	})
	if got := strings.Join(tried, " "); err != nil || got != "vnet3 vnet4 vnet5" {
		t.Errorf("tried %s, %v", got, err)
	}
	if err := tryNames("mine", "vnet%d", count, func(string) error { return fault.New(fault.Exists, fault.Interface, "taken") }); !fault.Is(err, fault.Exists) {
		t.Errorf("a given name that is taken: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	docs, err := filepath.Glob("testdata/definitions/*.xml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range docs {
		doc, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(doc))
	}
	for _, inner := range slices.Sorted(maps.Keys(refusedParts)) {
		f.Add("<network><name>n</name>" + inner + "</network>")
	}
	f.Fuzz(func(t *testing.T, doc string) {
		d, err := Parse(doc, false)
		if err != nil {
			return
		}
		printed, err := d.XML(1)
		if err != nil {
			t.Fatalf("accepted and cannot be printed: %v", err)
		}
		again, err := Parse(printed, false)
		if err != nil {
			t.Fatalf("printed and refused: %v\n%s", err, printed)
		}
		if twice, _ := again.XML(1); twice != printed {
			t.Fatalf("changes when printed again:\n%s\n%s", printed, twice)
		}
		c, _ := d.dnsmasqContent()
		for line := range strings.Lines(c.Config + c.Hosts + c.Names) {
			if strings.TrimSuffix(line, "\n") == "" || strings.ContainsFunc(line[:len(line)-1], func(r rune) bool { return r < ' ' && r != '\t' }) {
				t.Fatalf("%q in the configuration of dnsmasq", line)
			}
		}
	})
}

// TestDefinition_EscapedDescriptionSize has text that is longer in its stored form: if that did not fit, the
// next daemon would not know the network.
// Promise: G3
func TestDefinition_EscapedDescriptionSize(t *testing.T) {
	d := Definition{Name: "words", Description: strings.Repeat("'", xmltree.MaxSize/5)}
	if doc, err := d.storedXML(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a definition of %d bytes is kept: %v", len(doc), err)
	}
	d.Description = "it's"
	doc, err := d.storedXML()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse(doc, true); err != nil || again.Description != d.Description {
		t.Errorf("%q comes back as %q (%v)", d.Description, again.Description, err)
	}
}
