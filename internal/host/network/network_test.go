package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/scope/scopetest"
)

func TestMain(m *testing.M) { os.Exit(linktest.Main(m)) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// daemon holds what Networks needs, and what a restart keeps.
type daemon struct {
	Config
	dir string
	log bytes.Buffer
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(filepath.Join(dir, "store"))
	ok(t, err)
	t.Cleanup(func() { ok(t, st.Close()) })
	d := &daemon{dir: dir}
	d.Config = Config{
		Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run"), Instance: "t",
		Store: st, Events: event.NewLog(), Log: slog.New(slog.NewTextHandler(&d.log, nil)),
	}
	return d
}

func (d *daemon) open(t *testing.T) *Networks {
	t.Helper()
	s, err := Open(t.Context(), d.Config)
	ok(t, err)
	return s
}

// networks opens a daemon's networks and ends them with the test.
func networks(t *testing.T) *Networks {
	t.Helper()
	s := newDaemon(t).open(t)
	t.Cleanup(func() { endAll(t, s) })
	return s
}

func endAll(t *testing.T, s *Networks) {
	t.Helper()
	for _, n := range s.List() {
		if n.View().Active() {
			if err := n.Destroy(context.WithoutCancel(t.Context()), scope.Daemon("a test")); err != nil {
				t.Error(err)
			}
		}
	}
	s.Close()
}

// natNetwork is a typical NAT network, but without the spanning tree, with which each new port would wait four
// seconds.
func natNetwork(name string, third int) string {
	return fmt.Sprintf(`<network><name>%s</name><forward mode='nat'/><bridge stp='off'/>
<domain name='guests.test'/>
<dns><host ip='10.77.%[2]d.1'><hostname>gateway</hostname></host></dns>
<ip address='10.77.%[2]d.1' netmask='255.255.255.0'><dhcp>
<range start='10.77.%[2]d.100' end='10.77.%[2]d.200'/>
<host mac='52:54:00:00:00:01' name='fixed' ip='10.77.%[2]d.10'/></dhcp></ip></network>`, name, third)
}

func started(t *testing.T, s *Networks, doc string) *Network {
	t.Helper()
	n, err := s.Define(t.Context(), scope.Daemon("a test"), doc, true)
	ok(t, err)
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	return n
}

// plugIn puts a namespace with one NIC on a network's bridge.
func plugIn(t *testing.T, n *Network, near, mac string) *linktest.Guest {
	t.Helper()
	g := linktest.NewGuest(t)
	g.Cable(t, near, "eth0", mac)
	bridge, err := n.BridgeName()
	ok(t, err)
	ok(t, hostnet.SetBridge(near, bridge))
	return g
}

// lease runs a real DHCP client and returns the address that it got.
func lease(t *testing.T, g *linktest.Guest, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	script, got := filepath.Join(dir, "script"), filepath.Join(dir, "got")
	text := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = bound ] && echo \"$ip $router $dns $domain\" > %s\nexit 0\n", got)
	ok(t, os.WriteFile(script, []byte(text), 0o755))
	g.Do(func() {
		words := append([]string{"udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "10", "-T", "1", "-s", script}, more...)
		out, err := exec.CommandContext(t.Context(), "busybox", words...).CombinedOutput()
		if err != nil {
			t.Errorf("no address: %v\n%s", err, out)
		}
	})
	answer, err := os.ReadFile(got)
	ok(t, err)
	return strings.TrimSpace(string(answer))
}

// TestDNS_GuestNamedWPAD: a guest's own host name resolves, but not "wpad", at which browsers look for a
// proxy.
// Promise: X6
func TestDNS_GuestNamedWPAD(t *testing.T) {
	linktest.Need(t, "dnsmasq", "busybox", "nft")
	s := networks(t)
	n := started(t, s, natNetwork("net47", 47))
	found := map[string]bool{}
	for name, mac := range map[string]string{"web": "52:54:00:00:00:02", "wpad": "52:54:00:00:00:03", "WPAD": "52:54:00:00:00:04"} {
		g := plugIn(t, n, "c-"+name, mac)
		address, _, _ := strings.Cut(lease(t, g, "-x", "hostname:"+name), " ")
		g.Do(func() {
			if err := hostnet.AddAddress("eth0", netip.MustParsePrefix(address+"/24")); err != nil {
				t.Error(err)
			}
			// The lookup also fails because there is no IPv6 address.
			out, _ := exec.CommandContext(t.Context(), "busybox", "nslookup", name+".guests.test", "10.77.47.1").CombinedOutput()
			found[name] = strings.Contains(string(out), address)
		})
	}
	if !maps.Equal(found, map[string]bool{"web": true, "wpad": false, "WPAD": false}) {
		t.Errorf("these names are found: %v", found)
	}
}

func TestNAT_GuestGetsAddress(t *testing.T) {
	linktest.Need(t, "dnsmasq", "busybox", "nft")
	s := networks(t)
	n := started(t, s, natNetwork("net1", 1))
	fixed := plugIn(t, n, "c-fixed", "52:54:00:00:00:01")
	if got, want := lease(t, fixed), "10.77.1.10 10.77.1.1 10.77.1.1 guests.test"; got != want {
		t.Errorf("the known host got %q, want %q", got, want)
	}
	other := plugIn(t, n, "c-other", "52:54:00:00:00:02")
	if got := lease(t, other); !strings.HasPrefix(got, "10.77.1.1") {
		t.Errorf("the other got %q", got)
	}
	all, err := n.Leases("")
	ok(t, err)
	if len(all) != 2 {
		t.Fatalf("leases %+v", all)
	}
	one, err := n.Leases("52:54:00:00:00:01")
	ok(t, err)
	bridge, err := n.BridgeName()
	ok(t, err)
	if len(one) != 1 || one[0].Address.String() != "10.77.1.10" || one[0].Bits != 24 || one[0].Bridge != bridge || time.Until(one[0].Expiry) < time.Minute {
		t.Errorf("lease of the known host: %+v", one)
	}
}

// TestNAT_Traffic sends packets as a guest would: out to a host beyond, which must see the host's address,
// and from there in, which must fail.
func TestNAT_Traffic(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	s := networks(t)
	n := started(t, s, natNetwork("net2", 2))
	guest := plugIn(t, n, "c-guest", "52:54:00:00:00:03")
	beyond := linktest.NewGuest(t)
	beyond.Cable(t, "c-uplink", "eth0", "")
	ok(t, hostnet.AddAddress("c-uplink", netip.MustParsePrefix("198.51.100.1/24")))
	configure(t, guest, "10.77.2.50/24", "10.77.2.1")
	configure(t, beyond, "198.51.100.2/24", "198.51.100.1")

	listener := listen(t, beyond, "198.51.100.2:8080")
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = fmt.Fprint(c, c.RemoteAddr().String())
	}()
	if seen := dial(t, guest, "198.51.100.2:8080"); !strings.HasPrefix(seen, "198.51.100.1:") {
		t.Errorf("beyond, the guest is seen as %q, not under the host's address", seen)
	}
	inside := listen(t, guest, "10.77.2.50:8080")
	defer inside.Close()
	if seen := dial(t, beyond, "10.77.2.50:8080"); !strings.Contains(seen, "refused") {
		t.Errorf("from beyond, the guest answers: %q", seen)
	}
}

