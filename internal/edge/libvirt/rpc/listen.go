package rpc

import (
	"net"

	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

// Listener is a socket that clients connect to. Clients of a read-only socket may
// change nothing.
type Listener struct {
	net.Listener
	ReadOnly bool
	// Certificates identify clients from other hosts; nil: the listener is a unix socket.
	Certificates *listener.Certificates
}
