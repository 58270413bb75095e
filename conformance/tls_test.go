package conformance

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority is a certificate authority for a test.
type authority struct {
	t      *testing.T
	key    *ecdsa.PrivateKey
	self   *x509.Certificate
	serial int64
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, serial: 1}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.key = key
	a.self = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.self, a.self, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if a.self, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// save writes PEM blocks into a file, and creates its folder.
func (a *authority) save(path, kind string, blocks ...[]byte) {
	a.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		a.t.Fatal(err)
	}
	var text []byte
	for _, der := range blocks {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// issue makes an RSA key and its certificate, as most authorities do, and returns the serial number.
func (a *authority) issue(subject pkix.Name, certificate, key string) int64 {
	a.t.Helper()
	a.serial++
	secret, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(farAddress)},
	}, a.self, &secret.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.save(certificate, "CERTIFICATE", der)
	if der, err = x509.MarshalPKCS8PrivateKey(secret); err != nil {
		a.t.Fatal(err)
	}
	a.save(key, "PRIVATE KEY", der)
	return a.serial
}

// client makes a folder with a client's certificate, as virsh wants it. virsh must also trust the client's own
// authority, or it would not connect.
func (a *authority) client(trusts *authority, subject pkix.Name) (folder string, serial int64) {
	a.t.Helper()
	folder = a.t.TempDir()
	serial = a.issue(subject, filepath.Join(folder, "clientcert.pem"), filepath.Join(folder, "clientkey.pem"))
	a.save(filepath.Join(folder, "cacert.pem"), "CERTIFICATE", trusts.self.Raw, a.self.Raw)
	return folder, serial
}

// revoke writes a certificate revocation list.
func (a *authority) revoke(path string, serial int64) {
	a.t.Helper()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(serial), RevocationTime: time.Now()}},
	}, a.self, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.save(path, "X509 CRL", der)
}

