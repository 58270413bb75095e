package conformance

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
)

// The account that connects by ssh, and its host. It may use the daemon, and is not root.
const (
	sshUser   = "operator"
	sshUserID = 60777
	sshPort   = "2222"
)

// unpacked finds a program of the host, or one that make test has extracted from its package without installing
// it.
func unpacked(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	root := guestimagetest.Made(t, "LODGE_SSHD", "sshd")
	for _, folder := range []string{"usr/sbin", "usr/bin", "bin"} {
		path := filepath.Join(root, folder, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skipf("needs %s, which make test takes out of Debian's package where that is to be had", name)
	return ""
}

// process is a program that runs inside a world, with its output.
type process struct {
	world *world
	base  string // of its files
	ended chan struct{}
}

// begin starts a process.
func (w *world) begin(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{w, filepath.Join(w.dir, filepath.Base(name)), make(chan struct{})}
	log, err := os.Create(p.base + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := w.command(context.WithoutCancel(t.Context()), "sh", append([]string{"-c", `echo $$ >"$1"; shift; exec "$@"`, "sh", p.base + ".pid", name}, args...)...)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(p.ended); _ = c.Wait() }()
	return p
}

func (p *process) said() string {
	text, _ := os.ReadFile(p.base + ".log")
	return string(text)
}

// until waits for a condition while the process runs.
func (p *process) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	eventually(t, what, func() bool {
		select {
		case <-p.ended:
			t.Fatalf("it ended before: %s:\n%s", what, p.said())
		default:
		}
		return ok()
	})
}

// end sends it a signal and waits for its end.
func (p *process) end(t *testing.T, signal string) {
	t.Helper()
	// The test's own context may have ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if out, err := p.world.command(ctx, "sh", "-c", `kill "-$1" "$(cat "$2")"`, "sh", signal, p.base+".pid").CombinedOutput(); err != nil {
		t.Errorf("cannot end %s: %v: %s", p.base, err, out)
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		t.Errorf("%s does not end by SIG%s", p.base, signal)
	}
}

// serve runs a program inside until the test ends, and waits until it is ready.
func (w *world) serve(t *testing.T, up func(said string) bool, name string, args ...string) {
	t.Helper()
	p := w.begin(t, name, args...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s says:\n%s", name, p.said())
		}
		p.end(t, "TERM")
	})
	p.until(t, name+" is up", func() bool { return up(p.said()) })
}