func configure(t *testing.T, g *linktest.Guest, addr, gateway string) {
	t.Helper()
	g.Do(func() {
		if err := hostnet.AddAddress("eth0", netip.MustParsePrefix(addr)); err != nil {
			t.Error(err)
		}
		if out, err := exec.CommandContext(t.Context(), "ip", "route", "add", "default", "via", gateway).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

func listen(t *testing.T, g *linktest.Guest, addr string) (l net.Listener) {
	t.Helper()
	g.Do(func() {
		var err error
		if l, err = new(net.ListenConfig).Listen(t.Context(), "tcp4", addr); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial returns what a peer sends, or the error.
func dial(t *testing.T, g *linktest.Guest, addr string) (said string) {
	t.Helper()
	g.Do(func() {
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err := d.DialContext(t.Context(), "tcp4", addr)
		if err != nil {
			said = err.Error()
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 100)
		k, _ := c.Read(b)
		said = string(b[:k])
	})
	return said
}

func TestDestroy_LeavesNothing(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d := newDaemon(t)
	s := d.open(t)
	defer s.Close()
	n := started(t, s, natNetwork("net3", 3))
	bridge, err := n.BridgeName()
	ok(t, err)
	out, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", "lodge_t").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "masquerade to :1024-65535") || !strings.Contains(string(out), bridge+"_nat") {
		t.Errorf("rules while it runs: %v\n%s", err, out)
	}
	pid := n.service.Process().PID
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	if _, err := hostnet.ByName(bridge); !fault.Is(err, fault.NotFound) {
		t.Errorf("the bridge: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", "lodge_t").CombinedOutput(); err == nil {
		t.Errorf("the rules are left:\n%s", out)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); len(line) > 0 {
			t.Error("dnsmasq is left")
		}
	}
	left, err := filepath.Glob(filepath.Join(d.Run, n.UUID()+"*"))
	ok(t, err)
	records, err := operation.FileJournal{Dir: d.Run}.Read()
	ok(t, err)
	if len(left)+len(records) > 0 {
		t.Errorf("files are left: %v, and records: %v", left, records)
	}
}

func TestAdopt_RunningNetwork(t *testing.T) {
	linktest.Need(t, "dnsmasq", "busybox", "nft")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, natNetwork("net4", 4))
	transient, err := s.Create(t.Context(), scope.Daemon("a test"), natNetwork("net5", 5), false)
	ok(t, err)
	pid, dies := n.service.Process().PID, transient.service.Process().PID
	s.Close()
	ok(t, syscall.Kill(dies, syscall.SIGKILL)) // while no daemon watches

	s = d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	n, err = s.ByName("net4")
	ok(t, err)
	if !n.View().Active() || !n.View().Persistent() || n.service.Process().PID != pid {
		t.Errorf("not adopted: %+v", n.View())
	}
	again, err := s.ByUUID(transient.UUID())
	ok(t, err)
	if !again.View().Active() || again.View().Persistent() {
		t.Errorf("the transient network was not adopted: %+v", again.View())
	}
	if got := lease(t, plugIn(t, again, "c-again", "52:54:00:00:00:01")); !strings.HasPrefix(got, "10.77.5.10 ") {
		t.Errorf("the service of the transient network was not started again: %q", got)
	}
}

func TestAdopt_UndoesInterruptedStart(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, natNetwork("net6", 6))
	bridge, err := n.BridgeName()
	ok(t, err)
	cutOff(t, n, startKind.Name, &startWork{linkWork{n: n, Definition: n.View().Live}})
	ok(t, os.Remove(n.runningFile())) // as if the daemon had died before the start was complete
	s.Close()
	s = d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	n, err = s.ByName("net6")
	ok(t, err)
	if n.View().Active() {
		t.Error("a half-made network was adopted")
	}
	if _, err := hostnet.ByName(bridge); !fault.Is(err, fault.NotFound) {
		t.Errorf("its bridge: %v", err)
	}
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
}

// cutOff begins an operation and leaves it unfinished.
func cutOff(t *testing.T, n *Network, kind string, w operation.Work) *operation.Operation {
	t.Helper()
	op, err := n.ops.Begin(scope.Daemon("a test"), kind, w, operation.Record{})
	ok(t, err)
	return op
}

func TestDnsmasq_IsRestarted(t *testing.T) {
	linktest.Need(t, "dnsmasq", "busybox")
	s := networks(t)
	n := started(t, s, natNetwork("net7", 7))
	ok(t, syscall.Kill(n.service.Process().PID, syscall.SIGKILL))
	if got := lease(t, plugIn(t, n, "c-dies", "52:54:00:00:00:01")); !strings.HasPrefix(got, "10.77.7.10 ") {
		t.Errorf("got %q", got)
	}
}

// TestBusyNetwork_BlocksNoOther blocks an operation of one network: readers, NICs and other networks must not
// wait for it.
func TestBusyNetwork_BlocksNoOther(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	stuck, other := started(t, s, natNetwork("net8", 8)), started(t, s, natNetwork("net9", 9))
	token := <-stuck.turn
	defer func() { stuck.turn <- token }()
	ok(t, other.Destroy(t.Context(), scope.Daemon("a test")))
	ok(t, other.Start(t.Context(), scope.Daemon("a test")))
	if _, err := s.Define(t.Context(), scope.Daemon("a test"), natNetwork("net22", 22), false); err != nil {
		t.Error(err)
	}
	if len(s.List()) != 3 || !stuck.View().Active() {
		t.Error("readers do not see the network as it is")
	}
	if _, err := stuck.Leases(""); err != nil {
		t.Error(err)
	}
	a, release, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: "net8", MAC: "52:54:00:01:03:01"}, "guest", nil)
	ok(t, err)
	a.Close()
	release()
	impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := stuck.Destroy(impatient, scope.Daemon("a test")); !fault.Is(err, fault.Timeout) {
		t.Errorf("a second verb: %v", err)
	}
}

func TestDestroy_HangingDnsmasq(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net23", 23))
	ok(t, syscall.Kill(n.service.Process().PID, syscall.SIGSTOP))
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
}

func TestAutostart_OncePerBoot(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	s := d.open(t)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), natNetwork("net10", 10), false)
	ok(t, err)
	ok(t, n.SetAutostart(t.Context(), scope.Daemon("a test"), true))
	s.Close()

	s = d.open(t)
	if n, err = s.ByName("net10"); err != nil || n.View().Active() || !n.View().Autostart {
		t.Errorf("after a restart of the daemon alone: %+v, %v", n.View(), err)
	}
	s.Close()

	ok(t, os.RemoveAll(d.Run)) // as a boot does
	s = d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	if n, err = s.ByName("net10"); err != nil || !n.View().Active() {
		t.Errorf("after a boot: %+v, %v", n.View(), err)
	}
}

func TestStart_RefusesEarly(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	started(t, s, natNetwork("net11", 11))
	for doc, want := range map[string]string{
		natNetwork("net12", 11): "10.77.11.0/24 are already in use",
		`<network><name>part</name><ip address='10.77.11.129' prefix='25'/></network>`:                 "10.77.11.128/25 are already in use",
		`<network><name>net13</name><bridge name='lo'/></network>`:                                     `bridge name "lo" is taken`,
		`<network><name>net14</name><forward mode='bridge'/><bridge name='lo'/></network>`:             "is no bridge",
		`<network><name>net15</name><forward mode='private'><interface dev='no'/></forward></network>`: `no network interface with name "no"`,
	} {
		n, err := s.Define(t.Context(), scope.Daemon("a test"), doc, false)
		ok(t, err)
		if err := n.Start(t.Context(), scope.Daemon("a test")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", n.Name(), err, want)
		}
		if n.View().Active() {
			t.Errorf("%s is active", n.Name())
		}
	}
}

