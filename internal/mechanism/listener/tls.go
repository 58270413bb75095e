package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxPEM bounds a file of certificates, in bytes.
const maxPEM = 8 << 20

// Certificates are the host's certificates, which identify clients from other hosts. They lie
// in libvirt's places, below one folder:
//
//	CA/cacert.pem                   authorities whose clients may connect
//	CA/cacrl.pem                    revoked certificates; may be missing
//	libvirt/servercert.pem          the host's own
//	libvirt/private/serverkey.pem
type Certificates struct {
	folder  string
	now     atomic.Pointer[trust]
	watches watches
}

// trust is the parsed content of the files. It is never changed.
type trust struct {
	server  *tls.Config
	roots   *x509.CertPool
	revoked revocations
}

// OpenCertificates reads the files.
func OpenCertificates(folder string) (*Certificates, error) {
	c := &Certificates{folder: folder}
	return c, c.Reload()
}

// Reload reads the files again, for new clients and for watched connections. After an
// error the old certificates stay in use.
func (c *Certificates) Reload() error {
	ca := filepath.Join(c.folder, "CA")
	roots, authorities, err := readAuthorities(filepath.Join(ca, "cacert.pem"))
	if err != nil {
		return err
	}
	revoked, err := readRevocations(filepath.Join(ca, "cacrl.pem"), authorities)
	if err != nil {
		return err
	}
	key := filepath.Join(c.folder, "libvirt/private/serverkey.pem")
	if info, err := os.Stat(key); err == nil && info.Mode().Perm()&0o007 != 0 {
		return fault.New(fault.Failed, fault.Host, "cannot use the key %s: every user of this host may read it; chmod o= it", key)
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(c.folder, "libvirt/servercert.pem"), key)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the host's certificate and key below %s", c.folder)
	}
	c.now.Store(&trust{roots: roots, revoked: revoked, server: &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, Certificates: []tls.Certificate{own},
		SessionTicketsDisabled: true, // a revoked certificate must not be accepted through an older session
		VerifyConnection:       revoked.check,
	}})
	c.recheckAll()
	return nil
}

// Server returns the host's end of a TLS connection, before the handshake. It may
// offer a choice of application protocols (ALPN). Without any the client is one of
// libvirt's, and the connection is limited to TLS 1.2: those clients use GnuTLS. In TLS 1.3 it shows no RSA
// certificate to a host that accepts only PSS for signatures, as crypto/tls does.
func (c *Certificates) Server(conn net.Conn, protocols ...string) *tls.Conn {
	config := c.now.Load().server.Clone()
	if config.NextProtos = protocols; len(protocols) == 0 {
		config.MaxVersion = tls.VersionTLS12
	}
	return tls.Server(conn, config)
}

// Subject does the handshake within the deadline of ctx, and returns the subject
// of the client's certificate.
func Subject(ctx context.Context, secure *tls.Conn) (subject string, err error) {
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", fault.Wrap(err, fault.Denied, fault.Call, "TLS handshake failed")
	}
	subject = secure.ConnectionState().PeerCertificates[0].Subject.String()
	// Values with these characters could look like several values to the patterns of rules.
	if strings.ContainsAny(subject, `\"+`) {
		return "", fault.New(fault.Denied, fault.Call, "the certificate's subject %q has one of the characters \\ \" +, which could mislead access rules", subject)
	}
	return subject, nil
}

// readPEM reads a file and calls take with each block of a type.
func readPEM(path, sort string, take func(der []byte) error) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxPEM: // the rest would be missing
		return fmt.Errorf("%s is longer than %d bytes", path, maxPEM)
	}
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil
		}
		if text = rest; block.Type != sort {
			continue
		}
		if err := take(block.Bytes); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
}

func readAuthorities(path string) (*x509.CertPool, []*x509.Certificate, error) {
	pool := x509.NewCertPool()
	var all []*x509.Certificate
	err := readPEM(path, "CERTIFICATE", func(der []byte) error {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		pool.AddCert(one)
		all = append(all, one)
		return nil
	})
	switch {
	case err != nil:
		return nil, nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the trusted authorities")
	case len(all) == 0:
		return nil, nil, fault.New(fault.Invalid, fault.Host, "%s contains no certificate", path)
	}
	return pool, all, nil
}

// revocations are lists of revoked certificates.
type revocations []revocation

type revocation struct {
	*x509.RevocationList
	numbers map[string]bool
}

func newRevocation(list *x509.RevocationList) revocation {
	r := revocation{list, map[string]bool{}}
	for _, entry := range list.RevokedCertificateEntries {
		r.numbers[entry.SerialNumber.String()] = true
	}
	return r
}

// readRevocations reads the lists, each signed by one of the authorities. A missing file means no list.
func readRevocations(path string, authorities []*x509.Certificate) (revocations, error) {
	var lists revocations
	err := readPEM(path, "X509 CRL", func(der []byte) error {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return err
		}
		for _, ca := range authorities {
			if list.CheckSignatureFrom(ca) == nil {
				lists = append(lists, newRevocation(list))
				return nil
			}
		}
		return errors.New("no trusted authority has signed the list")
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && len(lists) == 0: // such as a list in another form: it would keep no client out
		return nil, fault.New(fault.Invalid, fault.Host, "%s contains no revocation list in PEM form; remove the file if there is none", path)
	}
	return lists, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the revocation lists")
}

// check refuses revoked certificates, and every client once a list is out of date.
func (r revocations) check(state tls.ConnectionState) error {
	for list := range r.pairs(state.VerifiedChains) {
		if !list.NextUpdate.IsZero() && time.Now().After(list.NextUpdate) {
			return fault.New(fault.Denied, fault.Host, "the certificate revocation list expired at %v; renew it", list.NextUpdate)
		}
	}
	return r.checkChains(state.VerifiedChains)
}

// checkChains refuses revoked certificates.
func (r revocations) checkChains(chains [][]*x509.Certificate) error {
	for list, one := range r.pairs(chains) {
		if list.numbers[one.SerialNumber.String()] {
			return fault.New(fault.Denied, fault.Call, "certificate %v is revoked", one.SerialNumber)
		}
	}
	return nil
}

// pairs pairs each list with each certificate that it may name.
func (r revocations) pairs(chains [][]*x509.Certificate) iter.Seq2[revocation, *x509.Certificate] {
	return func(yield func(revocation, *x509.Certificate) bool) {
		for _, chain := range chains {
			for _, one := range chain {
				for _, list := range r {
					if bytes.Equal(list.RawIssuer, one.RawIssuer) && !yield(list, one) {
						return
					}
				}
			}
		}
	}
}
