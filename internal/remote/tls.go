package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// papers are the paths of the files with which a TLS client and a host prove their
// identities: the certificate authority, the client's certificate, and its key.
type papers struct{ authority, own, key string }

// papers are those of a folder, or lie where libvirt's clients look by themselves:
// the user's own, but for root, and each that is not there is the host's.
func (a Address) papers() papers {
	if a.pki != "" {
		return below(a.pki)
	}
	p := papers{"/etc/pki/CA/cacert.pem", "/etc/pki/libvirt/clientcert.pem", "/etc/pki/libvirt/private/clientkey.pem"}
	home, err := os.UserHomeDir()
	if err != nil || os.Geteuid() == 0 {
		return p
	}
	own := below(filepath.Join(home, ".pki/libvirt"))
	for _, one := range []struct{ host, user *string }{{&p.authority, &own.authority}, {&p.own, &own.own}, {&p.key, &own.key}} {
		if _, err := os.Stat(*one.user); err == nil {
			*one.host = *one.user
		}
	}
	return p
}

func below(folder string) papers {
	return papers{filepath.Join(folder, "cacert.pem"), filepath.Join(folder, "clientcert.pem"), filepath.Join(folder, "clientkey.pem")}
}

// maxPaper bounds a file of certificates, in bytes.
const maxPaper = 1 << 20

// trusted are the authorities that hosts' certificates must be of.
func (p papers) trusted() (*x509.CertPool, error) {
	info, err := os.Stat(p.authority)
	if err == nil && info.Size() > maxPaper {
		return nil, fault.New(fault.Invalid, fault.Config, "%s has %d bytes, more than certificates have", p.authority, info.Size())
	}
	text, err := os.ReadFile(p.authority)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Config, "cannot read whose certificates to trust; ?pkipath=FOLDER says where cacert.pem, clientcert.pem and clientkey.pem are")
	}
	all := x509.NewCertPool()
	if !all.AppendCertsFromPEM(text) {
		return nil, fault.New(fault.Invalid, fault.Config, "%s has no certificate in it", p.authority)
	}
	return all, nil
}

// ours is the client's own certificate; none where there is none, which a daemon that
// wants one will say.
func (p papers) ours() ([]tls.Certificate, error) {
	one, err := tls.LoadX509KeyPair(p.own, p.key)
	if errors.Is(err, fs.ErrNotExist) {
		if _, missing := os.Stat(p.own); errors.Is(missing, fs.ErrNotExist) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, fault.Config, "cannot read the client's own certificate %s with its key %s", p.own, p.key)
	}
	return []tls.Certificate{one}, nil
}

// welcome is what a daemon sends in the session once it has found the client's
// certificate good.
const welcome = 1

// overTLS connects to another host, each side having seen the other's certificate.
func (a Address) overTLS(ctx context.Context) (net.Conn, error) {
	files := a.papers()
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.Host, InsecureSkipVerify: true} // verified below
	var err error
	if config.Certificates, err = files.ours(); err != nil {
		return nil, err
	}
	if !a.noVerify {
		trusted, err := files.trusted()
		if err != nil {
			return nil, err
		}
		config.VerifyConnection = func(s tls.ConnectionState) error { return a.believe(s.PeerCertificates, trusted, files.authority) }
	}
	plain, err := a.overTCP(ctx)
	if err != nil {
		return nil, err
	}
	socket := tls.Client(plain, config)
	if err := a.greet(ctx, socket, files, len(config.Certificates) > 0); err != nil {
		plain.Close()
		return nil, err
	}
	return socket, nil
}

// greet shakes hands, and waits until the daemon has let the client in.
func (a Address) greet(ctx context.Context, socket *tls.Conn, files papers, have bool) error {
	ctx, stop := context.WithTimeoutCause(ctx, reachPatience, fault.New(fault.Timeout, fault.Host, "no answer within %s", reachPatience))
	defer stop()
	if err := socket.HandshakeContext(ctx); err != nil {
		switch {
		case ctx.Err() != nil:
			return fault.Wrap(context.Cause(ctx), fault.Timeout, fault.Host, "%s does not shake hands as TLS does: is another service on that port?", a.place())
		case fault.Is(err, fault.Denied):
			return err
		}
		return fault.Wrap(err, fault.Failed, fault.Host, "%s does not shake hands as TLS does, or with this client", a.place())
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = socket.SetReadDeadline(deadline) // or the read itself fails
	}
	release := context.AfterFunc(ctx, func() { _ = socket.NetConn().Close() })
	defer release()
	var first [1]byte
	_, err := socket.Read(first[:])
	if err == nil && first[0] != welcome {
		err = fault.New(fault.Failed, fault.Call, "it begins with %d and not with %d, as libvirt's protocol does", first[0], welcome)
	}
	if err != nil {
		shown := "was shown " + files.own
		if !have {
			shown = "there is none at " + files.own
		}
		return fault.Wrap(errors.Join(err, context.Cause(ctx)), fault.Denied, fault.Host, "%s does not let this client in: it wants a certificate by an authority and for a name that it trusts, and %s", a.place(), shown)
	}
	return socket.SetReadDeadline(time.Time{})
}

// believe checks that a host is the one that was meant. Certificates without any
// name but the subject's are good, as they are for libvirt's own clients.
func (a Address) believe(shown []*x509.Certificate, trusted *x509.CertPool, authority string) error {
	if len(shown) == 0 {
		return fault.New(fault.Denied, fault.Host, "%s shows no certificate", a.place())
	}
	own, between := shown[0], x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	if _, err := own.Verify(x509.VerifyOptions{Roots: trusted, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return fault.Wrap(err, fault.Denied, fault.Host, "%s shows a certificate that is not good by %s", a.place(), authority)
	}
	err := own.VerifyHostname(a.Host)
	if nameless := len(own.DNSNames)+len(own.IPAddresses)+len(own.URIs)+len(own.EmailAddresses) == 0; err == nil || nameless && strings.EqualFold(own.Subject.CommonName, a.Host) {
		return nil
	}
	return fault.Wrap(err, fault.Denied, fault.Host, "%s shows a certificate of another name: use the name that it has, or have one made for %s", a.place(), a.Host)
}