// startAfar starts a daemon that listens for remote clients as the flags say. Its authority's files are in
// pki. Its rules let alice see and start guests of one name.
func startAfar(t *testing.T, flags ...string) (d *daemon, ca *authority, pki string) {
	t.Helper()
	pki, ca = t.TempDir(), newAuthority(t, "Lodge's tests")
	ca.save(filepath.Join(pki, "CA/cacert.pem"), "CERTIFICATE", ca.self.Raw)
	ca.issue(pkix.Name{CommonName: "localhost"}, filepath.Join(pki, "libvirt/servercert.pem"), filepath.Join(pki, "libvirt/private/serverkey.pem"))
	rules := filepath.Join(pki, "access.yaml")
	if err := os.WriteFile(rules, []byte("version: 1\nrules:\n  - {name: afar, who: 'dn:CN=alice,O=Ops', may: [read, start], guests: 'far-*'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = start(t, append(flags, "--pki", pki, "--access", rules)...)
	d.define(t, shape{name: "far-1"})
	d.define(t, shape{name: "near-1"})
	return d, ca, pki
}

// hangUp sends SIGHUP: the daemon reloads its rules and certificates.
func (d *daemon) hangUp(t *testing.T) {
	t.Helper()
	before := d.says("certificates reloaded")
	d.output(t, "kill", "-HUP", d.pid)
	eventually(t, "the certificates to be reloaded", func() bool { return d.says("certificates reloaded") > before })
}

// visitor starts a client that stays connected, and waits for its first line. The returned function waits until
// the daemon ends the connection.
func (d *daemon) visitor(t *testing.T, name string, args ...string) (goes func(who string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	c := d.command(ctx, name, args...)
	out := begin(t, c)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("the visitor says nothing: %v", err)
	}
	return func(who string) {
		t.Helper()
		defer cancel()
		_ = c.Wait() // how it ends is its own matter
		if ctx.Err() != nil {
			t.Errorf("a client %s stays connected", who)
		}
	}
}

// virsh connects with certificates, as from another host: valid ones, ones of another authority, revoked ones, and
// none.
// Promise: A6, A13
func TestTLS_Virsh(t *testing.T) {
	needs(t)
	stranger := newAuthority(t, "Somebody else")
	d, ca, pki := startAfar(t, "--tls", "127.0.0.1:16514")
	virsh := func(folder string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := d.command(ctx, "virsh", append([]string{"-q", "-c", "qemu+tls://localhost/system?pkipath=" + folder}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	alice, number := ca.client(ca, pkix.Name{CommonName: "alice", Organization: []string{"Ops"}})
	if out, err := virsh(alice, "list", "--all", "--name"); err != nil || out != "far-1" {
		t.Errorf("alice sees %q, %v", out, err)
	}
	if out, err := virsh(alice, "start", "--paused", "far-1"); err != nil {
		t.Errorf("alice may not start: %s", out)
	}
	if out, err := virsh(alice, "destroy", "far-1"); err == nil || !strings.Contains(out, "access denied") {
		t.Errorf("alice destroys: %q, %v", out, err)
	}
	bob, _ := ca.client(ca, pkix.Name{CommonName: "bob", Organization: []string{"Ops"}})
	misled, _ := ca.client(ca, pkix.Name{CommonName: "alice,O=Ops"})
	eve, _ := stranger.client(ca, pkix.Name{CommonName: "alice", Organization: []string{"Ops"}})
	for who, folder := range map[string]string{"bob": bob, "a subject with marks": misled, "another authority": eve} {
		if out, err := virsh(folder, "list"); err == nil {
			t.Errorf("%s connects: %q", who, out)
		}
	}
	if d.says(`dn="CN=alice,O=Ops"`) == 0 || d.says("call=TLS verb=open result=denied") == 0 {
		t.Error("the audit has nothing of them")
	}
	visitor := d.visitor(t, "/usr/bin/python3", script(t, "visitor.py"), "qemu+tls://localhost/system?pkipath="+alice)
	ca.revoke(filepath.Join(pki, "CA/cacrl.pem"), number)
	d.hangUp(t)
	visitor("whose certificate was taken back")
	if out, err := virsh(alice, "list"); err == nil {
		t.Errorf("alice connects with a revoked certificate: %q", out)
	}
	d.virsh(t, "list")
}

// lodge connects with certificates. The same rules hold for it as for virsh.
// Promise: A8, A9, A13
func TestTLS_LodgeAPI(t *testing.T) {
	needs(t)
	other := newAuthority(t, "Somebody else")
	d, ca, pki := startAfar(t, "--api-tls", "127.0.0.1:16515")
	lodge := func(folder string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := d.command(ctx, program(t, "lodge"), append([]string{"--host", "localhost", "--pki", folder}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	alice, number := ca.client(ca, pkix.Name{CommonName: "alice", Organization: []string{"Ops"}})
	if out, err := lodge(alice, "ps"); err != nil || !strings.Contains(out, "far-1") || strings.Contains(out, "near-1") {
		t.Errorf("alice sees %q, %v", out, err)
	}
	if out, err := lodge(alice, "start", "far-1"); err != nil {
		t.Errorf("alice may not start: %s", out)
	}
	if out, err := lodge(alice, "destroy", "far-1"); err == nil || !strings.Contains(out, `"stop"`) {
		t.Errorf("alice destroys: %q, %v", out, err)
	}
	bob, _ := ca.client(ca, pkix.Name{CommonName: "bob", Organization: []string{"Ops"}})
	eve, _ := other.client(ca, pkix.Name{CommonName: "alice", Organization: []string{"Ops"}})
	for who, folder := range map[string]string{"bob": bob, "another authority": eve} {
		if out, err := lodge(folder, "ps"); err == nil || !strings.Contains(out, "does not let this client in") {
			t.Errorf("%s: %q, %v", who, out, err)
		}
	}
	misled, _ := other.client(other, pkix.Name{CommonName: "alice", Organization: []string{"Ops"}})
	if out, err := lodge(misled, "ps"); err == nil || !strings.Contains(out, "from a trusted authority") {
		t.Errorf("a client that trusts others: %q, %v", out, err)
	}
	eventually(t, "the audit to have them", func() bool {
		return d.says(`api=lodge dn="CN=alice,O=Ops"`) > 0 && d.says("call=TLS verb=open result=denied") > 0
	})
	events := func() func(string) { // of another life, so that it begins with a line
		return d.visitor(t, program(t, "lodge"), "--host", "localhost", "--pki", alice, "events", "--after", "another/1")
	}
	visitor := events()
	ruleFile := filepath.Join(pki, "access.yaml")
	rules, err := os.ReadFile(ruleFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ruleFile, []byte("version: 1\nrules: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.hangUp(t)
	visitor("whom no rule is about any more")
	if err := os.WriteFile(ruleFile, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	d.hangUp(t)
	visitor = events()
	ca.revoke(filepath.Join(pki, "CA/cacrl.pem"), number)
	d.hangUp(t)
	visitor("whose certificate was taken back")
	if out, err := lodge(alice, "ps"); err == nil {
		t.Errorf("alice connects with a revoked certificate: %q", out)
	}
	// An address with too many failures is not even checked, for a while.
	d.output(t, "bash", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do : 3<>/dev/tcp/127.0.0.1/16515; done")
	eventually(t, "the address to be turned away", func() bool { return d.says("locked out for a minute") > 0 })
	d.output(t, "bash", "-c", "for i in {1..60}; do : 3<>/dev/tcp/127.0.0.1/16515; done")
	if out, err := lodge(alice, "ps"); err == nil {
		t.Errorf("an address that was refused connects: %q", out)
	}
	if n := d.says("call=TLS verb=open result=denied"); n > 40 {
		t.Errorf("the audit has %d lines of clients that were turned away", n)
	}
	d.virsh(t, "list")
}