// addAccount prepends lines to a file of accounts, in this world only.
func (w *world) addAccount(t *testing.T, file, lines string) {
	t.Helper()
	there, err := os.ReadFile(file)
	own := filepath.Join(w.dir, filepath.Base(file))
	if err == nil {
		err = os.WriteFile(own, append([]byte(lines), there...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.output(t, "mount", "--bind", own, file)
}

// startStock starts a host with libvirt's own daemon and a network link to it from another host. The operator may
// use the daemon's socket, and it accepts clients by TLS. It returns the folder for guests, and the folder of a
// client's certificate.
func startStock(t *testing.T, images string) (far, near *world, files, certificate string) {
	t.Helper()
	far, near = newWorld(t), newWorld(t)
	linkWorlds(t, far, near)
	pki, ca := t.TempDir(), newAuthority(t, "Lodge's tests")
	ca.save(filepath.Join(pki, "ca.pem"), "CERTIFICATE", ca.self.Raw)
	ca.issue(pkix.Name{CommonName: "far"}, filepath.Join(pki, "cert.pem"), filepath.Join(pki, "key.pem"))
	certificate, _ = ca.client(ca, pkix.Name{CommonName: "lab"})

	if err := os.Chmod(far.dir, 0o711); err != nil { // QEMU's account goes through it
		t.Fatal(err)
	}
	files = filepath.Join(far.dir, "far")
	own := filepath.Join(far.dir, "libvirt")
	far.output(t, "mkdir", "-p", files, own+"/etc", own+"/run")
	for _, place := range []string{files, images, "/run"} {
		far.output(t, "mount", "-t", "tmpfs", "-o", "mode=0755", "none", place)
	}
	far.addAccount(t, "/etc/passwd", fmt.Sprintf("%s:*:%d:%[2]d::/:/bin/sh\n", sshUser, sshUserID))
	far.addAccount(t, "/etc/group", fmt.Sprintf("%s:*:%d:\n", sshUser, sshUserID))
	far.output(t, "mkdir", "/run/libvirt", "/run/lock")
	far.output(t, "mount", "--bind", own+"/run", "/run/libvirt")
	config := fmt.Sprintf(`unix_sock_group = %q
unix_sock_rw_perms = "0770"
auth_unix_rw = "none"
listen_addr = %q
ca_file = "%[3]s/ca.pem"
cert_file = "%[3]s/cert.pem"
key_file = "%[3]s/key.pem"
`, sshUser, farAddress, pki)
	if err := os.WriteFile(own+"/etc/libvirtd.conf", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../scripts/libvirtd")
	if err != nil {
		t.Fatal(err)
	}
	far.serve(t, func(string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return far.command(ctx, "virsh", "-q", "-c", stockURI, "list").Run() == nil
	}, script, own, "--listen")
	return far, near, files, certificate
}

// stockURI is the local connection URI of libvirt's own daemon.
const stockURI = "qemu:///system?socket=/run/libvirt/libvirt-sock"

// allowSSH configures an OpenSSH server so that the lab's root can log in as the operator. Each side knows the
// other's key. The user's ssh files exist in this world only.
func (w *world) allowSSH(t *testing.T, near *world, server string) {
	t.Helper()
	home := filepath.Join(near.dir, "home/.ssh")
	w.output(t, "mkdir", "-p", "/run/sshd", home)
	host := filepath.Join(w.dir, "host_key")
	for _, key := range []string{host, home + "/id_ed25519"} {
		w.output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lodge", "-f", key)
	}
	w.output(t, "sh", "-euc", `
		cp "$2/id_ed25519.pub" "$1/authorized_keys"
		chmod 644 "$1/authorized_keys"
		echo "[$3]:$4 $(cat "$1/host_key.pub")" >"$2/known_hosts"
		echo "sshd:*:60778:65534::/run/sshd:/usr/sbin/nologin" >>/etc/passwd
		cat >"$1/sshd_config" <<-end
			ListenAddress $3:$4
			HostKey $1/host_key
			AuthorizedKeysFile $1/authorized_keys
			StrictModes no
			PasswordAuthentication no
			KbdInteractiveAuthentication no
			PidFile none
		end`, "sh", w.dir, home, farAddress, sshPort)
	near.addAccount(t, "/etc/passwd", "root:*:0:0::"+filepath.Dir(home)+":/bin/sh\n")
	libraries, _ := filepath.Glob(filepath.Join(filepath.Dir(server), "../lib/*-linux-gnu"))
	w.serve(t, func(said string) bool { return strings.Contains(said, "Server listening") },
		"env", "LD_LIBRARY_PATH="+strings.Join(libraries, ":"), server, "-D", "-e", "-f", filepath.Join(w.dir, "sshd_config"))
}

// The test runs a whole scenario at libvirt's own daemon on another host, as its users reach it: by OpenSSH with a
// key, and there by libvirt's helper. Before that the lab is killed twice, and must remove its leftovers. A storm
// on guests with disks connects by nc, and the last clean-up by TLS. Nothing may be left there.
// Promise: L70, L71, L72
func TestLab_StockLibvirtBySSH(t *testing.T) {
	onlyInClients(t)
	needs(t, "dnsmasq", "ip", "iptables", "libvirtd", "virtlogd", "virt-ssh-helper", "tini", "ssh", "ssh-keygen")
	images, server, netcat := labImages(t), unpacked(t, "sshd"), unpacked(t, "nc.openbsd")
	far, near, files, certificate := startStock(t, images)
	far.allowSSH(t, near, server)
	address := "qemu+ssh://" + sshUser + "@" + farAddress + ":" + sshPort + "/system"
	sent := func() bool { return strings.Contains(far.output(t, "find", files, "-name", "*-usr.raw"), "usr") }
	near.killLab(t, far, "the image is sent", sent, address, images, files)
	near.killLab(t, far, "there is a guest", func() bool { return len(far.stock(t, "list")) > 0 }, address, images, files)
	near.labAfar(t, far, address, images, files)

	far.output(t, "cp", netcat, far.dir+"/nc")
	byNetcat := address + "?netcat=" + far.dir + "/nc&socket=/run/libvirt/libvirt-sock"
	said := near.lab(t, "lab", "storm", "--target", "far="+byNetcat, "--step", "start:3x2", "--repeat", "1", "--clients", "3", "--directory", files)
	if strings.Count(said, "start     3       2      start ") != 2 {
		t.Errorf("the storm says:\n%s", said)
	}
	near.lab(t, "lab", "clean", "--images-at", "qemu+tls://"+farAddress+"/system?pkipath="+certificate, "--files", files)
	if left := far.output(t, "find", files, "-mindepth", "1"); left != "" {
		t.Errorf("there is left %q", left)
	}
	far.checkStockIsEmpty(t)
}

// killLab runs the scenario at a daemon on another host, kills the lab when a condition holds, and lets the lab
// remove its leftovers there.
func (w *world) killLab(t *testing.T, far *world, amid string, so func() bool, address, images, files string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run")
	scenario, err := filepath.Abs("testdata/far.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := w.begin(t, lodgeWithLab(t), "lab", "run", scenario, "--profile", "smoke", "--target", "far="+address, "--images", images, "--files", files, "--directory", out)
	p.until(t, amid, so)
	p.end(t, "KILL")
	eventually(t, "ssh ends with the lab", func() bool { return len(w.processes()) == 0 })
	w.lab(t, "lab", "clean", out, "--files", files)
	far.checkStockIsEmpty(t)
	if left := strings.Fields(far.output(t, "find", files, "-mindepth", "1", "-maxdepth", "1")); len(left) != 1 || filepath.Base(left[0]) != "images" {
		t.Errorf("killed when %s, the lab leaves %q", amid, left)
	}
}

// stock lists objects of libvirt's own daemon.
func (w *world) stock(t *testing.T, list string) []string {
	t.Helper()
	return strings.Fields(w.output(t, "virsh", "-q", "-c", stockURI, list, "--all", "--name"))
}

// checkStockIsEmpty checks that libvirt's own daemon has no objects.
func (w *world) checkStockIsEmpty(t *testing.T) {
	t.Helper()
	for _, list := range []string{"list", "pool-list", "net-list"} {
		if left := w.stock(t, list); len(left) > 0 {
			t.Errorf("%s has %q", list, left)
		}
	}
}
