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

// Bounds of clients of other hosts that have not shown their certificates yet.
const (
	maxShaking     = 64
	maxShakingEach = 16 // from one address
	shakeTime      = 15 * time.Second
)

// Reception finds out who clients are, by both APIs: of other hosts from their
// certificates, of this host, where it is asked for, through polkit. It bounds how
// many are at it, for how long, and how often somebody may fail. What they may then
// do is for the Gate. A nil reception knows neither way.
type Reception struct {
	gate   *Gate
	allow  []string
	polkit *polkit.Authority
	log    *slog.Logger
	// last: polkit is asked last, about those whom neither these groups nor rules let in.
	last   bool
	groups []uint32

	strikes strikes

	mu      sync.Mutex
	shaking map[string]int // handshakes under way, by origin
	all     int
}

// NewReception makes one. Authority is asked about clients of this host; nil: nobody
// is. Allow are the subjects of certificates that may come in, as globs, where
// there are no rules; none: whoever has a certificate.
func NewReception(gate *Gate, authority *polkit.Authority, allow []string, log *slog.Logger) *Reception {
	return &Reception{gate: gate, polkit: authority, allow: allow, log: log, shaking: map[string]int{}}
}

// AskLast has polkit decide about those alone who are not members of some groups, and
// about nobody where there are rules: what a daemon does that was told nothing, so that
// a policy of the host's adds to those who come in, and keeps nobody out.
func (r *Reception) AskLast(groups []uint32) { r.last, r.groups = true, groups }

// Asks says whether polkit decides about a client.
func (r *Reception) Asks(w Who) bool {
	if r == nil || r.polkit == nil || !w.Local || w.Peer.Unknown != nil || w.Trusted() {
		return false
	}
	return !r.last || !r.gate.Ruled() && w.Peer.Admit(false, r.groups) != nil
}

// Prove has polkit say whether a client of this host may come in, to look or to do
// everything. It may take as long as polkit.Patience.
func (r *Reception) Prove(ctx context.Context, w Who, p polkit.Process, toLook bool) error {
	who := fmt.Sprintf("user %d", w.Peer.UID)
	if r.strikes.out(who) {
		return fault.New(fault.Denied, fault.Call, "polkit has refused %s %d times; try again in a minute", who, maxStrikes)
	}
	action := polkit.Manage
	if toLook {
		action = polkit.Monitor
	}
	err := r.polkit.Check(ctx, p, action)
	if err == nil || errors.Is(err, polkit.ErrRefused) || errors.Is(err, polkit.ErrDismissed) {
		r.judged(who, err) // what polkit could not ask, or did not answer, is no failure of the client's
	}
	return err
}

// Receive shakes hands with a client of another host that came from an address, and
// gives who it is, in any case as far as that is known.
func (r *Reception) Receive(ctx context.Context, conn *tls.Conn, address string) (Who, error) {
	w, from := Who{Address: address}, origin(address)
	if err := r.begin(from); err != nil {
		return w, err
	}
	defer r.end(from)
	ctx, stop := context.WithTimeout(ctx, shakeTime)
	defer stop()
	subject, err := listener.Subject(ctx, conn)
	w.Subject = subject
	if err == nil {
		err = r.gate.Welcome(w, r.allow)
	}
	r.judged(from, err)
	return w, err
}

// TurnedAway says that an attempt was not looked at, because there were too many: the
// audit has those before, and would be flooded.
func TurnedAway(err error) bool { return fault.Is(err, fault.NoCapacity) }

// judged counts an attempt that failed, and forgets those before one that did not.
func (r *Reception) judged(who string, err error) {
	if err == nil {
		r.strikes.clear(who)
		return
	}
	if r.strikes.note(who) {
		r.log.Warn("a client has failed to come in too often, and is turned away for a minute", "client", who, "times", maxStrikes)
	}
}

func (r *Reception) begin(from string) error {
	if r.strikes.out(from) {
		return fault.New(fault.NoCapacity, fault.Call, "%s has failed to come in %d times", from, maxStrikes)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all >= maxShaking || r.shaking[from] >= maxShakingEach {
		return fault.New(fault.NoCapacity, fault.Call, "%d connections of other hosts have not shown their certificates yet, %d of them from %s", r.all, r.shaking[from], from)
	}
	r.all++
	r.shaking[from]++
	return nil
}

func (r *Reception) end(from string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.shaking[from]--; r.shaking[from] == 0 {
		delete(r.shaking, from)
	}
}
