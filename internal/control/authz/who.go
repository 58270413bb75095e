package authz

import (
	"fmt"
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

// Who is a client, as the kernel or its certificate says.
type Who struct {
	// Local is a process of this host, Peer which one.
	Local bool
	Peer  listener.Peer
	// Subject is the distinguished name in a remote client's certificate, and
	// Address where it comes from.
	Subject, Address string
}

// LocalWho is who is at the other end of a unix socket.
func LocalWho(p listener.Peer) Who { return Who{Local: true, Peer: p} }

// Trusted are root and the daemon's own user: they could change the rules
// themselves, so no rule holds them.
func (w Who) Trusted() bool {
	return w.Local && w.Peer.Unknown == nil && (w.Peer.UID == 0 || w.Peer.UID == uint32(os.Geteuid()))
}

// String names the client in errors and in the audit.
func (w Who) String() string {
	if w.Local {
		return fmt.Sprintf("user %d", w.Peer.UID)
	}
	return fmt.Sprintf("%q", w.Subject)
}

// Owner is who answers for a connection: a user, and of root, who runs services
// for others, the process; or another host.
type Owner struct {
	UID  uint32
	PID  int32
	Host string // empty: this one
}

// Owner says who answers for what the client holds.
func (w Who) Owner() Owner {
	switch {
	case !w.Local:
		return Owner{Host: origin(w.Address)}
	case w.Peer.UID == 0:
		return Owner{PID: w.Peer.PID}
	}
	return Owner{UID: w.Peer.UID}
}

// principal is one line under a rule's "who".
type principal struct {
	text string
	is   func(Who) bool
}

func isUser(uid uint32) func(Who) bool {
	return func(w Who) bool { return w.Local && w.Peer.Unknown == nil && w.Peer.UID == uid }
}

func isMember(gid uint32) func(Who) bool {
	return func(w Who) bool {
		return w.Local && w.Peer.Unknown == nil && (w.Peer.GID == gid || slices.Contains(w.Peer.Groups, gid))
	}
}
