package libvirt

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// withNetworks serves virtual networks, in a network namespace of the test's own.
func withNetworks(t *testing.T) *testServer {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return serve(t, func(s *rpc.Server) {
		nets, err := network.Open(t.Context(), network.Config{
			Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run"),
			Store: st, Events: s.Handlers.Events, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nets.Close)
		s.Handlers.Networks = nets
	})
}

func document(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "doc.xml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestVirsh_Networks runs the network commands of the distribution's virsh.
func TestVirsh_Networks(t *testing.T) {
	if !linktest.Alone(t) {
		return
	}
	linktest.Need(t, "virsh", "dnsmasq")
	h := withNetworks(t)
	t.Setenv("EDITOR", "sed -i s/0.99/0.50/")
	lab := document(t, `<network><name>lab</name><forward mode='nat'/><bridge stp='off'/>
<ip address='10.66.0.1' netmask='255.255.255.0'><dhcp><range start='10.66.0.2' end='10.66.0.99'/></dhcp></ip></network>`)
	passing := document(t, `<network><name>passing</name><bridge name='passbr'/></network>`)
	wrong := document(t, `<network><name>wrong</name><bandwidth><inbound average='1'/></bandwidth></network>`)
	host := "<host mac='52:54:00:00:00:07' name='seven' ip='10.66.0.7'/>"

	for _, c := range []struct {
		args []string
		want string // a regular expression; one that begins with ! must not match
	}{
		{[]string{"net-list", "--all"}, `^Name   State   Autostart   Persistent\n-+$`},
		{[]string{"net-define", lab}, `^Network lab defined from `},
		{[]string{"net-define", "--validate", document(t, "<network><name>x</name><nonsense/></network>")}, `unknown element or attribute: nonsense`},
		{[]string{"net-define", wrong}, `unsupported configuration: network "wrong" uses elements that are not supported: network/bandwidth; limit each guest`},
		{[]string{"net-define", lab}, `error: operation failed: network "lab" already exists with UUID`},
		{[]string{"net-list"}, `!lab`},
		{[]string{"net-list", "--inactive"}, `lab\s+inactive\s+no\s+yes`},
		{[]string{"net-start", "lab"}, `^Network lab started$`},
		{[]string{"net-start", "lab"}, `Requested operation is not valid: network "lab" is already active`},
		{[]string{"net-autostart", "lab"}, `^Network lab marked as autostarted$`},
		{[]string{"net-list"}, `lab\s+active\s+yes\s+yes`},
		{[]string{"net-list", "--name", "--autostart"}, `^lab$`},
		{[]string{"net-info", "lab"}, `Name:\s+lab\nUUID:\s+[-0-9a-f]{36}\nActive:\s+yes\nPersistent:\s+yes\nAutostart:\s+yes\nBridge:\s+virbr0`},
		{[]string{"net-uuid", "lab"}, `^[-0-9a-f]{36}$`},
		{[]string{"net-dumpxml", "lab"}, `<bridge name='virbr0' stp='off' delay='0'/>\n  <mac address='52:54:00:[:0-9a-f]{8}'/>\n  <ip address='10.66.0.1' netmask='255.255.255.0'>`},
		{[]string{"net-update", "lab", "add", "ip-dhcp-host", host, "--live", "--config"}, `^Updated network lab persistent config and live state$`},
		{[]string{"net-update", "lab", "add", "ip-dhcp-host", host, "--live"}, `Requested operation is not valid: .*already has an entry`},
		{[]string{"net-dumpxml", "lab"}, regexp.QuoteMeta(host)},
		{[]string{"net-dumpxml", "--inactive", "lab"}, regexp.QuoteMeta(host)},
		{[]string{"net-update", "lab", "modify", "ip-dhcp-host", strings.Replace(host, "0.7", "0.8", 1), "--config"}, `^Updated network lab persistent config$`},
		{[]string{"net-dumpxml", "lab"}, `ip='10.66.0.7'`},
		{[]string{"net-dumpxml", "--inactive", "lab"}, `ip='10.66.0.8'`},
		{[]string{"net-update", "lab", "delete", "ip-dhcp-host", "<host mac='52:54:00:00:00:07'/>"}, `^Updated network lab live state$`},
		{[]string{"net-update", "lab", "add", "bridge", "<bridge/>"}, `section "bridge" of a network cannot be changed alone`},
		{[]string{"net-dhcp-leases", "lab"}, `Expiry Time\s+MAC address\s+Protocol\s+IP address\s+Hostname\s+Client ID or DUID`},
		{[]string{"net-create", passing}, `^Network passing created from `},
		{[]string{"net-list", "--transient"}, `passing\s+active\s+no\s+no`},
		{[]string{"net-autostart", "passing"}, `passing" is transient`},
		{[]string{"net-destroy", "passing"}, `^Network passing destroyed$`},
		{[]string{"net-info", "passing"}, `error: failed to get network 'passing'`},
		{[]string{"net-autostart", "--disable", "lab"}, `^Network lab unmarked as autostarted$`},
		{[]string{"net-edit", "lab"}, `^Network lab XML configuration edited\.$`},
		{[]string{"net-dumpxml", "--inactive", "lab"}, `end='10.66.0.50'`},
		{[]string{"net-destroy", "lab"}, `^Network lab destroyed$`},
		{[]string{"net-undefine", "lab"}, `^Network lab has been undefined$`},
		{[]string{"net-list", "--all"}, `!lab`},
	} {
		out, err := h.virsh(c.args...)
		want, not := strings.CutPrefix(c.want, "!")
		if regexp.MustCompile(want).MatchString(out) == not {
			t.Errorf("virsh %s: %v, want %s, got\n%s", strings.Join(c.args, " "), err, c.want, out)
		}
	}
}

// TestNetwork_OlderCalls makes calls that virsh no longer makes, and calls that it does
// not make yet.
func TestNetwork_OlderCalls(t *testing.T) {
	if !linktest.Alone(t) {
		return
	}
	h := withNetworks(t)
	w := h.open("")
	var on, off xdr.WithNetwork
	w.must(xdr.ProcNetworkCreateXML, &xdr.WithXML{XML: "<network><name>on</name></network>"}, &on)
	w.must(xdr.ProcNetworkDefineXML, &xdr.WithXML{XML: "<network><name>off</name></network>"}, &off)
	for _, c := range []struct {
		list, count int32
		name        string
	}{
		{xdr.ProcConnectListNetworks, xdr.ProcConnectNumOfNetworks, "on"},
		{xdr.ProcConnectListDefinedNetworks, xdr.ProcConnectNumOfDefinedNetworks, "off"},
	} {
		var names xdr.WithNames
		var count xdr.WithCount
		w.must(c.list, &xdr.WithMaxNames{MaxNames: 8}, &names)
		w.must(c.count, nil, &count)
		if count.Count != 1 || len(names.Names) != 1 || names.Names[0] != c.name {
			t.Errorf("%d: %v, count %d", c.list, names.Names, count.Count)
		}
	}
	uri, key, doc := "http://example.com/1", "app", "<role kind=\"web\"/>"
	set := &xdr.NetworkSetMetadataArgs{Network: off.Network, Type: 2, Metadata: &doc, Key: &key, URI: &uri}
	get := &xdr.NetworkGetMetadataArgs{Network: off.Network, Type: 2, URI: &uri}
	w.refused(xdr.ProcNetworkGetMetadata, get, rpc.CodeNoMetadata)
	w.must(xdr.ProcNetworkSetMetadata, set, nil)
	var got xdr.WithMetadata
	w.must(xdr.ProcNetworkGetMetadata, get, &got)
	if strings.TrimSpace(got.Metadata) != doc {
		t.Errorf("metadata %q", got.Metadata)
	}
	title := "A title"
	w.must(xdr.ProcNetworkSetMetadata, &xdr.NetworkSetMetadataArgs{Network: off.Network, Type: 1, Metadata: &title}, nil)
	var described xdr.WithXML
	w.must(xdr.ProcNetworkGetXMLDesc, &xdr.NetworkGetXMLDescArgs{Network: off.Network}, &described)
	if !strings.Contains(described.XML, "<title>A title</title>") || !strings.Contains(described.XML, "<app:role kind=\"web\" xmlns:app=\"http://example.com/1\"/>") {
		t.Errorf("the document is\n%s", described.XML)
	}
	h.open("-ro").refused(xdr.ProcNetworkDestroy, &on, rpc.CodeOperationDenied)
	w.must(xdr.ProcNetworkDestroy, &on, nil)
	w.refused(xdr.ProcNetworkDestroy, &on, rpc.CodeNoNetwork)
}
