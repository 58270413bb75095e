package network

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// TestStatus_LibvirtsFormat: the fields that readers of libvirt's files look for, with names that guests
// choose.
func TestStatus_LibvirtsFormat(t *testing.T) {
	address := netip.MustParseAddr
	body, err := json.Marshal(statusOf([]hostnet.Lease{
		{Expiry: time.Unix(1700000000, 0), MAC: "52:54:00:00:00:01", Address: address("192.168.122.2"), Hostname: `a"b\c`, ClientID: "01:52:54:00:00:00:01"},
		{MAC: "52:54:00:00:00:02", Address: address("192.168.122.3")},
		{Expiry: time.Unix(1700000000, 0), MAC: "52:54:00:00:00:01", IAID: "7", Address: address("fd00::2"), ClientID: "00:03:00:01:52:54:00:00:00:01"},
		{Expiry: time.Unix(1700000000, 0), Address: address("fd00::3"), ClientID: "00:02"}, // has no MAC address
	}))
	ok(t, err)
	want := `[{"ip-address":"192.168.122.2","mac-address":"52:54:00:00:00:01","hostname":"a\"b\\c","client-id":"01:52:54:00:00:00:01","expiry-time":1700000000},` +
		`{"ip-address":"192.168.122.3","mac-address":"52:54:00:00:00:02","expiry-time":0},` +
		`{"iaid":"7","ip-address":"fd00::2","mac-address":"52:54:00:00:00:01","client-id":"00:03:00:01:52:54:00:00:00:01","expiry-time":1700000000}]`
	if string(body) != want {
		t.Errorf("%s\nwant\n%s", body, want)
	}
	body, err = json.Marshal(macsOf([]Port{{MAC: "52:54:00:00:00:01", Owner: "web"}, {MAC: "52:54:00:00:00:02", Owner: "db"}, {MAC: "52:54:00:00:00:03", Owner: "web"}}))
	ok(t, err)
	if want := `[{"domain":"web","macs":["52:54:00:00:00:01","52:54:00:00:00:03"]},{"domain":"db","macs":["52:54:00:00:00:02"]}]`; string(body) != want {
		t.Errorf("%s", body)
	}
	if body, _ := json.Marshal([]any{statusOf(nil), macsOf(nil)}); string(body) != "[[],[]]" {
		t.Errorf("without any: %s", body)
	}
}

