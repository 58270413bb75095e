package listener

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"strings"
	"testing"
	"time"
)

// hosted is a host's certificates with the key that signs clients' certificates.
type hosted struct {
	*Certificates
	folder string
	key    *ecdsa.PrivateKey
	self   *x509.Certificate
}

func host(t *testing.T) *hosted {
	t.Helper()
	h := &hosted{}
	h.folder, h.key, h.self = pki(t)
	var err error
	if h.Certificates, err = OpenCertificates(h.folder); err != nil {
		t.Fatal(err)
	}
	return h
}

// revoke makes the host load a list of revoked certificates.
func (h *hosted) revoke(t *testing.T, serial int64, until time.Time) {
	t.Helper()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now().Add(-2 * time.Hour), NextUpdate: until,
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(serial), RevocationTime: time.Now()}},
	}, h.self, h.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, h.folder, "CA/cacrl.pem", "X509 CRL", der)
	if err := h.Reload(); err != nil {
		t.Fatal(err)
	}
}

// enter connects and watches a client. Its certificate has this serial number and expiry.
func (h *hosted) enter(t *testing.T, serial int64, ends time.Time) (gone chan error, stop func()) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "alice"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, h.self, &key.PublicKey, h.key)
	if err != nil {
		t.Fatal(err)
	}
	trust := x509.NewCertPool()
	trust.AddCert(h.self)
	near, far := joined(t)
	client := tls.Client(far, &tls.Config{RootCAs: trust, ServerName: "localhost", Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	go func() { _, _ = io.Copy(io.Discard, client) }() // does the handshake; ends with the connection
	secure := h.Server(near)
	if _, err := Subject(t.Context(), secure); err != nil {
		t.Fatal(err)
	}
	gone = make(chan error, 8)
	stop = h.Watch(secure, func(err error) { gone <- err })
	t.Cleanup(stop)
	return gone, stop
}

// A connected client is disconnected when its certificate is no longer valid, and only then.
// Promise: A13
func TestWatch_CertificateEnds(t *testing.T) {
	far := time.Now().Add(time.Hour)
	for _, c := range []struct {
		what, says string
		lasts      time.Duration
		then       func(*hosted)
	}{
		{"revoked", "is revoked", time.Hour, func(h *hosted) { h.revoke(t, 9, far) }},
		{"ended", "expired", 3 * time.Second, func(*hosted) {}},
		{"of nobody who is trusted", "authority", time.Hour, func(h *hosted) {
			other, _, _ := pki(t)
			h.folder, h.Certificates.folder = other, other
			if err := h.Reload(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		h := host(t)
		gone, _ := h.enter(t, 9, time.Now().Add(c.lasts))
		c.then(h)
		select {
		case err := <-gone:
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.what, err)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("a client whose certificate is %s stays", c.what)
		}
		if h.recheckAll(); len(gone) > 0 {
			t.Errorf("%s: told twice", c.what)
		}
	}

	h := host(t)
	stays, _ := h.enter(t, 9, far)
	left, stop := h.enter(t, 10, far)
	stop()
	h.revoke(t, 10, far)
	h.revoke(t, 8, time.Now().Add(-time.Hour)) // refuses new clients, ends no connection
	if len(stays) > 0 || len(left) > 0 {
		t.Errorf("a good client was told %d times, one that had left %d times", len(stays), len(left))
	}
	if stop(); len(h.watches.open) != 1 {
		t.Errorf("%d are watched of one", len(h.watches.open))
	}
}

// A certificate is valid no longer than its authority's, or an intermediate one.
// Promise: A13
func TestWatch_AuthorityEnds(t *testing.T) {
	h := host(t)
	far := h.self.NotAfter.Add(24 * time.Hour)
	issue := func(name string, authority bool, ends time.Time, by *x509.Certificate) *x509.Certificate {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
			IsCA: authority, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, by, &h.key.PublicKey, h.key)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	soon := time.Now().Add(time.Minute).Truncate(time.Second)
	between := issue("between", true, soon, h.self)
	for what, c := range map[string]struct {
		shown []*x509.Certificate
		want  time.Time
	}{
		"its own end":         {[]*x509.Certificate{issue("alice", false, soon, h.self)}, soon},
		"that of its maker":   {[]*x509.Certificate{issue("alice", false, far, h.self)}, h.self.NotAfter},
		"that of one between": {[]*x509.Certificate{issue("alice", false, far, between), between}, soon},
	} {
		if until, err := h.now.Load().judge(c.shown); err != nil || !until.Equal(c.want) {
			t.Errorf("%s: until %v (%v), want %v", what, until, err, c.want)
		}
	}
}
