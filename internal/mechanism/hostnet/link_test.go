package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

func TestMain(m *testing.M) { os.Exit(linktest.Main(m)) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckName(t *testing.T) {
	for name, valid := range map[string]bool{
		"virbr0": true, "br-0123456789ab": true, "br-0123456789abc": false, "": false, "..": false,
		"a/b": false, "a b": false, "a\x00b": false, "vnet%d": false, "br:0": false,
	} {
		if err := CheckName(name); (err == nil) != valid {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}

func bridge(t *testing.T, name string) {
	t.Helper()
	ok(t, CreateBridge(Bridge{Name: name}))
	t.Cleanup(func() { ok(t, Remove(name)) })
	ok(t, SetUp(name))
}

func TestBridge_Settings(t *testing.T) {
	linktest.Need(t)
	mac, _ := net.ParseMAC("52:54:00:11:22:33")
	ok(t, CreateBridge(Bridge{Name: "lbr0", MAC: mac, MTU: 1400, STP: true, Delay: 7 * time.Second}))
	ok(t, AddAddress("lbr0", netip.MustParsePrefix("10.9.8.1/24")))
	ok(t, AddAddress("lbr0", netip.MustParsePrefix("fd00:9::1/64")))
	ok(t, SetUp("lbr0"))
	l, err := ByName("lbr0")
	ok(t, err)
	if l.Kind != "bridge" || l.MAC.String() != mac.String() || l.MTU != 1400 || !l.Up {
		t.Errorf("got %+v", l)
	}
	for file, want := range map[string]string{"stp_state": "1", "forward_delay": "700"} {
		text, err := os.ReadFile(filepath.Join("/sys/class/net/lbr0/bridge", file))
		ok(t, err)
		if got := strings.TrimSpace(string(text)); got != want {
			t.Errorf("%s = %s, want %s", file, got, want)
		}
	}
	addrs, err := Addresses("lbr0")
	ok(t, err)
	if !slices.Contains(addrs, netip.MustParsePrefix("10.9.8.1/24")) || !slices.Contains(addrs, netip.MustParsePrefix("fd00:9::1/64")) {
		t.Errorf("addresses %v", addrs)
	}
	routes, err := Routes()
	ok(t, err)
	if !slices.Contains(routes, Route{netip.MustParsePrefix("10.9.8.0/24"), "lbr0"}) {
		t.Errorf("routes %v", routes)
	}
	if err := CreateBridge(Bridge{Name: "lbr0"}); !fault.Is(err, fault.Exists) {
		t.Errorf("a second bridge of that name: %v", err)
	}
	ok(t, Remove("lbr0"))
	ok(t, Remove("lbr0"))
	if _, err := ByName("lbr0"); !fault.Is(err, fault.NotFound) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestTap_LifeOfItsFiles(t *testing.T) {
	linktest.Need(t)
	bridge(t, "lbr1")
	mac, _ := net.ParseMAC("fe:54:00:11:22:33")
	files, err := OpenTap(Tap{Name: "ltap0", Queues: 4, VNetHeader: true, MAC: mac, MTU: 1300, Bridge: "lbr1", Isolated: true, Up: true})
	ok(t, err)
	defer closeAll(files)
	if len(files) != 4 {
		t.Fatalf("%d files for 4 queues", len(files))
	}
	l, err := ByName("ltap0")
	ok(t, err)
	br, err := ByName("lbr1")
	ok(t, err)
	if l.Master != br.Index || l.MAC.String() != mac.String() || l.MTU != 1300 || !l.Up {
		t.Errorf("got %+v", l)
	}
	if _, err := OpenTap(Tap{Name: "ltap0", Queues: 4}); !fault.Is(err, fault.Exists) {
		t.Errorf("the name of another tap: %v", err)
	}
	if _, err := OpenTap(Tap{Name: "lbr1"}); !fault.Is(err, fault.Exists) {
		t.Errorf("the name of another link: %v", err)
	}
	closeAll(files)
	if _, err := ByName("ltap0"); !fault.Is(err, fault.NotFound) {
		t.Errorf("after its files: %v", err)
	}
}

func TestTap_Failed(t *testing.T) {
	linktest.Need(t)
	for _, persistent := range []bool{false, true} {
		if _, err := OpenTap(Tap{Name: "ltap1", Bridge: "no-such-bridge", Persistent: persistent}); !fault.Is(err, fault.NotFound) {
			t.Fatalf("got %v", err)
		}
		if _, err := ByName("ltap1"); !fault.Is(err, fault.NotFound) {
			t.Errorf("the tap is left (persistent %v)", persistent)
		}
	}
}

func TestTap_Persistent(t *testing.T) {
	linktest.Need(t)
	files, err := OpenTap(Tap{Name: "ltap2", Persistent: true, Owner: 65534})
	ok(t, err)
	closeAll(files)
	_, err = ByName("ltap2")
	ok(t, err)
	ok(t, Remove("ltap2"))
}

func TestMacvtap_EachMode(t *testing.T) {
	linktest.Need(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lparent"
	ok(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "lfar"}))
	t.Cleanup(func() { ok(t, Remove("lparent")) })
	before, err := ByName("lparent")
	ok(t, err)
	mac, _ := net.ParseMAC("52:54:00:44:55:66")
	for mode, name := range []string{VEPA: "vepa", BridgeMode: "bridge", Private: "private", Passthrough: "passthru"} {
		files, err := OpenMacvtap(Macvtap{Name: "lmv0", Parent: "lparent", Mode: MacvtapMode(mode), MAC: mac, Queues: 2, VNetHeader: true, Up: true})
		if errors.Is(err, os.ErrNotExist) {
			t.Skip("no device nodes for macvtap here:", err)
		}
		ok(t, err)
		l, err := netlink.LinkByName("lmv0")
		ok(t, err)
		if got := l.(*netlink.Macvtap).Mode; got != macvtapModes[mode] || l.Attrs().HardwareAddr.String() != mac.String() || len(files) != 2 {
			t.Errorf("mode %s: got %v with %d files, MAC %s", name, got, len(files), l.Attrs().HardwareAddr)
		}
		if _, err := OpenMacvtap(Macvtap{Name: "lmv0", Parent: "lparent"}); !fault.Is(err, fault.Exists) && mode != int(Passthrough) {
			t.Errorf("a second of that name: %v", err)
		}
		closeAll(files)
		ok(t, Remove("lmv0"))
	}
	if after, err := ByName("lparent"); err != nil || after.MAC.String() != before.MAC.String() {
		t.Errorf("the parent has MAC %v after pass-through, %v before; %v", after.MAC, before.MAC, err)
	}
	if _, err := OpenMacvtap(Macvtap{Name: "lmv1", Parent: "no-such"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("no parent: %v", err)
	}
}

func TestVHost_OpenOrReason(t *testing.T) {
	files, err := OpenVHost(2)
	if err == nil {
		defer closeAll(files)
		if len(files) != 2 {
			t.Fatalf("%d files for 2 queues", len(files))
		}
		return
	}
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "vhost_net") {
		t.Fatalf("no reason in %v", err)
	}
}

func TestLink_CountersAndNeighbours(t *testing.T) {
	linktest.Need(t)
	bridge(t, "lbr2")
	ok(t, AddAddress("lbr2", netip.MustParsePrefix("10.9.7.1/24")))
	g := linktest.NewGuest(t)
	g.Cable(t, "lcable", "eth0", "52:54:00:aa:bb:cc")
	ok(t, SetBridge("lcable", "lbr2"))
	heard, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "10.9.7.1:0")
	ok(t, err)
	defer func() { _ = heard.Close() }()
	g.Do(func() {
		if err := AddAddress("eth0", netip.MustParsePrefix("10.9.7.2/24")); err != nil {
			t.Error(err)
			return
		}
		c, err := new(net.Dialer).DialContext(t.Context(), "udp4", heard.LocalAddr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
	})
	ok(t, heard.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, from, err := heard.ReadFrom(make([]byte, 16))
	ok(t, err)
	// Answering makes the host learn the guest's hardware address.
	_, err = heard.WriteTo([]byte("you"), from)
	ok(t, err)
	all, err := All()
	ok(t, err)
	i := slices.IndexFunc(all, func(l Link) bool { return l.Name == "lcable" })
	if i < 0 || all[i].RxPackets == 0 || all[i].RxBytes == 0 {
		t.Fatalf("no traffic on the cable in %+v", all)
	}
	list, err := Neighbours()
	ok(t, err)
	if !slices.ContainsFunc(list, func(n Neighbour) bool {
		return n.Address == netip.MustParseAddr("10.9.7.2") && n.MAC.String() == "52:54:00:aa:bb:cc"
	}) {
		t.Errorf("the guest is not among the neighbours %v", list)
	}
}
