package libvirt

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	foreign "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

// The tests in this file replay the calls of libvirt's clients, in their order.

func (h *testServer) dialForeign() *foreign.Libvirt {
	h.t.Helper()
	c := foreign.NewWithDialer(dialers.NewLocal(dialers.WithSocket(h.socket)))
	if err := c.Connect(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Disconnect() })
	return c
}

// indented is how Terraform's provider prints a document.
func indented(t *testing.T, of any) string {
	t.Helper()
	var text bytes.Buffer
	e := xml.NewEncoder(&text)
	e.Indent("  ", "    ")
	if err := e.Encode(of); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func isCode(err error, want foreign.ErrorNumber) bool {
	var e foreign.Error
	return errors.As(err, &e) && foreign.ErrorNumber(e.Code) == want
}

// terraformIP is one address of a network with DHCP, as the provider makes it of a CIDR.
func terraformIP(third int) libvirtxml.NetworkIP {
	at := func(last int) string { return fmt.Sprintf("10.17.%d.%d", third, last) }
	return libvirtxml.NetworkIP{
		Address: at(1), Prefix: 24, Family: "ipv4",
		DHCP: &libvirtxml.NetworkDHCP{Ranges: []libvirtxml.NetworkDHCPRange{{Start: at(2), End: at(254)}}},
	}
}

// TestReplay_TerraformNetworks: provider dmacvicar/libvirt 0.8, each mode. Every network has an options element for
// dnsmasq, mostly without children.
func TestReplay_TerraformNetworks(t *testing.T) {
	if !linktest.Alone(t) {
		return
	}
	linktest.Need(t, "dnsmasq", "nft")
	h := withNetworks(t)
	c := h.dialForeign()
	if err := hostnet.CreateBridge(hostnet.Bridge{Name: "br-there", MAC: []byte{0x52, 0x54, 0, 0, 0, 0x77}}); err != nil {
		t.Fatal(err)
	}
	nat := &libvirtxml.NetworkForwardNAT{Ports: []libvirtxml.NetworkForwardNATPort{{Start: 1024, End: 65535}}}
	dns := &libvirtxml.NetworkDNS{
		Enable:     "yes",
		Forwarders: []libvirtxml.NetworkDNSForwarder{{Addr: "127.0.0.53"}, {Domain: "lab.test", Addr: "10.17.1.9"}},
		Host:       []libvirtxml.NetworkDNSHost{{IP: "10.17.1.5", Hostnames: []libvirtxml.NetworkDNSHostHostname{{Hostname: "one"}, {Hostname: "two"}}}},
		SRVs:       []libvirtxml.NetworkDNSSRV{{Service: "etcd-server-ssl", Protocol: "tcp", Domain: "lab.test", Target: "etcd-0.lab.test", Port: 2380, Weight: 10}},
	}
	none := &libvirtxml.NetworkDnsmasqOptions{}
	some := &libvirtxml.NetworkDnsmasqOptions{Option: []libvirtxml.NetworkDnsmasqOption{{Value: "server=/tt.test/10.17.1.7"}, {Value: "no-hosts"}}}
	ownBridge := func(name string) *libvirtxml.NetworkBridge { return &libvirtxml.NetworkBridge{Name: name, STP: "on"} }
	for _, n := range []libvirtxml.Network{
		{
			Name: "nat", Forward: &libvirtxml.NetworkForward{Mode: "nat", NAT: nat}, Bridge: ownBridge(""), IPs: []libvirtxml.NetworkIP{terraformIP(1)}, DNS: dns,
			Domain: &libvirtxml.NetworkDomain{Name: "lab.test", LocalOnly: "yes"}, MTU: &libvirtxml.NetworkMTU{Size: 1400}, DnsmasqOptions: some,
			Routes: []libvirtxml.NetworkRoute{{Address: "10.18.0.0", Prefix: 16, Gateway: "10.17.1.2"}},
		},
		{Name: "plain", Forward: &libvirtxml.NetworkForward{Mode: "nat", NAT: nat}, Bridge: ownBridge("tf-plain"), IPs: []libvirtxml.NetworkIP{terraformIP(2)}, DnsmasqOptions: none},
		{Name: "none", Bridge: ownBridge(""), IPs: []libvirtxml.NetworkIP{terraformIP(3)}, DNS: &libvirtxml.NetworkDNS{Enable: "yes"}, DnsmasqOptions: none},
		{Name: "lone", Bridge: ownBridge(""), IPs: []libvirtxml.NetworkIP{}, DnsmasqOptions: none},
		{Name: "route", Forward: &libvirtxml.NetworkForward{Mode: "route"}, Bridge: ownBridge(""), IPs: []libvirtxml.NetworkIP{terraformIP(4)}, DnsmasqOptions: none},
		{Name: "open", Forward: &libvirtxml.NetworkForward{Mode: "open"}, Bridge: ownBridge(""), IPs: []libvirtxml.NetworkIP{terraformIP(5)}, DnsmasqOptions: none},
		{Name: "bridge", Forward: &libvirtxml.NetworkForward{Mode: "bridge"}, Bridge: &libvirtxml.NetworkBridge{Name: "br-there"}, DnsmasqOptions: none},
	} {
		t.Run(n.Name, func(t *testing.T) {
			doc := indented(t, n)
			made, err := c.NetworkDefineXML(doc)
			if err == nil {
				err = errors.Join(c.NetworkCreate(made), c.NetworkSetAutostart(made, 1))
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, doc)
			}
			text, err := c.NetworkGetXMLDesc(made, 0)
			var read libvirtxml.Network
			if err == nil {
				err = read.Unmarshal(text)
			}
			if err != nil || len(read.IPs) != len(n.IPs) || (read.DnsmasqOptions != nil) != (len(n.DnsmasqOptions.Option) > 0) {
				t.Errorf("%v: is read as\n%s", err, text)
			}
			if n.Name == "nat" {
				terraformHosts(t, c, made)
			}
			if err := errors.Join(c.NetworkDestroy(made), c.NetworkUndefine(made)); err != nil {
				t.Error(err)
			}
			if _, err := c.NetworkLookupByUUID(made.UUID); !isCode(err, foreign.ErrNoNetwork) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
	if err := hostnet.Remove("br-there"); err != nil {
		t.Error(err)
	}
}

// terraformHosts gives a guest an address: the provider modifies first, and adds where that answers 55.
func terraformHosts(t *testing.T, c *foreign.Libvirt, n foreign.Network) {
	t.Helper()
	const both = foreign.NetworkUpdateAffectConfig | foreign.NetworkUpdateAffectLive
	put := func(ip, mac, name string) error {
		entry := indented(t, struct {
			XMLName xml.Name `xml:"host"`
			libvirtxml.NetworkDHCPHost
		}{xml.Name{}, libvirtxml.NetworkDHCPHost{IP: ip, MAC: mac, Name: name}})
		err := c.NetworkUpdateCompat(n, foreign.NetworkUpdateCommandModify, foreign.NetworkSectionIPDhcpHost, 0, entry, both)
		if isCode(err, foreign.ErrOperationInvalid) {
			err = c.NetworkUpdateCompat(n, foreign.NetworkUpdateCommandAddLast, foreign.NetworkSectionIPDhcpHost, 0, entry, both)
		}
		return err
	}
	err := errors.Join(put("10.17.1.20", "52:54:00:AA:00:01", "web"), put("10.17.1.20", "52:54:00:aa:00:02", "web"), put("10.17.1.21", "52:54:00:aa:00:02", "web"))
	text, _ := c.NetworkGetXMLDesc(n, 0)
	if want := "<host mac='52:54:00:aa:00:02' name='web' ip='10.17.1.21'/>"; err != nil || strings.Count(text, "name='web'") != 1 || !strings.Contains(text, want) {
		t.Errorf("%v: no %s in\n%s", err, want, text)
	}
	if err := put("fd00::5", "52:54:00:aa:00:03", "six"); !isCode(err, foreign.ErrOperationInvalid) {
		t.Errorf("an address of another family: %v", err)
	}
}

// TestReplay_TerraformStorage makes a pool, an image, and a volume backed by it, and then the volume again.
func TestReplay_TerraformStorage(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed")
	}
	c := serve(t, withPools(t)).dialForeign()
	if _, err := c.StoragePoolLookupByName("tf"); !isCode(err, foreign.ErrNoStoragePool) {
		t.Errorf("no pool yet: %v", err)
	}
	path := filepath.Join(t.TempDir(), "tf")
	pool, err := c.StoragePoolDefineXML(indented(t, &libvirtxml.StoragePool{Type: "dir", Name: "tf", Target: &libvirtxml.StoragePoolTarget{Path: path}}), 0)
	if err == nil {
		err = errors.Join(c.StoragePoolBuild(pool, 0), c.StoragePoolSetAutostart(pool, 1), c.StoragePoolCreate(pool, 0), c.StoragePoolRefresh(pool, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	volume := func(name string, more func(*libvirtxml.StorageVolume)) string {
		v := libvirtxml.StorageVolume{
			Name:     name,
			Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: 1 << 20},
			Target: &libvirtxml.StorageVolumeTarget{
				Format: &libvirtxml.StorageVolumeTargetFormat{Type: "qcow2"}, Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: "644"},
			},
		}
		more(&v)
		return indented(t, v)
	}
	base, err := c.StorageVolCreateXML(pool, volume("base", func(*libvirtxml.StorageVolume) {}), 0)
	if err != nil {
		t.Fatal(err)
	}
	over := volume("over", func(v *libvirtxml.StorageVolume) {
		v.BackingStore = &libvirtxml.StorageVolumeBackingStore{Path: base.Key, Format: &libvirtxml.StorageVolumeTargetFormat{Type: "qcow2"}}
	})
	if _, err = c.StorageVolCreateXML(pool, over, 0); err != nil {
		t.Fatal(err)
	}
	if _, err = c.StorageVolCreateXML(pool, over, 0); !isCode(err, foreign.ErrStorageVolExist) {
		t.Errorf("a volume that is there: %v", err)
	}
	if _, err := c.StorageVolCreateXML(pool, volume("raw", func(v *libvirtxml.StorageVolume) { v.Target.Format.Type = "raw" }), 0); err != nil {
		t.Error(err)
	}
	if _, err := c.StorageVolLookupByKey(path + "/nosuch"); !isCode(err, foreign.ErrNoStorageVol) {
		t.Errorf("a volume that is not there: %v", err)
	}
}

// Vagrant creates a pool and, from a box, volumes with a label for SELinux.
// Promise: G12
func TestReplay_VagrantVolumes(t *testing.T) {
	s := storageShell(t)
	s.words["POOL"] = document(t, s.fillText(`<pool type='dir'>
  <name>default</name>
  <source>
  </source>
  <target>
    <path>DIR/vagrant</path>
    <permissions><mode>0755</mode><owner>0</owner><group>0</group></permissions>
  </target>
</pool>`))
	s.does("pool-define POOL", "Pool default defined")
	s.does("pool-build default", "built")
	s.does("pool-start default", "started")
	s.does("pool-autostart default", "marked")
	s.does("vol-create-as default box.img 1M --format qcow2", "created")
	const owned = "<permissions><owner>0</owner><group>0</group><label>virt_image_t</label></permissions>"
	s.words["VOLUME"] = document(t, s.fillText(`<volume>
  <name>test.img</name>
  <capacity unit="B">5368709120</capacity>
  <target><format type="qcow2"></format>`+owned+`<compat>1.1</compat></target>
  <backingStore><path>DIR/vagrant/box.img</path><format type="qcow2"></format>`+owned+`</backingStore>
</volume>`))
	s.does("vol-create default VOLUME", "Vol test.img created")
	s.does("vol-dumpxml test.img default", "<path>DIR/vagrant/box.img</path>", "<compat>1.1</compat>")
	s.words["KCLI"] = document(t, s.fillText(`
<volume type='file'>
<name>data.img</name>
<capacity unit="bytes">1048576</capacity>
<target>
<path>DIR/vagrant/data.img</path>
<format type='raw'/>
<permissions>

<mode>0644</mode>
</permissions>
<compat>1.1</compat>
</target>
<backingStore/>
</volume>`))
	s.does("vol-create default KCLI", "Vol data.img created")
	s.words["DUMP"] = document(t, s.does("vol-dumpxml data.img default")) // a dumped definition can be used to create the volume again
	s.does("vol-delete data.img default", "deleted")
	s.does("vol-create default DUMP", "created")
}

func (s *shell) fillText(text string) string {
	for name, value := range s.words {
		text = strings.ReplaceAll(text, name, value)
	}
	return text
}

// TestReplay_OtherNetworks: Vagrant, minikube, kcli and Cockpit.
// Promise: G12
func TestReplay_OtherNetworks(t *testing.T) {
	if !linktest.Alone(t) {
		return
	}
	linktest.Need(t, "virsh", "dnsmasq", "nft")
	h := withNetworks(t)
	for name, doc := range map[string]string{
		"vagrant-libvirt": `<network ipv6='yes'>
  <name>vagrant-libvirt</name>
  <bridge name="virbr71" stp="on" delay="0" />
  <forward mode="nat" />
    <ip address="10.19.1.1" netmask="255.255.255.0">
      <dhcp>
        <range start="10.19.1.1" end="10.19.1.254" />
        <bootp file="pxelinux.0" />
      </dhcp>
    </ip>
    <ip family='ipv6' address="fd00:19::1" prefix="64"></ip>
</network>`,
		"vagrant-private": `<network ipv6='no'>
  <name>vagrant-private</name>
  <bridge name="virbr72" stp="on" delay="0" />
  <domain name="lab.test" localOnly="yes" />
  <mtu size="1400" />
</network>`,
		"mk-minikube": `<network>
  <name>mk-minikube</name>
  <dns enable='no'/>
  <ip address='10.19.2.1' netmask='255.255.255.0'>
    <dhcp>
      <range start='10.19.2.2' end='10.19.2.253'/>
    </dhcp>
  </ip>
</network>`,
		"kcli": `<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'><name>kcli</name>
<forward mode='nat'><nat><port start='1024' end='65535'/></nat></forward>
<bridge name='kcli0' stp='on' delay='0'/>
<domain name='kcli'/>
<ip address='10.19.3.1' prefix='24' family='ipv4'>
<dhcp><range start='10.19.3.2' end='10.19.3.254'/><bootp file='pxelinux.0' server='10.19.3.2'/></dhcp></ip>
<dnsmasq:options>
  <dnsmasq:option value='dhcp-option=option:domain-search,lab.test'/>
</dnsmasq:options>
</network>`,
		"cockpit": `<network><name>cockpit</name><forward mode="nat"/><domain name="cockpit" localOnly="yes"/>
<ip address="10.19.4.1" family="ipv4" prefix="24"><dhcp><range start="10.19.4.100" end="10.19.4.254"/></dhcp></ip>
<ip address="fd00:19:4::1" family="ipv6" prefix="64"/></network>`,
		"row": `<network><name>row</name><bridge name='lab%d'/><mac address='52:54:0:0:7:1'/></network>`,
	} {
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"net-define", document(t, doc)}, "Network " + name + " defined"},
			{[]string{"net-start", name}, "Network " + name + " started"},
			{[]string{"net-autostart", name}, "marked as autostarted"},
			{[]string{"net-dumpxml", name}, "<name>" + name + "</name>"},
			{[]string{"net-destroy", name}, "destroyed"},
		} {
			if out, err := h.virsh(c.args...); err != nil || !strings.Contains(out, c.want) {
				t.Errorf("%s: virsh %v: %v\n%s", name, c.args, err, out)
			}
		}
	}
	if out, err := h.virsh("net-dumpxml", "row"); err != nil || !strings.Contains(out, "<bridge name='lab0' ") || !strings.Contains(out, "<mac address='52:54:00:00:07:01'/>") {
		t.Errorf("%v\n%s", err, out)
	}
}
