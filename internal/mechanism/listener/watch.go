package listener

import (
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// watchPause is the longest time between two checks of a certificate's end: the host's clock
// may have been set in between.
const watchPause = time.Hour

// watches are the connections whose clients' certificates must stay valid.
type watches struct {
	mu   sync.Mutex
	open map[*watch]bool
}

type watch struct {
	certificates *Certificates
	shown        []*x509.Certificate // the client's certificates, its own first
	gone         func(error)
	timer        *time.Timer // guarded by the lock of the watches
}

// Watch calls gone once, in any goroutine, when the certificate of a client
// expires, is revoked, or is no longer trusted after a Reload. The client has finished its handshake. The
// watch ends then, or with stop.
func (c *Certificates) Watch(secure *tls.Conn, gone func(error)) (stop func()) {
	w := &watch{certificates: c, shown: secure.ConnectionState().PeerCertificates, gone: gone}
	c.watches.mu.Lock()
	if c.watches.open == nil {
		c.watches.open = map[*watch]bool{}
	}
	c.watches.open[w] = true
	c.watches.mu.Unlock()
	w.recheck() // the certificates may have been reloaded since the handshake
	return w.stop
}

// recheckAll checks every connection against reloaded certificates.
func (c *Certificates) recheckAll() {
	c.watches.mu.Lock()
	all := make([]*watch, 0, len(c.watches.open))
	for w := range c.watches.open {
		all = append(all, w)
	}
	c.watches.mu.Unlock()
	for _, w := range all {
		w.recheck()
	}
}

// recheck judges a client's certificate, and schedules the next check at its end.
func (w *watch) recheck() {
	ends, err := w.certificates.now.Load().judge(w.shown)
	if err != nil {
		if w.end() {
			w.gone(err)
		}
		return
	}
	after := min(max(time.Until(ends), 0)+time.Millisecond, watchPause)
	at := &w.certificates.watches
	at.mu.Lock()
	defer at.mu.Unlock()
	switch {
	case !at.open[w]: // stopped in between
	case w.timer == nil:
		w.timer = time.AfterFunc(after, w.recheck)
	default:
		w.timer.Reset(after)
	}
}

func (w *watch) stop() { w.end() }

// end ends the watch, and reports whether it was active.
func (w *watch) end() bool {
	at := &w.certificates.watches
	at.mu.Lock()
	defer at.mu.Unlock()
	was := at.open[w]
	delete(at.open, w)
	if w.timer != nil {
		w.timer.Stop()
	}
	return was
}

// judge returns until when a client's certificates are valid, or why they are not. An expired
// revocation list refuses new clients, but does not end connections: it did not
// name their certificates.
func (t *trust) judge(shown []*x509.Certificate) (until time.Time, err error) {
	between := x509.NewCertPool()
	for _, one := range shown[1:] {
		between.AddCert(one)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err == nil {
		err = t.revoked.checkChains(chains)
	}
	if err != nil {
		return until, fault.Wrap(err, fault.Denied, fault.Call, "the client's certificate is no longer valid")
	}
	for _, chain := range chains { // one valid chain is enough; a chain is valid as long as each certificate in it
		ends := chain[0].NotAfter
		for _, one := range chain[1:] {
			if one.NotAfter.Before(ends) {
				ends = one.NotAfter
			}
		}
		if ends.After(until) {
			until = ends
		}
	}
	return until, nil
}
