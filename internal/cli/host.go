package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// DefaultPort is where daemons take clients of other hosts.
const DefaultPort = "16515"

// Certificates are the paths of the files with which a TLS client and a host prove
// their identities: the certificate authority, the client's certificate, and its key.
type Certificates struct{ Authority, Own, Key string }

// CertificatesBelow are those of a folder like the pkipath of libvirt's clients. Without
// a folder they are where libvirt's clients look by themselves: the user's own below
// ~/.pki, or the host's below /etc/pki.
func CertificatesBelow(folder string) Certificates {
	if folder == "" {
		if home, err := os.UserHomeDir(); err == nil && exists(filepath.Join(home, ".pki/libvirt/clientcert.pem")) {
			folder = filepath.Join(home, ".pki/libvirt")
		}
	}
	if folder == "" {
		return Certificates{"/etc/pki/CA/cacert.pem", "/etc/pki/libvirt/clientcert.pem", "/etc/pki/libvirt/private/clientkey.pem"}
	}
	return Certificates{filepath.Join(folder, "cacert.pem"), filepath.Join(folder, "clientcert.pem"), filepath.Join(folder, "clientkey.pem")}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// load reads the files for calls to a host of that name.
func (c Certificates) load(name string) (*tls.Config, error) {
	text, err := os.ReadFile(c.Authority)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Config, "cannot read the authority's certificate; name its directory with --pki")
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(text) {
		return nil, fault.New(fault.Invalid, fault.Config, "%s has no certificate", c.Authority)
	}
	own, err := tls.LoadX509KeyPair(c.Own, c.Key)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, fault.Config, "cannot read the client's certificate and key; name their directory with --pki")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted, Certificates: []tls.Certificate{own}, ServerName: name}, nil
}

// DialHost prepares calls to the daemon of another host, NAME or NAME:PORT. The first
// call connects, or says why it cannot.
func DialHost(host string, files Certificates) *Client {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, DefaultPort
	}
	far := afar{host: net.JoinHostPort(name, port)}
	config, err := files.load(name)
	if err != nil {
		far.broken = err
	}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(true)
	far.Transport = &http.Transport{Protocols: &protocols, TLSClientConfig: config}
	return newClient(far, far.Transport, "https://"+far.host, usualPatience)
}

// afar is the way to another host's daemon.
type afar struct {
	*http.Transport
	host   string
	broken error // why there is no way
}

func (a afar) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.broken != nil {
		return nil, a.broken
	}
	response, err := a.Transport.RoundTrip(r)
	if err == nil || r.Context().Err() != nil {
		return response, err
	}
	unreached, _ := errors.AsType[*net.OpError](err)
	_, stranger := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case stranger:
		err = fault.Wrap(err, fault.Denied, fault.Host, "%s shows no certificate for this name from a trusted authority (cacert.pem)", a.host)
	case unreached != nil && unreached.Op == "dial":
		err = fault.Wrap(err, fault.NotFound, fault.Host, "cannot reach a daemon on %s; lodged listens there only with --api-tls", a.host)
	default:
		err = fault.Wrap(err, fault.Denied, fault.Host, "%s does not let this client in, or does not answer as Lodge", a.host)
	}
	return response, err
}
