package authz

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// Bounds of clients of other hosts that have not finished their TLS handshake.
const (
	maxHandshakes     = 64
	maxHandshakesEach = 16 // from one address
	handshakeTimeout  = 15 * time.Second
)

// Authenticator establishes who a client is, for both APIs. It authenticates clients of other hosts by their
// certificates, and clients of this host through polkit if that is configured. It bounds the number and the duration
// of concurrent attempts, and repeated failures. The Authorizer decides what a client may then do. A nil
// Authenticator authenticates no client.
type Authenticator struct {
	authorizer *Authorizer
	allow      []string
	polkit     *polkit.Authority
	log        *slog.Logger
	// polkitLast says that polkit is asked only about clients that neither these groups nor rules admit.
	polkitLast bool
	groups     []uint32

	failed lockout

	mu         sync.Mutex
	handshakes map[string]int // handshakes under way, by origin
	total      int
}

// NewAuthenticator makes an Authenticator. authority is polkit, which is asked about clients of this host; nil: it is
// not asked. allow are globs for subjects of certificates, used if there are no rules; without globs every valid
// certificate is admitted.
func NewAuthenticator(gate *Authorizer, authority *polkit.Authority, allow []string, log *slog.Logger) *Authenticator {
	return &Authenticator{authorizer: gate, polkit: authority, allow: allow, log: log, handshakes: map[string]int{}}
}

// AskPolkitLast makes polkit decide only about clients that are not members of some groups, and about none if there
// are rules. It is the default: a polkit policy of the host can admit more clients, and never fewer.
func (r *Authenticator) AskPolkitLast(groups []uint32) { r.polkitLast, r.groups = true, groups }

// AsksPolkit says whether polkit decides about a client.
func (r *Authenticator) AsksPolkit(w Principal) bool {
	if r == nil || r.polkit == nil || !w.Local || w.Peer.Unknown != nil || w.Trusted() {
		return false
	}
	return !r.polkitLast || !r.authorizer.HasRules() && w.Peer.Admit(false, r.groups) != nil
}

// AuthenticateLocal asks polkit whether a client of this host is admitted: to read only, or to do everything. It may
// take as long as polkit.Patience.
func (r *Authenticator) AuthenticateLocal(ctx context.Context, w Principal, p polkit.Process, readOnly bool) error {
	who := fmt.Sprintf("user %d", w.Peer.UID)
	if r.failed.isLocked(who) {
		return fault.New(fault.Denied, fault.Call, "polkit has refused %s %d times; try again in a minute", who, maxFailures)
	}
	action := polkit.Manage
	if readOnly {
		action = polkit.Monitor
	}
	err := r.polkit.Check(ctx, p, action)
	if err == nil || errors.Is(err, polkit.ErrRefused) || errors.Is(err, polkit.ErrDismissed) {
		r.countAttempt(who, err) // a polkit that could not ask or did not answer is no failure of the client
	}
	return err
}

// Handshake does the TLS handshake with a client of another host at an address. It returns the client's identity
// as far as it is known, also with an error.
func (r *Authenticator) Handshake(ctx context.Context, conn *tls.Conn, address string) (Principal, error) {
	w, from := Principal{Address: address}, origin(address)
	if err := r.beginHandshake(from); err != nil {
		return w, err
	}
	defer r.endHandshake(from)
	ctx, stop := context.WithTimeout(ctx, handshakeTimeout)
	defer stop()
	subject, err := listener.Subject(ctx, conn)
	w.Subject = subject
	if err == nil {
		err = r.authorizer.AdmitRemote(w, r.allow)
	}
	r.countAttempt(from, err)
	return w, err
}

// IsOverLimit says that an attempt was refused before it was looked at, because there were too many. The audit has
// the earlier ones, and should not be flooded.
func IsOverLimit(err error) bool { return fault.Is(err, fault.NoCapacity) }

// countAttempt counts a failed attempt; a success clears earlier failures.
func (r *Authenticator) countAttempt(who string, err error) {
	if err == nil {
		r.failed.clear(who)
		return
	}
	if r.failed.fail(who) {
		r.log.Warn("client locked out for a minute after failed logins", "client", who, "times", maxFailures)
	}
}

// beginHandshake takes a place for a handshake with a client at that address, which endHandshake gives back.
func (r *Authenticator) beginHandshake(from string) error {
	if r.failed.isLocked(from) {
		return fault.New(fault.NoCapacity, fault.Call, "%s has failed to log in %d times", from, maxFailures)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total >= maxHandshakes || r.handshakes[from] >= maxHandshakesEach {
		return fault.New(fault.NoCapacity, fault.Call, "%d connections of other hosts have not finished their handshakes, %d of them from %s", r.total, r.handshakes[from], from)
	}
	r.total++
	r.handshakes[from]++
	return nil
}

func (r *Authenticator) endHandshake(from string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total--
	if r.handshakes[from]--; r.handshakes[from] == 0 {
		delete(r.handshakes, from)
	}
}
