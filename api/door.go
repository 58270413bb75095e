package api

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/socket"
)

// door takes connections within their bounds, and notes who comes.
type door struct {
	net.Listener
	conns *places
	log   *slog.Logger

	warned time.Time // belongs to who accepts
}

// grumble is how often the log is told at most that clients are turned away.
const grumble = 10 * time.Second

// Accept turns those away for whom there is no place: what one process may
// hold is far more than a sound client wants.
func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := socket.PeerOf(conn)
		if d.conns.take(peer.PID, 1) {
			return &client{Conn: conn, peer: peer, conns: d.conns}, nil
		}
		_ = conn.Close()
		if time.Since(d.warned) > grumble {
			d.log.Warn("too many connections to the API", "pid", peer.PID, "uid", peer.UID)
			d.warned = time.Now()
		}
	}
}

// client is a connection with its place.
type client struct {
	net.Conn
	peer  socket.Peer
	conns *places
	once  sync.Once
}

func (c *client) Close() error {
	c.once.Do(func() { c.conns.leave(c.peer.PID, 1) })
	return c.Conn.Close()
}