// within waits until a condition holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// TestStatus_FilesFollowTheNetwork: the files exist while the network runs, named after its bridge, also with
// the next daemon. They list guests as these come and go.
func TestStatus_FilesFollowTheNetwork(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	d := newDaemon(t)
	d.Status = filepath.Join(d.dir, "status")
	s := d.open(t)
	n := started(t, s, natNetwork("net90", 90))
	bridge, err := n.BridgeName()
	ok(t, err)
	read := func(suffix string) string {
		body, _ := os.ReadFile(filepath.Join(d.Status, bridge+suffix))
		return string(body)
	}
	within(t, "both are there", func() bool { return read(".status") == "[]\n" && read(".macs") == "[]\n" })
	info, err := os.Stat(filepath.Join(d.Status, bridge+".status"))
	ok(t, err)
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	release := s.addPort(nicTarget{network: n}, Port{Interface: "vnet7", MAC: "52:54:00:00:00:07", Owner: "web"})
	within(t, "the guest is listed", func() bool { return strings.Contains(read(".macs"), `"domain": "web"`) })
	release()
	within(t, "the guest is not told any more", func() bool { return read(".macs") == "[]\n" })
	s.Close()
	ok(t, os.Remove(filepath.Join(d.Status, bridge+".status")))
	s = d.open(t)
	within(t, "the next daemon writes it again", func() bool { return read(".status") == "[]\n" })
	n, err = s.ByName("net90")
	ok(t, err)
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
	s.Close() // Close finishes the pending work
	left, err := os.ReadDir(d.Status)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestStatus_FilesOfKilledDaemon, and follows no link.
func TestStatus_FilesOfKilledDaemon(t *testing.T) {
	linktest.Need(t, "dnsmasq")
	d := newDaemon(t)
	d.Status = filepath.Join(d.dir, "status")
	s := d.open(t)
	_, err := s.Define(t.Context(), scope.Daemon("a test"), "<network><name>n</name><bridge name='left0'/></network>", true)
	ok(t, err)
	s.Close()
	victim := filepath.Join(d.dir, "victim")
	ok(t, os.WriteFile(victim, []byte("kept"), 0o600))
	ok(t, os.Symlink(victim, filepath.Join(d.Status, "left0.status")))
	s = d.open(t)
	defer s.Close()
	within(t, "it is removed", func() bool {
		_, err := os.Lstat(filepath.Join(d.Status, "left0.status"))
		return errors.Is(err, os.ErrNotExist)
	})
	n, err := s.ByName("n")
	ok(t, err)
	ok(t, os.Symlink(victim, filepath.Join(d.Status, "left0.macs")))
	ok(t, n.Start(t.Context(), scope.Daemon("a test")))
	within(t, "the link is replaced", func() bool {
		body, err := os.ReadFile(filepath.Join(d.Status, "left0.macs"))
		return err == nil && string(body) == "[]\n"
	})
	if body, err := os.ReadFile(victim); err != nil || string(body) != "kept" {
		t.Errorf("behind the link: %q, %v", body, err)
	}
	ok(t, n.Destroy(t.Context(), scope.Daemon("a test")))
}

// TestStatus_NameServiceFindsGuests asks the host's own name service (libnss-libvirt) for a guest's own host
// name and for the name of its domain.
func TestStatus_NameServiceFindsGuests(t *testing.T) {
	linktest.Need(t, "dnsmasq", "busybox", "nft", "unshare", "getent")
	if found, _ := filepath.Glob("/lib/*/libnss_libvirt_guest.so.2"); len(found) == 0 {
		t.Skip("libnss-libvirt is not installed")
	}
	d := newDaemon(t)
	d.Status = filepath.Join(d.dir, "status")
	s := d.open(t)
	t.Cleanup(func() { endAll(t, s) })
	n := started(t, s, natNetwork("net91", 91))
	g := plugIn(t, n, "c-named", "52:54:00:00:00:02")
	release := s.addPort(nicTarget{network: n}, Port{Interface: "c-named", MAC: "52:54:00:00:00:02", Owner: "web-domain"})
	defer release()
	address, _, _ := strings.Cut(lease(t, g, "-x", "hostname:web-itself"), " ")
	ask := func(service, name string) string {
		const script = `mount -t tmpfs none /var/lib && mkdir -p /var/lib/libvirt/dnsmasq && mount --bind "$1" /var/lib/libvirt/dnsmasq && getent -s "hosts:$2" ahostsv4 "$3"`
		out, _ := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", script, "sh", d.Status, service, name).CombinedOutput() // fails for an unknown name
		return string(out)
	}
	within(t, "the guest's own name leads to "+address, func() bool { return strings.HasPrefix(ask("libvirt", "web-itself"), address+" ") })
	if got := ask("libvirt_guest", "web-domain"); !strings.HasPrefix(got, address+" ") {
		t.Errorf("the domain's name leads to %s, not %s", got, address)
	}
	if got := ask("libvirt", "nobody"); strings.Contains(got, address) {
		t.Errorf("an unknown name is found: %s", got)
	}
}

// No record names a transient network whose daemon was killed during the destroy.
func TestStatus_FilesOfRemovedNetwork(t *testing.T) {
	d := newDaemon(t)
	s := d.open(t)
	folder := s.status.folder
	s.Close()
	ok(t, os.MkdirAll(folder, 0o755))
	for _, name := range []string{"gone0.status", "gone0.macs", "kept0.macs.new-1", "kept0.status.new-2"} {
		ok(t, os.WriteFile(filepath.Join(folder, name), []byte("[]\n"), 0o600))
	}
	d.open(t).Close()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestStatus_LateChangeOfEndedNetwork: a network that was destroyed and made again at once keeps its files, in
// whichever order the two events arrive.
func TestStatus_LateChangeOfEndedNetwork(t *testing.T) {
	linktest.Need(t, "dnsmasq", "nft")
	s := networks(t)
	doc := strings.Replace(natNetwork("net92", 92), "<name>", "<uuid>6f2c1c5e-9a3b-4a39-8d0d-0a1f6d4f1a92</uuid><name>", 1)
	ended, err := s.Create(t.Context(), scope.Daemon("a test"), doc, false)
	ok(t, err)
	ok(t, ended.Destroy(t.Context(), scope.Daemon("a test")))
	again, err := s.Create(t.Context(), scope.Daemon("a test"), doc, false)
	ok(t, err)
	bridge, err := again.BridgeName()
	ok(t, err)
	w := newStatusWriter(t.TempDir())
	ok(t, w.write(again))
	ok(t, w.write(ended))
	if _, err := os.Stat(filepath.Join(w.folder, bridge+".status")); err != nil {
		t.Error(err)
	}
}
