package conformance

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

// crowd are the clients in a storm that only read, or connect and leave. The daemon must not refuse them, and they
// must not delay other clients.
type crowd struct {
	s    *storm
	over <-chan struct{}
	all  sync.WaitGroup
}

// The size of the crowd in a round.
const (
	readers   = 2 // who ask for everything about all
	listeners = 2 // who follow the events
	deafs     = 2 // who ask for events, and do not take them
	passers   = 4 // who connect and leave, in the middle of a word too
)

// gather starts a crowd that works until over is closed.
func (s *storm) gather(t *testing.T, draw *rand.Rand, over <-chan struct{}) *crowd {
	t.Helper()
	c := &crowd{s: s, over: over}
	for range readers {
		l := s.connect(t)
		c.all.Go(func() { c.read(t, l) })
	}
	for range listeners {
		l, conn := s.connectWithConn(t)
		c.all.Go(func() { c.listen(t, l, conn) })
	}
	for range deafs {
		l, conn := s.connectDeaf(t)
		c.all.Go(func() { c.ignore(l, conn) })
	}
	for range passers {
		own := rand.New(rand.NewPCG(draw.Uint64(), 0)) //nolint:gosec // to be repeated, not to be secret
		c.all.Go(func() { c.pass(t, own) })
	}
	return c
}

func (c *crowd) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return c.s.stopping.Load()
	}
}

// complain reports a failure that the daemon's end does not explain.
func (c *crowd) complain(t *testing.T, what string, err error) {
	if err != nil && !c.isOver() {
		t.Errorf("%s: %v", what, err)
	}
}

// read queries everything. A guest may be gone before its query.
func (c *crowd) read(t *testing.T, l *libvirt.Libvirt) {
	defer func() { _ = l.Disconnect() }() // the daemon may have gone first
	for !c.isOver() {
		doms, _, err := l.ConnectListAllDomains(1, 0)
		c.complain(t, "listing", err)
		_, err = l.ConnectGetAllDomainStats(nil, 0, 0)
		c.complain(t, "statistics", err)
		for _, d := range doms {
			if _, err := l.DomainGetXMLDesc(d, 0); err != nil && !libvirt.IsNotFound(err) {
				c.complain(t, "XML", err)
			}
		}
		if err != nil {
			return
		}
	}
}

// listen follows the events until the round is over, and then closes the connection. It does not end the
// subscription: the client's library may deadlock if events arrive at that moment.
func (c *crowd) listen(t *testing.T, l *libvirt.Libvirt, conn *deafConn) {
	defer func() { _ = conn.Close() }() // closes without ending the subscription, as above
	events, err := l.LifecycleEvents(t.Context())
	c.complain(t, "following events", err)
	if err != nil {
		return
	}
	for {
		select {
		case _, more := <-events:
			if !more {
				c.complain(t, "following events", errors.New("they end"))
				return
			}
		case <-c.over:
			return
		}
	}
}

// ignore does nothing until the round is over.
func (c *crowd) ignore(l *libvirt.Libvirt, conn *deafConn) {
	select {
	case <-c.over:
	case <-l.Disconnected():
	}
	_ = conn.Close()
}

// pass connects and leaves again and again. The daemon must not refuse any connection.
func (c *crowd) pass(t *testing.T, draw *rand.Rand) {
	for !c.isOver() {
		conn, err := new(net.Dialer).DialContext(t.Context(), "unix", c.s.socket())
		c.complain(t, "connecting", err)
		if err != nil {
			return
		}
		if draw.IntN(2) == 0 {
			// This is a part of an AUTH_LIST call, and sometimes the whole call.
			word := "\x00\x00\x00\x1c\x20\x00\x80\x86\x00\x00\x00\x01\x00\x00\x00\x42" + strings.Repeat("\x00", 12)
			_, _ = io.WriteString(conn, word[:draw.IntN(len(word)+1)]) // it may be ending
		}
		_ = conn.Close()
		if draw.IntN(8) == 0 {
			l, err := connected(c.s.socket(), nil)
			c.complain(t, "opening", err)
			if err != nil {
				return
			}
			_ = l.Disconnect()
		}
	}
}

func (d *daemon) socket() string { return filepath.Join(d.run, "libvirt-sock") }

// deafConn is a connection that can be told to stop reading.
type deafConn struct {
	net.Conn
	deaf   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *deafConn) Read(b []byte) (int, error) {
	if c.deaf.Load() {
		<-c.closed
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// connectWithConn returns a client with its connection.
func (d *daemon) connectWithConn(t *testing.T) (*libvirt.Libvirt, *deafConn) {
	t.Helper()
	var made *deafConn
	l, err := connected(d.socket(), func(conn net.Conn) net.Conn {
		made = &deafConn{Conn: conn, closed: make(chan struct{})}
		return made
	})
	if err != nil {
		t.Fatal(err)
	}
	return l, made
}

// connectDeaf returns a client that has subscribed to events and reads nothing.
func (d *daemon) connectDeaf(t *testing.T) (*libvirt.Libvirt, *deafConn) {
	t.Helper()
	l, made := d.connectWithConn(t)
	for id := range int32(libvirt.DomainEventIDBlockThreshold) {
		if _, err := l.ConnectDomainEventCallbackRegisterAny(id, nil); err != nil {
			t.Fatal(err)
		}
	}
	made.deaf.Store(true)
	return l, made
}
