package conformance

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The two ends of the network link between the lab's host and the daemon's host.
const (
	farAddress  = "192.0.2.1"
	nearAddress = "192.0.2.2"
)

// startFar starts a daemon on a host of its own. That host shares no files with the lab's, except those that the
// test inspects; a network link connects the two. It returns the lab's host, the address of the daemon, and the
// folder for guests on the daemon's host.
func startFar(t *testing.T, images string) (d *daemon, near *world, address, files string) {
	t.Helper()
	pki, ca := t.TempDir(), newAuthority(t, "Lodge's tests")
	ca.save(filepath.Join(pki, "CA/cacert.pem"), "CERTIFICATE", ca.self.Raw)
	ca.issue(pkix.Name{CommonName: "far"}, filepath.Join(pki, "libvirt/servercert.pem"), filepath.Join(pki, "libvirt/private/serverkey.pem"))
	rules := filepath.Join(pki, "access.yaml")
	if err := os.WriteFile(rules, []byte("version: 1\nrules:\n  - {name: lab, who: 'dn:CN=lab', may: all, images: any}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = start(t, "--tls", "0.0.0.0:16514", "--pki", pki, "--access", rules)
	files = filepath.Join(d.dir, "far")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	d.output(t, "mount", "-t", "tmpfs", "-o", "mode=0755", "none", files)
	d.output(t, "mount", "-t", "tmpfs", "-o", "mode=0755", "none", images)
	near = newWorld(t)
	linkWorlds(t, d.world, near)
	own, _ := ca.client(ca, pkix.Name{CommonName: "lab"})
	return d, near, "qemu+tls://" + farAddress + "/system?pkipath=" + own, files
}

// linkWorlds connects two worlds by a network link. It is removed before the worlds are searched for leftovers.
func linkWorlds(t *testing.T, far, near *world) {
	t.Helper()
	// The other world is named by its first process, with its number on this host.
	add := exec.CommandContext(t.Context(), "nsenter", "-t", strconv.Itoa(far.keeper.Process.Pid), "-n", "--",
		"ip", "link", "add", "far0", "type", "veth", "peer", "name", "near0", "netns", strconv.Itoa(near.keeper.Process.Pid))
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := far.command(context.WithoutCancel(t.Context()), "ip", "link", "delete", "far0").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	far.output(t, "ip", "address", "add", farAddress+"/24", "dev", "far0")
	far.output(t, "ip", "link", "set", "far0", "up")
	near.output(t, "ip", "address", "add", nearAddress+"/24", "dev", "near0")
	near.output(t, "ip", "link", "set", "near0", "up")
}

// lab runs the lab inside the world to its end, and returns its output.
func (w *world) lab(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labPatience)
	defer cancel()
	said, err := w.command(ctx, lodgeWithLab(t), args...).CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || failed.ExitCode() != labSomeFailed && failed.ExitCode() != labSomeSkipped) {
		t.Fatalf("%v\n%s", err, said)
	}
	return string(said)
}

// The test runs a whole scenario at a daemon that is reached by TLS and shares no files with the lab.
// Promise: L72, L73
func TestLab_RemoteHostByTLS(t *testing.T) {
	onlyInClients(t)
	needs(t, "dnsmasq", "ip")
	images := labImages(t)
	d, near, address, files := startFar(t, images)
	near.labAfar(t, d.world, address, images, files)
	near.lab(t, "lab", "clean", "--images-at", address, "--files", files)
	if left := d.output(t, "find", files, "-mindepth", "1"); left != "" || strings.Contains(d.virsh(t, "pool-list", "--all", "--name"), "lab") {
		t.Errorf("there is left %q", left)
	}
}

// labAfar runs a scenario at a daemon on another host. The lab's host cannot reach the guests, so the external
// load runs beside them, and the record says so. The counts of both sides must agree. After the run only the image
// may be left on the daemon's host.
func (w *world) labAfar(t *testing.T, far *world, address, images, files string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run")
	scenario, err := filepath.Abs("testdata/far.yaml")
	if err != nil {
		t.Fatal(err)
	}
	said := w.lab(t, "lab", "run", scenario, "--profile", "smoke", "--target", "far="+address, "--images", images, "--files", files, "--directory", out)
	counted := labCounts(labLines(t, out+"/samples.ndjson"))
	sent, served := counted.sent["outside requests"], counted.served["outside requests"]
	if counted.done["outside"] == 0 || sent == 0 || served < sent || served > sent+counted.failed["outside"] {
		t.Errorf("the load counts %v done, %v sent and %v failed, the server %v\n%s", counted.done, sent, counted.failed, served, said)
	}
	for _, e := range labLines(t, out+"/events.ndjson") {
		if e.Kind == "skipped" || e.Kind == "bad" && e.What == "books" || e.Kind == "failed" && e.What != "load" {
			t.Errorf("%s %s of %s: %s", e.Kind, e.What, e.Guest, e.Text)
		}
	}
	var header struct {
		Deviations []string
		Host       struct {
			Processors int
			Memory     uint64
			Kernel     string
			Settings   map[string]string
		}
	}
	text, err := os.ReadFile(out + "/run.json")
	if err == nil {
		err = json.Unmarshal(text, &header)
	}
	if err != nil || len(header.Deviations) != 1 || !strings.Contains(header.Deviations[0], "role outside") {
		t.Fatalf("%v: the run deviates in %q", err, header.Deviations)
	}
	if h := header.Host; h.Processors == 0 || h.Memory == 0 || h.Kernel != "" || h.Settings != nil {
		t.Errorf("the host's facts are not those that the daemon tells: %+v", h)
	}
	if report := w.lab(t, "lab", "report", out); !strings.Contains(report, header.Deviations[0]) {
		t.Errorf("the report does not list deviations:\n%s", report)
	}
	left := strings.Fields(far.output(t, "find", files, "-mindepth", "1", "-maxdepth", "1"))
	if len(left) != 1 || filepath.Base(left[0]) != "images" {
		t.Errorf("the run has left %q", left)
	}
}
