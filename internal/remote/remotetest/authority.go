package remotetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for a test.
type Authority struct {
	t      *testing.T
	key    *ecdsa.PrivateKey
	self   *x509.Certificate
	serial int64
}

// NewAuthority makes one.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.self = &x509.Certificate{
		Subject: pkix.Name{CommonName: "the lab's tests"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.self = a.sign(a.self)
	return a
}

// sign makes a key, and of a template its certificate.
func (a *Authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key // its own
	}
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	der, err := x509.CreateCertificate(rand.Reader, template, a.self, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, made
}

// Issue makes a certificate of a common name, and of the names and addresses that
// it is good for.
func (a *Authority) Issue(common string, until time.Time, names ...string) tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: common}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	key, made := a.sign(template)
	return tls.Certificate{Certificate: [][]byte{made.Raw}, PrivateKey: key, Leaf: made}
}

// Trusted is a pool of it alone.
func (a *Authority) Trusted() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.self)
	return pool
}

// Client makes a folder as pkipath names it: the authority, and unless it is nil a
// client's certificate.
func (a *Authority) Client(own *tls.Certificate) (folder string) {
	a.t.Helper()
	folder = a.t.TempDir()
	a.save(filepath.Join(folder, "cacert.pem"), "CERTIFICATE", a.self.Raw)
	if own == nil {
		return folder
	}
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	a.save(filepath.Join(folder, "clientcert.pem"), "CERTIFICATE", own.Certificate[0])
	a.save(filepath.Join(folder, "clientkey.pem"), "PRIVATE KEY", der)
	return folder
}

func (a *Authority) save(path, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}
