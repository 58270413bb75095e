package authz

import (
	"fmt"
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

// Principal is the identity of a client, from the kernel (SO_PEERCRED) or from its certificate.
type Principal struct {
	// Local says that it is a process of this host, Peer says which one.
	Local bool
	Peer  listener.Peer
	// Subject is the distinguished name in a remote client's certificate, Address its network address.
	Subject, Address string
}

// LocalPrincipal is the peer of a unix socket.
func LocalPrincipal(p listener.Peer) Principal { return Principal{Local: true, Peer: p} }

// Trusted says that the client is root or the daemon's user: it could change the rules itself, so no rule
// restricts it.
func (w Principal) Trusted() bool {
	return w.Local && w.Peer.Unknown == nil && (w.Peer.UID == 0 || w.Peer.UID == uint32(os.Geteuid()))
}

// String names the client in errors and in the audit.
func (w Principal) String() string {
	if w.Local {
		return fmt.Sprintf("user %d", w.Peer.UID)
	}
	return fmt.Sprintf("%q", w.Subject)
}

// Owner is the party that connections are counted for: a user, or another host. For root, which runs services for
// others, it is the process.
type Owner struct {
	UID  uint32
	PID  int32
	Host string // empty: this host
}

// Owner returns the party that the client's connections are counted for.
func (w Principal) Owner() Owner {
	switch {
	case !w.Local:
		return Owner{Host: origin(w.Address)}
	case w.Peer.UID == 0:
		return Owner{PID: w.Peer.PID}
	}
	return Owner{UID: w.Peer.UID}
}

// matcher is one line under a rule's "who".
type matcher struct {
	text string
	is   func(Principal) bool
}

func isUser(uid uint32) func(Principal) bool {
	return func(w Principal) bool { return w.Local && w.Peer.Unknown == nil && w.Peer.UID == uid }
}

func isMember(gid uint32) func(Principal) bool {
	return func(w Principal) bool {
		return w.Local && w.Peer.Unknown == nil && (w.Peer.GID == gid || slices.Contains(w.Peer.Groups, gid))
	}
}
