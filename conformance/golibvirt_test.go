package conformance

import (
	"context"
	"net"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// connected returns a go-libvirt client on the daemon's socket. The last write of its Connect is what its listener
// reads when the connection ends. If the daemon is killed at that moment, the library has a data race of its own.
// So the listener sees the end of the connection only after Connect has returned, or when Connect waits for an
// answer that will not come.
func connected(path string, wrap func(net.Conn) net.Conn) (*libvirt.Libvirt, error) {
	d := socketDialer{path, wrap, make(chan struct{})}
	l := libvirt.NewWithDialer(d)
	err := l.Connect()
	close(d.returned)
	return l, err
}

// socketDialer connects to a socket. It wraps the connection if wrap is set.
type socketDialer struct {
	path     string
	wrap     func(net.Conn) net.Conn
	returned chan struct{} // closed when Connect has
}

// Dial is what go-libvirt calls.
func (d socketDialer) Dial() (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(context.Background(), "unix", d.path)
	if err != nil {
		return nil, err
	}
	if d.wrap != nil {
		conn = d.wrap(conn)
	}
	return lateConn{conn, d.returned}, nil
}

// lateConn reports its end only when Connect has returned, or after a delay.
type lateConn struct {
	net.Conn
	returned <-chan struct{}
}

func (c lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		select {
		case <-c.returned:
		case <-time.After(5 * time.Second): // Connect waits for an answer
		}
	}
	return n, err
}