func TestStart_ChosenBridgeNameTaken(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>net16</name></network>`, false)
	ok(t, err)
	first, err := n.BridgeName()
	ok(t, err)
	ok(t, hostnet.CreateBridge(hostnet.Bridge{Name: first}))
	t.Cleanup(func() { ok(t, hostnet.Remove(first)) })
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	second, err := n.BridgeName()
	ok(t, err)
	if first == second || n.View().Config.Bridge.Name != second {
		t.Errorf("bridge %q, then %q, kept %q", first, second, n.View().Config.Bridge.Name)
	}
}

func TestDefine_NameAndUUIDConflicts(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	const uuid, other = "b0f2a2e0-0000-4000-8000-000000000001", "b0f2a2e0-0000-4000-8000-000000000002"
	doc := func(name, uuid, bridge string) string {
		if uuid != "" {
			uuid = "<uuid>" + uuid + "</uuid>"
		}
		return fmt.Sprintf("<network><name>%s</name>%s<bridge name='%s'/></network>", name, uuid, bridge)
	}
	a, err := s.Define(t.Context(), scope.Daemon("a test"), doc("a", uuid, "kbr0"), false)
	ok(t, err)
	again, err := s.Define(t.Context(), scope.Daemon("a test"), doc("a", strings.ToUpper(uuid), "kbr1"), false)
	ok(t, err)
	if a != again || a.View().Config.Bridge.Name != "kbr1" {
		t.Errorf("redefined: %+v", a.View().Config)
	}
	for _, bad := range []string{doc("a", other, "kbr2"), doc("b", uuid, "kbr2"), doc("a", "", "kbr2")} {
		if _, err := s.Define(t.Context(), scope.Daemon("a test"), bad, false); !fault.Is(err, fault.Exists) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := s.Define(t.Context(), scope.Daemon("a test"), doc("c", other, "kbr1"), false); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), `"a"`) {
		t.Errorf("the bridge of another: %v", err)
	}
	if _, err := s.ByUUID(other); !fault.Is(err, fault.NotFound) {
		t.Errorf("a refused definition is left: %v", err)
	}
	ok(t, a.Undefine(t.Context(), scope.Daemon("a test")))
	if err := a.Start(t.Context(), scope.Daemon("a test")); !fault.Is(err, fault.NotFound) {
		t.Errorf("an undefined network starts: %v", err)
	}
	_, err = s.Define(t.Context(), scope.Daemon("a test"), doc("a", other, "kbr0"), false)
	ok(t, err)
}

func TestDefine_TransientBecomesPersistentAndBack(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	reader := d.Events.Reader()
	s := d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	doc := natNetwork("net17", 17)
	n, err := s.Create(t.Context(), scope.Daemon("a test"), doc, false)
	ok(t, err)
	if err := n.SetAutostart(t.Context(), scope.Daemon("a test"), true); !fault.Is(err, fault.WrongState) {
		t.Errorf("autostart of a transient network: %v", err)
	}
	withUUID := strings.Replace(doc, "</name>", "</name><uuid>"+n.UUID()+"</uuid>", 1)
	if _, err := s.Create(t.Context(), scope.Daemon("a test"), withUUID, false); !fault.Is(err, fault.WrongState) {
		t.Errorf("created twice: %v", err)
	}
	if _, err := s.Define(t.Context(), scope.Daemon("a test"), withUUID, false); err != nil || !n.View().Persistent() || !n.View().Active() {
		t.Errorf("defined while it runs: %v, %+v", err, n.View())
	}
	ok(t, n.Undefine(t.Context(), scope.Daemon("a test")))
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	if _, err := s.ByName("net17"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a transient network outlives its end: %v", err)
	}
	var got []event.Change
	for range 4 {
		e, _, err := reader.Next(t.Context())
		ok(t, err)
		got = append(got, e.Payload.(event.NetworkChange).Change)
	}
	if want := []event.Change{event.Started, event.Defined, event.Undefined, event.Stopped}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestUpdate_ReachesDnsmasq(t *testing.T) {
	linktest.Need(t, "dnsmasq", "busybox")
	s := networks(t)
	n := started(t, s, natNetwork("net18", 18))
	pid := n.service.Process().PID
	both := Affect{Live: true, Config: true}
	add := Update{Command: AddLast, Section: SectionDHCPHost, Parent: -1, Affect: both, XML: "<host mac='52:54:00:00:00:09' ip='10.77.18.77'/>"}
	ok(t, n.Update(t.Context(), scope.Daemon("a test"), add))
	if n.service.Process().PID != pid {
		t.Error("a new host needed a new dnsmasq")
	}
	if got := lease(t, plugIn(t, n, "c-new", "52:54:00:00:00:09")); !strings.HasPrefix(got, "10.77.18.77 ") {
		t.Errorf("got %q", got)
	}
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); !fault.Is(err, fault.WrongState) {
		t.Errorf("added twice: %v", err)
	}
	ranges := Update{Command: AddLast, Section: SectionDHCPRange, Affect: Affect{Live: true}, XML: "<range start='10.77.18.210' end='10.77.18.220'/>"}
	ok(t, n.Update(t.Context(), scope.Daemon("a test"), ranges))
	v := n.View()
	if len(v.Live.IPs[0].DHCP.Ranges) != 2 || len(v.Config.IPs[0].DHCP.Ranges) != 1 || len(v.Config.IPs[0].DHCP.Hosts) != 2 {
		t.Errorf("live %+v, kept %+v", v.Live.IPs[0].DHCP, v.Config.IPs[0].DHCP)
	}
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	if err := n.Update(t.Context(), scope.Daemon("a test"), ranges); !fault.Is(err, fault.WrongState) {
		t.Errorf("a live update of an inactive network: %v", err)
	}
}

// A change that dnsmasq or the store refuses is made neither in the running network nor in the stored one, and
// guests are served as before.
// Promise: F21
func TestUpdate_FailureKeepsService(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net30", 30))
	served, _ := n.View().Live.dnsmasqContent()
	serves := func(when string) {
		t.Helper()
		if n.service == nil {
			t.Fatal(when + ": no dnsmasq serves the guests")
		}
		select {
		case <-n.service.Ended():
			t.Fatal(when + ": the service has ended")
		default:
		}
		if config, hosts := n.service.Has(served); !config || !hosts {
			t.Errorf("%s: it serves as before: %v, the hosts of before: %v", when, config, hosts)
		}
		if v := n.View(); len(v.Live.DNS.SRVs)+len(v.Config.DNS.SRVs) > 0 || len(v.Live.IPs[0].DHCP.Hosts) != 1 || len(v.Config.IPs[0].DHCP.Hosts) != 1 {
			t.Errorf("%s: live %+v, kept %+v", when, v.Live, v.Config)
		}
	}
	both := Affect{Live: true, Config: true}
	tooLong := "<srv service='x' protocol='tcp' target='" + strings.Repeat("x", 70) + "' port='1'/>"
	if err := n.Update(t.Context(), scope.Daemon("a test"), Update{Command: AddLast, Section: SectionDNSSRV, Affect: both, XML: tooLong}); err == nil || !strings.Contains(err.Error(), "SRV") {
		t.Fatalf("dnsmasq takes a name that no DNS has: %v", err)
	}
	serves("dnsmasq refuses")

	newer := store.Kind{Name: recordKind.Name, Version: recordKind.Version + 1} // a newer record, which an older daemon does not overwrite
	ok(t, s.Store.Put(newer, n.UUID(), "of a newer daemon"))
	add := Update{Command: AddLast, Section: SectionDHCPHost, Parent: -1, Affect: both, XML: "<host mac='52:54:00:00:00:09' ip='10.77.30.77'/>"}
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); err == nil {
		t.Error("a change that is not stored succeeds")
	}
	serves("the store refuses")
	ok(t, s.Store.Delete(newer, n.UUID()))
	ok(t, n.Update(t.Context(), scope.Daemon("a test"), add))
}

// When a change fails because dnsmasq cannot be run, the guests are not served until it can be.
// Promise: F32
func TestUpdate_DnsmasqCannotRun(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	n := started(t, networks(t), natNetwork("net35", 35))
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	add := Update{Command: AddLast, Section: SectionDNSSRV, Affect: Affect{Live: true}, XML: "<srv service='x' protocol='tcp' target='y' port='1'/>"}
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); err == nil {
		t.Fatal("a change succeeds without dnsmasq")
	}
	t.Setenv("PATH", path)
	servedAgain(t, n)
}

// A refused change is not recorded as made when the run directory cannot be written. The same holds for a
// change of the running network alone that cannot be recorded.
// Promise: F21
func TestUpdate_RefusedIsNotRecorded(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net36", 36))
	inTheWay := markIsRefused(t, n)
	newer := store.Kind{Name: recordKind.Name, Version: recordKind.Version + 1} // a newer record, which an older daemon does not overwrite
	ok(t, s.Store.Put(newer, n.UUID(), "of a newer daemon"))
	add := Update{Command: AddLast, Section: SectionDNSSRV, Affect: Affect{Live: true, Config: true}, XML: "<srv service='x' protocol='tcp' target='y' port='1'/>"}
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); err == nil {
		t.Fatal("a change that is not stored is made")
	}
	add.Affect.Config = false
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); err == nil || !strings.Contains(err.Error(), "cannot record the running network") {
		t.Fatalf("a change that is not recorded: %v", err)
	}
	ok(t, os.RemoveAll(inTheWay))
	servedAgain(t, n)
	left, err := os.ReadFile(n.runningFile())
	ok(t, err)
	if strings.Contains(string(left), "<srv") || len(n.View().Live.DNS.SRVs) > 0 {
		t.Errorf("it runs as %+v, and the next daemon is left %s", n.View().Live, left)
	}
}

// markIsRefused makes writes of a network's running record fail after its service was restarted, until the
// directory that it returns is removed.
func markIsRefused(t *testing.T, n *Network) (inTheWay string) {
	t.Helper()
	inTheWay = n.runningFile() + atomicfile.Half
	dnsmasqFirst(t, "mkdir -p '"+inTheWay+"/x'; exec")
	return inTheWay
}

// dnsmasqFirst replaces dnsmasq with a shell script that does something and then runs dnsmasq.
func dnsmasqFirst(t *testing.T, do string) {
	t.Helper()
	dnsmasq, err := exec.LookPath("dnsmasq")
	ok(t, err)
	programs := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(programs, "dnsmasq"), []byte("#!/bin/sh\n"+do+" "+dnsmasq+" \"$@\"\n"), 0o700))
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
}

// servedAgain waits until a network is complete.
func servedAgain(t *testing.T, n *Network) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(30 * time.Second); n.lacks(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it is not served within half a minute")
		}
	}
	if served, _ := n.View().Live.dnsmasqContent(); n.service == nil {
		t.Error("it lacks nothing, and is not served")
	} else if config, hosts := n.service.Has(served); !config || !hosts {
		t.Error("it is served as something else")
	}
}

// A macvtap that was removed by hand, and whose name another guest's macvtap now has, is not removed a second
// time.
// Promise: F9
func TestRelease_MacvtapNameReused(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	linktest.NewGuest(t).Cable(t, "c-reused", "eth0", "")
	nic := &device.NIC{Type: "direct", HostDev: "c-reused", DirectMode: "bridge", MAC: "52:54:00:01:04:01", Target: "taken"}
	first, endFirst, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "first", nil)
	ok(t, err)
	adopted, err := s.AdoptNIC(nic, "taken", "first")
	ok(t, err)
	first.Close()
	ok(t, hostnet.Remove("taken"))
	nic.MAC = "52:54:00:01:04:02"
	second, endSecond, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "second", nil)
	ok(t, err)
	defer second.Close()
	endFirst()
	adopted()
	if l, err := hostnet.ByName("taken"); err != nil || l.MAC.String() != nic.MAC {
		t.Errorf("the end of one guest took another's NIC: %+v, %v", l, err)
	}
	endSecond()
	if _, err := hostnet.ByName("taken"); !fault.Is(err, fault.NotFound) {
		t.Errorf("the second is left: %v", err)
	}
}

// Guests that start at the same time get different interfaces, and an interface for one guest only is never
// given to two.
// Promise: F36
func TestChooseParent_Concurrently(t *testing.T) {
	s := &Networks{Config: Config{Log: slog.New(slog.DiscardHandler)}, status: newStatusWriter("")}
	n := s.newNetwork("6f2c1c5e-9a3b-4a39-8d0d-0a1f6d4f1a44", "lent")
	d := &Definition{Forward: Forward{Mode: ForwardPassthrough, Interfaces: []string{"a", "b"}}}
	first, err := n.chooseParent(d)
	ok(t, err)
	second, err := n.chooseParent(d)
	ok(t, err)
	if first == second {
		t.Errorf("both get %s", first)
	}
	if _, err := n.chooseParent(d); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("a third: %v", err)
	}
	s.addPort(nicTarget{network: n, parent: first}, Port{Interface: "m0", Parent: first})
	for _, parent := range []string{first, second} { // one is in use as a port, and the other attempt failed
		nicTarget{network: n, parent: parent}.releaseParent()
	}
	if again, err := n.chooseParent(d); err != nil || again != second {
		t.Errorf("then: %s, %v", again, err)
	}
}

// A macvtap outlives a daemon that is killed while making it. Its name is noted before it is made, and only
// when it is free, so that the next daemon can remove it.
// Promise: F1
func TestAttach_MacvtapNotedFirst(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	linktest.NewGuest(t).Cable(t, "c-noted", "eth0", "")
	var names []string
	full := errors.New("no room for a note")
	refuse := false
	note := func(name string) error {
		if _, err := hostnet.ByName(name); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s is noted, and exists already: %v", name, err)
		}
		if names = append(names, name); refuse {
			return full
		}
		return nil
	}
	nic := &device.NIC{Type: "direct", HostDev: "c-noted", DirectMode: "bridge", MAC: "52:54:00:01:08:01", Target: "noted0"}
	a, release, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", note)
	if err == nil { // not every kernel has macvtap
		a.Close()
		release()
	}
	if !slices.Equal(names, []string{"noted0"}) {
		t.Fatalf("noted: %v (%v)", names, err)
	}
	refuse = true
	if _, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", note); !errors.Is(err, full) {
		t.Errorf("one that cannot be noted: %v", err)
	}
	names, nic.Target = nil, "c-noted"
	if _, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", note); !fault.Is(err, fault.Exists) || names != nil {
		t.Errorf("by another's name: %v, noted %v", err, names)
	}
}

// An inbound limit would hold back what a guest on a link of the host sends; where it fails, it would leave a
// macvtap behind.
// Promise: F22
func TestAttach_InboundLimitOnLink(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	linktest.NewGuest(t).Cable(t, "c-bound", "eth0", "")
	started(t, s, `<network><name>net46</name><forward mode='bridge'><interface dev='c-bound'/></forward></network>`)
	nic := &device.NIC{Type: "network", Network: "net46", MAC: "52:54:00:01:0b:01", Target: "bound0", Inbound: &device.Rate{Average: 1000}}
	if _, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", nil); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a bound there: %v", err)
	}
	if _, err := hostnet.ByName("bound0"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is left: %v", err)
	}
}

// A link with the name of a NIC that a killed daemon was making is that NIC only if its MAC address matches.
// Promise: F9
func TestMayBelongTo_ComparesMACAddress(t *testing.T) {
	mac := func(text string) net.HardwareAddr {
		a, err := net.ParseMAC(text)
		ok(t, err)
		return a
	}
	parent := hostnet.Link{Index: 1, Kind: "veth", MAC: mac("52:54:00:01:0a:01")}
	for text, want := range map[string]bool{"52:54:00:01:0a:02": true, "52:54:00:01:0a:03": false, "52:54:00:01:0a:01": true} {
		l := hostnet.Link{Index: 2, Kind: "macvtap", MAC: mac(text), Parent: 1}
		if got := mayBelongTo(l, &device.NIC{MAC: "52-54-00-01-0A-02"}, []hostnet.Link{parent, l}); got != want {
			t.Errorf("one with the address %s: %v", text, got)
		}
	}
	if !mayBelongTo(hostnet.Link{Kind: "tuntap", MAC: mac("fe:54:00:01:0a:02")}, &device.NIC{MAC: "52:54:00:01:0a:02"}, nil) {
		t.Error("a tap has another address")
	}
}

// A guest outlives its network and the daemon: its macvtap is still removed when it ends.
func TestRelease_MacvtapOfDestroyedNetwork(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	linktest.NewGuest(t).Cable(t, "c-gone", "eth0", "")
	n := started(t, s, `<network><name>net41</name><forward mode='bridge'><interface dev='c-gone'/></forward></network>`)
	nic := &device.NIC{Type: "network", Network: "net41", MAC: "52:54:00:01:07:01"}
	a, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", nil)
	ok(t, err)
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	ok(t, n.Undefine(t.Context(), scope.Daemon("a test")))
	release, err := s.AdoptNIC(nic, a.IfName, "guest")
	a.Close()
	ok(t, err)
	release()
	if _, err := hostnet.ByName(a.IfName); !fault.Is(err, fault.NotFound) {
		t.Errorf("the macvtap is left: %v", err)
	}
}

// A bridge that another program made in place of a network's own is not taken for it.
// Promise: F9
func TestAttach_ForeignBridge(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net36", 36))
	name := n.View().Live.Bridge.Name
	ok(t, hostnet.Remove(name))
	nic := &device.NIC{Type: "network", Network: "net36", MAC: "52:54:00:01:06:01"}
	for _, others := range []bool{false, true} {
		if others {
			ok(t, hostnet.CreateBridge(hostnet.Bridge{Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 36}}))
		}
		if a, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", nil); !fault.Is(err, fault.WrongState) || !strings.Contains(err.Error(), name) {
			t.Errorf("with another's bridge there (%v): %+v, %v", others, a, err)
		}
	}
	ok(t, hostnet.Remove(name))
}

// A failed operation leaves no file, thread or link.
// Promise: F22
func TestFailures_LeaveNothing(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	linktest.NewGuest(t).Cable(t, "c-fails", "eth0", "")
	n := started(t, s, natNetwork("net31", 31))
	refused, err := s.Define(t.Context(), scope.Daemon("a test"), strings.Replace(natNetwork("net32", 32), "<dns>", "<dns><srv service='x' protocol='tcp' target='"+strings.Repeat("x", 70)+"' port='1'/>", 1), true)
	ok(t, err)
	fails := map[string]func() error{
		"a network that dnsmasq refuses": func() error { return refused.Start(t.Context(), scope.Daemon("a test")) },
		"an address that is taken": func() error {
			_, err := s.Create(t.Context(), scope.Daemon("a test"), strings.Replace(natNetwork("net33", 31), "net31", "net33", 1), true)
			return err
		},
		"a NIC on no bridge": func() error {
			_, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "bridge", Bridge: "c-fails", MAC: "52:54:00:01:05:01"}, "x", nil)
			return err
		},
		"a tap that is too large": func() error {
			_, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: n.Name(), MAC: "52:54:00:01:05:02", MTU: 1 << 20, Queues: 4, Model: "virtio"}, "x", nil)
			return err
		},
		"a macvtap that is too large": func() error {
			_, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "direct", HostDev: "c-fails", MAC: "52:54:00:01:05:03", MTU: 1 << 20}, "x", nil)
			return err
		},
	}
	count := func() (all [3]int) {
		for i, dir := range []string{"/proc/self/fd", "/proc/self/task", "/sys/class/net"} {
			entries, err := os.ReadDir(dir)
			ok(t, err)
			all[i] = len(entries)
		}
		return all
	}
	for what, fail := range fails {
		times := 200
		if strings.Contains(what, "dnsmasq") {
			times = 20 // each is a process
		}
		before := [3]int{}
		for i := range times {
			if err := fail(); err == nil {
				t.Fatalf("%s: it succeeds", what)
			}
			if i == times/10 {
				before = count()
			}
		}
		after := count()
		if after[0] > before[0]+3 || after[1] > before[1]+10 || after[2] > before[2] {
			t.Errorf("%s: files, threads and links were %d and are %d", what, before, after)
		}
	}
}

func TestAttach_EachType(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net19", 19))
	bridge, err := n.BridgeName()
	ok(t, err)
	g := linktest.NewGuest(t)
	g.Cable(t, "c-parent", "eth0", "")
	direct := started(t, s, `<network><name>net20</name><forward mode='passthrough'><interface dev='c-parent'/></forward></network>`)

	attach := func(nic device.NIC) (*device.NICAttachment, func()) {
		t.Helper()
		a, release, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &nic, "guest", nil)
		ok(t, err)
		t.Cleanup(a.Close)
		return a, release
	}
	a, release := attach(device.NIC{Type: "network", Network: "net19", MAC: "52:54:00:01:01:01", Model: "virtio", Queues: 2, MTU: 1400})
	l, err := hostnet.ByName(a.IfName)
	ok(t, err)
	if a.Bridge != bridge || len(a.Tap) != 2 || a.MTU != 1400 || l.MAC.String() != "fe:54:00:01:01:01" || !l.Up || l.MTU != 1400 {
		t.Errorf("attachment %+v, link %+v", a, l)
	}
	if len(a.VHost) == 0 && a.VHostReason == "" {
		t.Error("no vhost and no reason")
	}
	if doc, err := n.XML(false); err != nil || !strings.Contains(doc, "connections='1'") {
		t.Errorf("%v in %s", err, doc)
	}
	a.Close()
	release()
	if n.Connections() != 0 {
		t.Error("the NIC is still counted")
	}
	b, _ := attach(device.NIC{Type: "bridge", Bridge: bridge, MAC: "52:54:00:01:01:02", Model: "e1000"})
	if b.IfName == a.IfName || len(b.Tap) != 1 || len(b.VHost) != 0 {
		t.Errorf("after %s: %+v", a.IfName, b)
	}
	e, _ := attach(device.NIC{Type: "ethernet", Target: "mytap", MAC: "52:54:00:01:01:03"})
	if e.IfName != "mytap" || e.Bridge != "" {
		t.Errorf("%+v", e)
	}
	if u, _ := attach(device.NIC{Type: "user"}); u.IfName != "" || len(u.Tap) != 0 {
		t.Errorf("%+v", u)
	}
	m, release := attach(device.NIC{Type: "network", Network: "net20", MAC: "52:54:00:01:01:04", Model: "virtio"})
	if !strings.HasPrefix(m.IfName, "macvtap") || len(m.Tap) != 1 {
		t.Errorf("%+v", m)
	}
	if _, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: "net20", MAC: "52:54:00:01:01:05"}, "second", nil); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("a second guest on an interface that is lent whole: %v", err)
	}
	// The next daemon counts the NIC again, and would remove the macvtap as this one does.
	again, err := s.AdoptNIC(&device.NIC{Type: "network", Network: "net20", MAC: "52:54:00:01:01:04"}, m.IfName, "guest")
	ok(t, err)
	if p := direct.Ports(); len(p) != 1 || p[0].Parent != "c-parent" {
		t.Errorf("adopted: %+v", p)
	}
	m.Close()
	again()
	release()
	if _, err := hostnet.ByName(m.IfName); !fault.Is(err, fault.NotFound) {
		t.Errorf("the macvtap is left: %v", err)
	}
}

func onItsBridge(t *testing.T, guest, network string) {
	t.Helper()
	bridge, err := hostnet.ByName(network)
	ok(t, err)
	tap, err := hostnet.ByName(guest)
	ok(t, err)
	if tap.Master != bridge.Index {
		t.Errorf("the guest is not on the bridge: %+v", tap)
	}
}

func TestRestart_ReconnectsGuests(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net21", 21))
	a, release, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: "net21", MAC: "52:54:00:01:02:01"}, "guest", nil)
	ok(t, err)
	defer release()
	defer a.Close()
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	if _, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: "net21", MAC: "52:54:00:01:02:02"}, "late", nil); !fault.Is(err, fault.WrongState) {
		t.Errorf("attached to an inactive network: %v", err)
	}
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	onItsBridge(t, a.IfName, a.Bridge)
}

// A network is not reported as running, also not to the next daemon, before its guests are on the bridge
// again.
func TestRestart_ReportedAfterGuestsReconnect(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net53", 53))
	a, release, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: "net53", MAC: "52:54:00:01:0a:01"}, "guest", nil)
	ok(t, err)
	defer release()
	defer a.Close()
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	mark, made := n.runningFile()+atomicfile.Half, filepath.Join(t.TempDir(), "made")
	ok(t, syscall.Mkfifo(made, 0o600))
	dnsmasqFirst(t, "mkfifo '"+mark+"' && echo > '"+made+"'; exec") // the write of the running record waits until the pipe is read
	began := make(chan error, 1)
	go func() { began <- n.Start(t.Context(), scope.Daemon("a test")) }()
	_, err = os.ReadFile(made)
	ok(t, err)
	f, err := os.Open(mark)
	ok(t, err)
	onItsBridge(t, a.IfName, a.Bridge)
	_, err = io.ReadAll(f)
	ok(t, errors.Join(err, f.Close(), <-began))
}

// A guest on an isolated port is on an isolated port again after its network was restarted, also when the
// daemon was restarted in between.
// Promise: I22
func TestRestart_KeepsPortIsolation(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, `<network><name>apart</name><bridge stp='off'/><ip address='10.77.51.1' prefix='24'/><port isolated='yes'/></network>`)
	own := &device.NIC{Type: "network", Network: "apart", MAC: "52:54:00:01:08:01"}
	free := &device.NIC{Type: "network", Network: "apart", MAC: "52:54:00:01:08:02", Isolated: device.Off}
	taps := map[*device.NIC]string{}
	for _, nic := range []*device.NIC{own, free} {
		a, _, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), nic, "guest", nil)
		ok(t, err)
		defer a.Close()
		taps[nic] = a.IfName
	}
	areApart := func(when string) {
		t.Helper()
		for nic, tap := range taps {
			out, err := exec.CommandContext(t.Context(), "ip", "-details", "link", "show", "dev", tap).CombinedOutput()
			ok(t, err)
			if isolated := strings.Contains(string(out), "isolated on"); isolated != (nic == own) {
				t.Errorf("%s: %s is isolated: %v\n%s", when, tap, isolated, out)
			}
		}
	}
	areApart("at first")
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	areApart("after a start")
	s.Close()
	s = d.open(t)
	defer endAll(t, s)
	n, err := s.ByName("apart")
	ok(t, err)
	for nic, tap := range taps {
		_, err := s.AdoptNIC(nic, tap, "guest")
		ok(t, err)
	}
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	areApart("after a start by the next daemon")
}

// TestStart_GoldenDefinitions starts the networks that TestDefinition_Golden parses.
func TestStart_GoldenDefinitions(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	docs, err := filepath.Glob("testdata/definitions/*.xml")
	ok(t, err)
	for _, path := range docs {
		doc, err := os.ReadFile(path)
		ok(t, err)
		text := strings.ReplaceAll(string(doc), "/srv/tftp", "/")
		d, err := Parse(text, true)
		ok(t, err)
		if !d.Managed() {
			continue
		}
		n, err := s.Define(t.Context(), scope.Daemon("a test"), text, true)
		ok(t, err)
		if err := n.Start(t.Context(), scope.Daemon("a test")); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		addrs, err := hostnet.Addresses(d.Bridge.Name)
		ok(t, err)
		for _, ip := range d.IPs {
			if !slices.Contains(addrs, ip.Prefix()) {
				t.Errorf("%s: no %s among %v", path, ip.Prefix(), addrs)
			}
		}
		routes, err := hostnet.Routes()
		ok(t, err)
		for _, r := range d.Routes {
			if !slices.Contains(routes, hostnet.Route{Destination: r.Destination, Device: d.Bridge.Name}) {
				t.Errorf("%s: no %s among %v", path, r.Destination, routes)
			}
		}
		ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	}
}

// A full /run does not keep a network from being destroyed. Before, it was left without its bridge and
// reported as active.
// Promise: F26
func TestDestroy_FullRunDirectory(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, `<network><name>full</name><bridge name='br-full' stp='off'/><ip address='198.51.100.1' prefix='24'/></network>`)
	n.ops.Files = journal{write: func() error { return errors.New("no room") }}
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	if _, err := hostnet.ByName("br-full"); !fault.Is(err, fault.NotFound) || n.View().Active() {
		t.Errorf("it has ended, and its bridge is there (%v), or it is active: %v", err, n.View().Active())
	}
	s.Close()
	s = d.open(t)
	n, err := s.ByName("full")
	ok(t, err)
	if n.View().Active() {
		t.Error("the next daemon calls it active")
	}
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
}

// Promise: F26
func TestStart_LeasesFolderMissing(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d := newDaemon(t)
	s := d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	ok(t, os.RemoveAll(s.Data))
	started(t, s, `<network><name>swept</name><bridge name='br-swept' stp='off'/><ip address='198.51.100.1' prefix='24'/></network>`)
}

// No update takes a network beyond the quota of its client's definitions, stored or running, and a refused
// update changes nothing.
// Promise: A12
func TestUpdate_Quota(t *testing.T) {
	s := networks(t)
	kept := started(t, s, natNetwork("kept", 71))
	transient, err := s.Create(t.Context(), scope.Daemon("a test"), natNetwork("transient", 72), false)
	ok(t, err)
	for _, n := range []*Network{kept, transient} {
		before := n.View().StoredBytes()
		if before == 0 {
			t.Errorf("%s takes nothing", n.Name())
		}
		most := before + 400
		bounded := scopetest.Client(scopetest.Limits{Network: func(name string, written uint64) error {
			if name != n.Name() || written > most {
				return fault.New(fault.NoCapacity, fault.Network, "%s may not have %d bytes", name, written)
			}
			return nil
		}})
		long := strings.Repeat("x", 800)
		live := Affect{Live: true}
		for what, change := range map[string]func() error{
			"words": func() error { return n.SetMetadata(t.Context(), bounded, TextDescription, long, "", "", live) },
			"record": func() error {
				return n.Update(t.Context(), bounded, Update{AddLast, SectionDNSTXT, -1, "<txt name='a' value='" + long + "'/>", live})
			},
		} {
			if err := change(); !fault.Is(err, fault.NoCapacity) {
				t.Errorf("%s of %s: %v", what, n.Name(), err)
			}
		}
		if after := n.View().StoredBytes(); after != before {
			t.Errorf("%s has %d bytes, after %d", n.Name(), after, before)
		}
		ok(t, n.SetMetadata(t.Context(), bounded, TextDescription, "short", "", "", live))
		if after := n.View().StoredBytes(); after <= before || after > most {
			t.Errorf("%s has %d bytes, after %d", n.Name(), after, before)
		}
	}
}

// When dnsmasq cannot be run while a daemon adopts a network, the network is served as soon as dnsmasq can be
// run.
// Promise: F32
func TestAdopt_DnsmasqCannotRun(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	first := d.open(t)
	n := started(t, first, natNetwork("net34", 34))
	pid := n.service.Process().PID
	first.Close()
	ok(t, syscall.Kill(pid, syscall.SIGKILL))
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	second := d.open(t)
	t.Cleanup(func() { endAll(t, second) })
	n, err := second.ByName("net34")
	ok(t, err)
	if !n.View().Active() || !n.lacks() {
		t.Fatalf("active: %v, lacks something: %v", n.View().Active(), n.lacks())
	}
	t.Setenv("PATH", path)
	servedAgain(t, n)
}

// lacks reports whether a part of the network is still missing.
func (n *Network) lacks() (so bool) {
	_ = n.change(n.networks.work, func() error { so = len(n.ops.Operations()) > 0; return nil }) // a network that is gone lacks nothing
	return so
}

// journal replaces the journal by one with writes that fail or wait.
type journal struct{ write func() error }

func (j journal) Write(operation.Record) error  { return j.write() }
func (j journal) Remove(operation.Record) error { return nil }

// Two networks that are defined or started at the same time never get the same bridge, whether Lodge or the
// client chose its name.
func TestDefine_BridgeNamesConcurrently(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	never := errors.New("not made")
	names := map[string]bool{}
	beside := func(name, more string, do func(*Definition) error) error {
		d, err := Parse(`<network><name>`+name+`</name>`+more+`</network>`, true)
		ok(t, err)
		_, err = s.withNetwork(t.Context(), d, func(_ *Network, d *Definition, _ bool) error {
			names[d.Bridge.Name] = true
			return do(d)
		})
		return err
	}
	err := beside("one", "", func(*Definition) error {
		return beside("two", "", func(d *Definition) error {
			return beside("three", `<bridge name='`+d.Bridge.Name+`'/>`, func(*Definition) error { return never })
		})
	})
	if len(names) != 2 || !fault.Is(err, fault.Invalid) {
		t.Errorf("bridges %v: %v", names, err)
	}
	four, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>four</name></network>`, true)
	ok(t, err)
	const free = `<bridge name='br-free'/>`
	refused := func(*Definition) error { return never }
	for _, err := range []error{beside("four", "<uuid>"+four.UUID()+"</uuid>"+free, refused), beside("other", free, refused)} {
		if !errors.Is(err, never) {
			t.Errorf("a name is kept for what was not made: %v", err)
		}
	}

	moved := map[string]bool{}
	move := func(name string, meanwhile func() error) func() error {
		n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>`+name+`</name></network>`, true)
		ok(t, err)
		d := *n.View().Config // as for a start with another definition, which is not stored
		ok(t, hostnet.CreateBridge(hostnet.Bridge{Name: d.Bridge.Name}))
		t.Cleanup(func() { ok(t, hostnet.Remove(d.Bridge.Name)) })
		return func() error {
			return n.change(t.Context(), func() error {
				renamed, err := n.renameBridge(&d, true)
				ok(t, err)
				moved[renamed.Bridge.Name] = true
				return meanwhile()
			})
		}
	}
	ok(t, move("five", move("six", func() error { return nil }))())
	if len(moved) != 2 {
		t.Errorf("both move to %v", moved)
	}
}

// When another program takes the name of a network's bridge during the start, the failed start removes nothing
// of that bridge, including rules for its name.
func TestStart_FailureKeepsForeignRules(t *testing.T) {
	linktest.Need(t, "nft")
	d := newDaemon(t)
	s := d.open(t)
	defer endAll(t, s)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>late</name><bridge name='br-late' stp='off'/></network>`, false)
	ok(t, err)
	begun, goOn := make(chan struct{}), make(chan struct{})
	n.ops.Files = journal{write: func() error { close(begun); <-goOn; return nil }}
	started := make(chan error, 1)
	go func() { started <- n.Start(t.Context(), scope.Daemon("a test")) }()
	<-begun
	ok(t, hostnet.CreateBridge(hostnet.Bridge{Name: "br-late"}))
	defer func() { ok(t, hostnet.Remove("br-late")) }()
	ok(t, s.firewall.Apply(hostnet.ForwardRules{Bridge: "br-late"}))
	defer func() { ok(t, s.firewall.Remove("br-late")) }()
	close(goOn)
	if err := <-started; err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Fatalf("started: %v", err)
	}
	if rules := nft(t, "list", "ruleset"); !strings.Contains(rules, "chain br-late_in") {
		t.Errorf("the rules are\n%s", rules)
	}
	if _, err := os.Lstat(n.runningFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its mark: %v", err)
	}
}

