package listener

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// pki is a folder with one certificate. It is its own authority, the host's
// certificate and the client's.
func pki(t *testing.T) (folder string, key *ecdsa.PrivateKey, self *x509.Certificate) {
	t.Helper()
	folder = t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	self = &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, self, self, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if self, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, folder, "CA/cacert.pem", "CERTIFICATE", der)
	write(t, folder, "libvirt/servercert.pem", "CERTIFICATE", der)
	write(t, folder, "libvirt/private/serverkey.pem", "PRIVATE KEY", secret)
	return folder, key, self
}

func write(t *testing.T, folder, name, kind string, der []byte) {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// joined returns two ends of a buffered connection.
func joined(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := Listen(t.Context(), Place{Path: filepath.Join(t.TempDir(), "sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if far, err = new(net.Dialer).DialContext(t.Context(), "unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	return near, far
}

// handshake does the handshake of a client with the host.
func handshake(t *testing.T, c *Certificates, client func(net.Conn)) (string, error) {
	t.Helper()
	near, far := joined(t)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		client(far)
	}()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	secure := c.Server(near)
	subject, err := Subject(ctx, secure)
	_ = near.Close()
	_ = far.Close()
	<-gone
	return subject, err
}

// speak returns a client for some versions of the protocol.
func speak(config *tls.Config) func(net.Conn) {
	return func(conn net.Conn) {
		_ = tls.Client(conn, config).HandshakeContext(context.Background()) // the host's end reports the result
		_ = conn.Close()
	}
}

// Promise: A6
func TestSubject(t *testing.T) {
	folder, key, self := pki(t)
	c, err := OpenCertificates(folder)
	if err != nil {
		t.Fatal(err)
	}
	trust := x509.NewCertPool()
	trust.AddCert(self)
	own := []tls.Certificate{{Certificate: [][]byte{self.Raw}, PrivateKey: key}}
	if subject, err := handshake(t, c, speak(&tls.Config{RootCAs: trust, ServerName: "localhost", Certificates: own})); err != nil || subject != "CN=localhost" {
		t.Errorf("a good client: %q, %v", subject, err)
	}
	// Values with these characters could look like several values to the patterns of rules.
	for _, name := range []string{"alice+OU=root", `alice\`, `"alice"`} {
		certificate := &x509.Certificate{
			SerialNumber: big.NewInt(8), Subject: pkix.Name{CommonName: name}, NotBefore: self.NotBefore, NotAfter: self.NotAfter,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, certificate, self, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		client := speak(&tls.Config{RootCAs: trust, ServerName: "localhost", Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		if subject, err := handshake(t, c, client); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "could mislead") {
			t.Errorf("%s comes in as %q, %v", name, subject, err)
		}
	}
	for what, client := range map[string]func(net.Conn){
		"no certificate": speak(&tls.Config{RootCAs: trust, ServerName: "localhost", MaxVersion: tls.VersionTLS12}),
		"an old version": speak(&tls.Config{RootCAs: trust, ServerName: "localhost", Certificates: own, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}),
		"no TLS at all": func(conn net.Conn) {
			_, _ = conn.Write([]byte("\x00\x00\x00\x1c\x20\x00\x80\x86\x00\x00\x00\x01"))
			_, _ = conn.Read(make([]byte, 64))
			_ = conn.Close()
		},
		"nothing": func(conn net.Conn) { _ = conn.Close() },
	} {
		if subject, err := handshake(t, c, client); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %q, %v", what, subject, err)
		}
	}
}

// A key that every user can read is refused.
// Promise: K8
func TestOpenCertificates_KeyReadableByAll(t *testing.T) {
	folder, _, _ := pki(t)
	c, err := OpenCertificates(folder)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(folder, "libvirt/private/serverkey.pem")
	for mode, accepted := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o644: false, 0o602: false} {
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		if err := c.Reload(); (err == nil) != accepted || err != nil && !strings.Contains(err.Error(), "chmod") {
			t.Errorf("with mode %o: %v", mode, err)
		}
	}
}

// The client never starts the handshake.
// Promise: A6
func TestSubject_SilentClient(t *testing.T) {
	folder, _, _ := pki(t)
	c, err := OpenCertificates(folder)
	if err != nil {
		t.Fatal(err)
	}
	near, _ := joined(t)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := Subject(ctx, c.Server(near)); !fault.Is(err, fault.Denied) {
		t.Errorf("got %v", err)
	}
}

// Promise: A6
func TestReload_RevocationLists(t *testing.T) {
	folder, key, self := pki(t)
	c, err := OpenCertificates(folder)
	if err != nil {
		t.Fatal(err)
	}
	trust := x509.NewCertPool()
	trust.AddCert(self)
	good := speak(&tls.Config{RootCAs: trust, ServerName: "localhost", Certificates: []tls.Certificate{{Certificate: [][]byte{self.Raw}, PrivateKey: key}}, MaxVersion: tls.VersionTLS12})
	list := func(until time.Duration, serial int64) {
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: time.Now().Add(-2 * time.Hour), NextUpdate: time.Now().Add(until),
			RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(serial), RevocationTime: time.Now()}},
		}, self, key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, folder, "CA/cacrl.pem", "X509 CRL", der)
	}
	for _, step := range []struct {
		what   string
		until  time.Duration
		serial int64
		says   string
	}{
		{"a list of others", time.Hour, 8, ""},
		{"a list with it", time.Hour, 7, "is revoked"},
		{"a list that is out of date", -time.Hour, 8, "expired at"},
	} {
		list(step.until, step.serial)
		if err := c.Reload(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		_, err := handshake(t, c, good)
		if step.says == "" && err != nil || step.says != "" && (err == nil || !strings.Contains(err.Error(), step.says)) {
			t.Errorf("%s: %v", step.what, err)
		}
	}
	// A file without a readable list, or with a damaged one, would keep no client out.
	for what, text := range map[string]string{
		"nothing": "", "another form": "0\x82\x01", "a list that is cut": "-----BEGIN X509 CRL-----\nMIIB", "too much": strings.Repeat("\n", maxPEM+1),
	} {
		if err := os.WriteFile(filepath.Join(folder, "CA/cacrl.pem"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.Reload(); err == nil {
			t.Errorf("a file with %s is taken for a list", what)
		}
	}
	_, otherKey, other := pki(t)
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}, other, otherKey)
	if err != nil {
		t.Fatal(err)
	}
	write(t, folder, "CA/cacrl.pem", "X509 CRL", der)
	if err := c.Reload(); err == nil || !strings.Contains(err.Error(), "signed") {
		t.Errorf("a list of somebody else's: %v", err)
	}
	list(time.Hour, 8)
	long, err := os.OpenFile(filepath.Join(folder, "CA/cacrl.pem"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = long.WriteString(strings.Repeat("\n", maxPEM))
		err = errors.Join(err, long.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Reload(); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("a list with more behind it than is read: %v", err)
	}
	list(-time.Hour, 8)
	if err := os.WriteFile(filepath.Join(folder, "CA/cacert.pem"), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Reload(); !fault.Is(err, fault.Invalid) {
		t.Errorf("authorities without a certificate: %v", err)
	}
	if _, err := handshake(t, c, good); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("after a reload that failed: %v", err)
	}
}
