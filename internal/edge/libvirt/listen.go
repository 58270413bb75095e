package libvirt

import (
	"net"

	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

// Listener is a socket that clients connect to. What comes in by a read-only
// one may change nothing.
type Listener struct {
	net.Listener
	ReadOnly bool
	// Certificates say who comes from other hosts; nil: the listener is a unix socket.
	Certificates *listener.Certificates
}