// A change that is stored but cannot be recorded as running does not overwrite later changes, and still
// reaches the running network.
func TestUpdate_InterruptedKeepsLaterDefine(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, natNetwork("net37", 37))
	inTheWay := markIsRefused(t, n)
	add := Update{Command: AddLast, Section: SectionDNSSRV, Affect: Affect{Live: true, Config: true}, XML: "<srv service='x' protocol='tcp' target='y' port='1'/>"}
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); err == nil || !strings.Contains(err.Error(), "cannot record the running network") {
		t.Fatalf("a change that cannot be recorded: %v", err)
	}
	if err := n.Update(t.Context(), scope.Daemon("a test"), add); !fault.Is(err, fault.Busy) && !fault.Is(err, fault.WrongState) {
		t.Errorf("the same once more: %v", err)
	}
	_, err := s.Define(t.Context(), scope.Daemon("a test"), strings.Replace(natNetwork("net37", 37), "<name>", "<uuid>"+n.UUID()+"</uuid><title>later</title><name>", 1), true)
	ok(t, err)
	s.Close()
	ok(t, os.RemoveAll(inTheWay))
	s = d.open(t)
	defer endAll(t, s)
	n, err = s.ByName("net37")
	ok(t, err)
	if v := n.View(); v.Config == nil || v.Config.Title != "later" || len(v.Config.DNS.SRVs) > 0 || len(v.Live.DNS.SRVs) != 1 {
		t.Errorf("it is kept as %+v, and runs as %+v", v.Config, v.Live)
	}
	servedAgain(t, n)
}

