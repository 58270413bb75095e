package remotetest

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Gate listens at a TCP port for the daemon at a socket, and returns the port. It
// passes each new connection to first, which may refuse it with an error.
func Gate(t *testing.T, socket string, first func(net.Conn) (net.Conn, error)) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { listener.Close(); all.Wait() })
	all.Go(func() {
		for {
			plain, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer plain.Close()
				client, err := first(plain)
				if err != nil {
					return
				}
				daemon, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
				if err != nil {
					t.Error(err)
					return
				}
				all.Go(func() { _, _ = io.Copy(client, daemon) })
				_, _ = io.Copy(daemon, client)
				daemon.Close()
			})
		}
	})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// Open lets every connection through.
func Open(c net.Conn) (net.Conn, error) { return c, nil }

// Shake makes a TLS handshake as daemons do. A client without a valid certificate gets
// no data.
func Shake(own tls.Certificate, clients *Authority) func(net.Conn) (net.Conn, error) {
	return func(plain net.Conn) (net.Conn, error) {
		_ = plain.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Server(plain, &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Trusted()})
		if err := c.Handshake(); err != nil { //nolint:noctx // it has a deadline
			return nil, err
		}
		_, err := c.Write([]byte{1})
		return c, err
	}
}
