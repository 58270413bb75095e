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

// Certificates are those by which clients from other hosts are known. They lie
// where libvirt has them, below one folder:
//
//	CA/cacert.pem                   whose clients may come in
//	CA/cacrl.pem                    certificates that were taken back; may be missing
//	libvirt/servercert.pem          the host's own
//	libvirt/private/serverkey.pem
type Certificates struct {
	folder  string
	now     atomic.Pointer[trust]
	watches watches
}

// trust is what the files say, understood. It is never changed.
type trust struct {
	server  *tls.Config
	roots   *x509.CertPool
	revoked revocations
}

// OpenCertificates reads them.
func OpenCertificates(folder string) (*Certificates, error) {
	c := &Certificates{folder: folder}
	return c, c.Reload()
}

// Reload reads them again, for clients that come from now on, and those that are watched. What
// is wrong leaves what was.
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
		return fault.New(fault.Failed, fault.Host, "everybody on this host may use the key %s; chmod o= it", key)
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(c.folder, "libvirt/servercert.pem"), key)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the host's certificate and key below %s", c.folder)
	}
	c.now.Store(&trust{roots: roots, revoked: revoked, server: &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, Certificates: []tls.Certificate{own},
		SessionTicketsDisabled: true, // a certificate that is taken back must not come in by an older session
		VerifyConnection:       revoked.check,
	}})
	c.lookAll()
	return nil
}

// Server gives the host's end of a secure connection, whose handshake is still to come. It may
// offer a choice of protocols to speak on it. Where it offers none the client is one of
// libvirt's, and is met with TLS 1.2: those have GnuTLS, which by 1.3 shows no RSA certificate
// to a host that takes PSS alone for signatures, as crypto/tls does.
func (c *Certificates) Server(conn net.Conn, protocols ...string) *tls.Conn {
	config := c.now.Load().server.Clone()
	if config.NextProtos = protocols; len(protocols) == 0 {
		config.MaxVersion = tls.VersionTLS12
	}
	return tls.Server(conn, config)
}

// Subject shakes hands with a client within the time of ctx, and gives the subject
// of its certificate.
func Subject(ctx context.Context, secure *tls.Conn) (subject string, err error) {
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", fault.Wrap(err, fault.Denied, fault.Call, "no secure connection")
	}
	subject = secure.ConnectionState().PeerCertificates[0].Subject.String()
	// Words with marks in them could look like several, to the patterns of rules.
	if strings.ContainsAny(subject, `\"+`) {
		return "", fault.New(fault.Denied, fault.Call, "the certificate's subject %q has marks in it that patterns could be misled by", subject)
	}
	return subject, nil
}

// readPEM reads a file and gives the blocks of a sort to take.
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
	case len(text) > maxPEM: // what is behind would be missing
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
		return nil, nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read whose certificates to trust")
	case len(all) == 0:
		return nil, nil, fault.New(fault.Invalid, fault.Host, "%s has no certificate in it", path)
	}
	return pool, all, nil
}

// revocations are the lists of certificates that were taken back.
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

// readRevocations reads lists that one of the authorities has signed. No file is no list.
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
		return errors.New("none of those who are trusted has signed the list")
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && len(lists) == 0: // such as one in another form: nobody would be kept out by it
		return nil, fault.New(fault.Invalid, fault.Host, "%s has no list of certificates in it that were taken back, as PEM; remove it if there is none", path)
	}
	return lists, fault.Wrap(err, fault.Failed, fault.Host, "cannot read which certificates were taken back")
}

// check refuses certificates that were taken back, and everybody once a list is out of date.
func (r revocations) check(state tls.ConnectionState) error {
	for list := range r.over(state.VerifiedChains) {
		if !list.NextUpdate.IsZero() && time.Now().After(list.NextUpdate) {
			return fault.New(fault.Denied, fault.Host, "the list of certificates that were taken back is out of date since %v; renew it", list.NextUpdate)
		}
	}
	return r.taken(state.VerifiedChains)
}

// taken refuses certificates that were taken back.
func (r revocations) taken(chains [][]*x509.Certificate) error {
	for list, one := range r.over(chains) {
		if list.numbers[one.SerialNumber.String()] {
			return fault.New(fault.Denied, fault.Call, "certificate %v was taken back", one.SerialNumber)
		}
	}
	return nil
}

// over gives each list with each certificate that it could name.
func (r revocations) over(chains [][]*x509.Certificate) iter.Seq2[revocation, *x509.Certificate] {
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
