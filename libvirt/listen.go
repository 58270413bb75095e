package libvirt

import "net"

// Listener is a socket that clients connect to. What comes in by a read-only
// one may change nothing.
type Listener struct {
	net.Listener
	ReadOnly bool
}