// Of two networks with the same addresses that start at the same time, one is refused, as it is when they
// start in turn.
func TestStart_SameAddressesConcurrently(t *testing.T) {
	linktest.Need(t)
	s := networks(t)
	define := func(name, address string) (*Network, *Definition) {
		n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>`+name+`</name><ip address='`+address+`' prefix='24'/></network>`, true)
		ok(t, err)
		return n, n.View().Config
	}
	one, first := define("one", "10.77.48.1")
	two, second := define("two", "10.77.48.129")
	three, third := define("three", "10.77.49.1")
	admitted := func(n *Network, d *Definition) (err error) {
		_ = n.change(t.Context(), func() error { err = n.checkStart(d); return nil }) // no other network has them
		return err
	}
	ok(t, one.change(t.Context(), func() error {
		ok(t, one.checkStart(first))
		if err := admitted(two, second); !fault.Is(err, fault.Busy) {
			t.Errorf("the same addresses: %v", err)
		}
		return admitted(three, third)
	}))
	ok(t, admitted(two, second)) // the first one did not get them
}

// A network whose destroy is cancelled, for instance because the client disconnects, is destroyed all the
// same. So is one that leaves something behind.
// Promise: F26
func TestDestroy_Cancelled(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	s := networks(t)
	n := started(t, s, natNetwork("net50", 50))
	bridge, err := n.BridgeName()
	ok(t, err)
	hasEnded := func() {
		t.Helper()
		if _, err := hostnet.ByName(bridge); !fault.Is(err, fault.NotFound) || n.View().Active() {
			t.Errorf("its bridge: %v; active: %v", err, n.View().Active())
		}
	}
	pid := n.service.Process().PID
	ok(t, syscall.Kill(pid, syscall.SIGSTOP)) // a stopped process, which does not end until it is continued
	ctx, leave := context.WithCancelCause(t.Context())
	go func() {
		defer leave(nil)
		for t.Context().Err() == nil && !isToldToEnd(pid) {
			runtime.Gosched()
		}
	}()
	ok(t, n.Destroy(ctx, scope.Daemon("a test")))
	hasEnded()

	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	ok(t, os.Remove(n.runningFile()))
	ok(t, os.MkdirAll(filepath.Join(n.runningFile(), "x"), 0o700)) // a directory, which is not removed as a file is
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	hasEnded()
	if err := n.Start(t.Context(), scope.Daemon("a test")); !fault.Is(err, fault.Busy) {
		t.Errorf("it starts before the rest of it has gone: %v", err)
	}
	ok(t, os.RemoveAll(n.runningFile()))
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
}

// Leftovers of a destroyed network are removed as soon as they can be, also by the next daemon. Until then no
// network gets its UUID or the name of its bridge.
// Promise: F26
func TestDestroy_LeftoversAreRemovedLater(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d := newDaemon(t)
	s := d.open(t)
	const id = "6f2c1c5e-9a3b-4a39-8d0d-0a1f6d4f1a54"
	doc := strings.Replace(natNetwork("net54", 54), "<bridge", "<uuid>"+id+"</uuid><bridge name='br-left'", 1)
	n, err := s.Create(t.Context(), scope.Daemon("a test"), doc, true)
	ok(t, err)
	inTheWay := n.dnsmasqFiles().Hosts
	end := func() {
		t.Helper()
		ok(t, os.Remove(inTheWay))
		ok(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700)) // a directory, which is not removed as a file is
		ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
		if _, err := s.ByUUID(id); !fault.Is(err, fault.NotFound) {
			t.Errorf("it is there: %v", err)
		}
	}
	end()
	if _, err := s.Create(t.Context(), scope.Daemon("a test"), doc, true); !fault.Is(err, fault.Busy) {
		t.Errorf("another of its UUID: %v", err)
	}
	if _, err := s.Define(t.Context(), scope.Daemon("a test"), "<network><name>other</name><bridge name='br-left'/></network>", true); !fault.Is(err, fault.Invalid) {
		t.Errorf("another of its bridge: %v", err)
	}
	ok(t, os.RemoveAll(inTheWay))
	within(t, "another can be made", func() bool {
		n, err = s.Create(t.Context(), scope.Daemon("a test"), doc, true)
		return err == nil
	})
	end()
	s.Close()
	s = d.open(t)
	defer s.Close()
	if _, err := s.Create(t.Context(), scope.Daemon("a test"), doc, true); !fault.Is(err, fault.Busy) {
		t.Errorf("another of its UUID under the next daemon: %v", err)
	}
	ok(t, os.RemoveAll(inTheWay))
	within(t, "nothing is left", func() bool {
		left, err := filepath.Glob(filepath.Join(d.Run, "*"+id+"*"))
		records, unread := operation.FileJournal{Dir: d.Run}.Read()
		return len(left)+len(records) == 0 && err == nil && unread == nil
	})
}

// An operation that a newer daemon began is left to that daemon, and its network stays unchanged.
func TestAdopt_OperationOfNewerDaemon(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, natNetwork("net55", 55))
	files := operation.FileJournal{Dir: d.Run}
	record := operation.Record{ID: "later", Kind: "network-mirror", Version: 1, Owner: n.UUID()}
	ok(t, files.Write(record))
	s.Close()
	s = d.open(t)
	n, err := s.ByName("net55")
	ok(t, err)
	if err := n.Start(t.Context(), scope.Daemon("a test")); !errors.Is(err, operation.ErrUnknown) {
		t.Errorf("it is started: %v", err)
	}
	s.Close()
	ok(t, files.Remove(record))
	s = d.open(t)
	defer endAll(t, s)
	if n, err = s.ByName("net55"); err != nil || !n.View().Active() {
		t.Errorf("the later daemon finds it ended: %v", err)
	}
}

// Each kind of operation names its steps, from which the crash matrix takes its fail points.
func TestKinds_NameTheirSteps(t *testing.T) {
	n := networks(t).newNetwork("u", "n")
	d, err := Parse(natNetwork("net56", 56), true)
	ok(t, err)
	for _, managed := range []bool{true, false} {
		if !managed {
			d.Forward.Mode = ForwardBridge
		}
		made := linkWork{n: n, Definition: &d}
		for _, w := range []struct {
			operation.Kind[*Network]
			work operation.Work
		}{{startKind, &startWork{made}}, {stopKind, &stopWork{made}}, {updateKind, &updateWork{}}, {updateKind, &updateWork{Saved: &record{}}}, {repairKind, &repairWork{}}} {
			ok(t, w.Check(w.work))
		}
	}
}

// isToldToEnd says whether a stopped process has a pending SIGTERM, or is gone.
func isToldToEnd(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, line, _ := strings.Cut(string(status), "ShdPnd:")
	var waiting uint64
	_, scanned := fmt.Sscanf(line, "%x", &waiting)
	return err != nil || scanned == nil && waiting&(1<<(syscall.SIGTERM-1)) != 0
}

// The end of a guest does not remove a newer NIC with the same name from its network's list.
func TestRelease_PortNameReused(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, natNetwork("net52", 52))
	attach := func(owner, mac string) (*device.NICAttachment, func()) {
		a, release, err := s.AttachNIC(t.Context(), scope.Daemon("a test"), &device.NIC{Type: "network", Network: "net52", MAC: mac, Target: "reused"}, owner, nil)
		ok(t, err)
		return a, release
	}
	first, endFirst := attach("first", "52:54:00:01:09:01")
	first.Close() // as when its QEMU ends
	second, endSecond := attach("second", "52:54:00:01:09:02")
	defer second.Close()
	endFirst()
	if ports := n.Ports(); len(ports) != 1 || ports[0].Owner != "second" {
		t.Errorf("plugged in are %+v", ports)
	}
	endSecond()
	if ports := n.Ports(); len(ports) > 0 {
		t.Errorf("plugged in are still %+v", ports)
	}
}

// A client disconnects while dnsmasq goes into the background, before its pid file is written. That dnsmasq is
// still ended: else it would serve the next network of that name with this network's configuration.
// Promise: F26
func TestStart_CancelledWhileDnsmasqForks(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), `<network><name>net43</name><ip address='192.168.143.1' netmask='255.255.255.0'><dhcp><range start='192.168.143.2' end='192.168.143.9'/></dhcp></ip></network>`, true)
	ok(t, err)
	dir := t.TempDir()
	never, forked := filepath.Join(dir, "never"), filepath.Join(dir, "forked")
	ok(t, unix.Mkfifo(never, 0o600))
	ok(t, unix.Mkfifo(forked, 0o600))
	t.Cleanup(func() { // ends the readers of the pipe
		f, err := os.OpenFile(never, os.O_RDWR, 0)
		ok(t, err)
		ok(t, f.Close())
	})
	before := os.Getenv("PATH")
	dnsmasqFirst(t, "(read x < "+never+") > "+dir+"/said 2>&1 & echo > "+forked+"; read x < "+never+";")
	ctx, leave := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	go func() {
		_, err := os.ReadFile(forked) // when both pipes are there
		leave(errors.Join(gone, err))
	}()
	if err := n.Start(ctx, scope.Daemon("a test")); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	ok(t, err)
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), n.dnsmasqFiles().Config) {
			t.Errorf("%s is left: %q", path, line)
		}
	}
	t.Setenv("PATH", before)
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
}

// When the store may have lost a network's definition, the network's leases stay, and so the guests keep their
// addresses.
// Promise: S9
func TestAdopt_KeepsLeasesOfUnreadableRecords(t *testing.T) {
	d := newDaemon(t)
	ok(t, os.MkdirAll(d.Data, 0o700))
	path := filepath.Join(d.Data, "6f2c1c5e-9a3b-4a39-8d0d-0a1f6d4f1a43.leases")
	ok(t, os.WriteFile(path, nil, 0o600))
	d.open(t).Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("of a store that was made just now: %v", err)
	}
	whole, err := store.Open(filepath.Join(d.dir, "whole"))
	ok(t, err)
	ok(t, errors.Join(whole.MarkComplete(), whole.Close()))
	d.Store, err = store.Open(filepath.Join(d.dir, "whole"))
	ok(t, err)
	d.open(t).Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a whole one: %v", err)
	}
	ok(t, d.Store.Close())
}

// An interrupted change is in both the running and the stored network, or in neither, also when the next
// daemon cannot record it at once.
// Promise: F32
func TestUpdate_InterruptedIsAtomic(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	s := d.open(t)
	n := started(t, s, `<network><name>net44</name><domain name='before.lan'/><ip address='192.168.144.1' netmask='255.255.255.0'/></network>`)
	domains := func() [3]string {
		t.Helper()
		var kept record
		ok(t, d.Store.Get(recordKind, n.uuid, &kept))
		stored, err := Parse(kept.Definition, false)
		ok(t, err)
		v := n.View()
		return [3]string{v.Live.Domain.Name, v.Config.Domain.Name, stored.Domain.Name}
	}
	cut := func(to string, isStored bool) {
		t.Helper()
		after := *n.View()
		live, config := *after.Live, *after.Config
		live.Domain.Name, config.Domain.Name = to, to
		after.Live, after.Config = &live, &config
		u := &updateWork{n: n, before: n.View().Live, Live: &live, config: &config}
		var err error
		u.Saved, err = after.record()
		ok(t, err)
		ok(t, n.change(t.Context(), func() error {
			cutOff(t, n, updateKind.Name, u)
			err := u.reconfigure(t.Context())
			if err == nil && isStored {
				err = u.storeDefinition(t.Context())
			}
			return err
		}))
		s.Close()
	}
	adopted := func() {
		t.Helper()
		s = d.open(t)
		var err error
		n, err = s.ByName("net44")
		ok(t, err)
	}
	cut("never.lan", false)
	adopted()
	if got := domains(); got != [3]string{"before.lan", "before.lan", "before.lan"} {
		t.Errorf("before it was stored: %v", got)
	}
	servedAgain(t, n)
	cut("after.lan", true)
	adopted()
	if got := domains(); got != [3]string{"after.lan", "after.lan", "after.lan"} {
		t.Errorf("after it was stored: %v", got)
	}
	servedAgain(t, n)
	cut("late.lan", true)
	inTheWay := n.runningFile() + atomicfile.Half
	ok(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	adopted()
	t.Cleanup(func() { endAll(t, s) })
	if got := domains(); got[1] != "late.lan" || got[2] != "late.lan" || !n.lacks() {
		t.Errorf("when it cannot be recorded: %v; something is owed: %v", got, n.lacks())
	}
	ok(t, os.RemoveAll(inTheWay))
	servedAgain(t, n)
	if got := domains(); got != [3]string{"late.lan", "late.lan", "late.lan"} {
		t.Errorf("when it can be recorded: %v", got)
	}
}

// A guest's NIC may join the bridge just before its network restarts, when the network does not list it yet.
// It is plugged in again, too.
// Promise: F36
func TestRestart_GuestStartsMeanwhile(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	s := networks(t)
	n := started(t, s, `<network><name>net45</name><bridge name='net45'/><port isolated='yes'/><ip address='192.168.145.1' netmask='255.255.255.0'/></network>`)
	files, err := hostnet.OpenTransientTap(hostnet.Tap{Name: "late45", Bridge: "net45"})
	ok(t, err)
	defer files[0].Close()
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	port := Port{Interface: "late45"}
	release := s.addNewPort(nicTarget{network: n, bridge: "net45"}, port)
	onItsBridge(t, "late45", "net45")
	release()
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	n.connectNewPort(port) // the NIC is on no bridge then
	if l, err := hostnet.ByName("late45"); err != nil || l.Master != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}
