package authz

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the lockout.
const (
	maxFailures = 10          // failed attempts, each less than lockoutTime after the one before
	lockoutTime = time.Minute // how long the client is then locked out
	maxTracked  = 4096        // clients remembered; then the one with the least time left is forgotten
)

// lockout counts failed attempts by client, and locks a client out for a while after too many: each attempt
// costs a handshake, a question to polkit, or a line of the audit.
type lockout struct {
	limit int // failed attempts; 0: maxFailures

	mu sync.Mutex
	by map[string]failures
}

type failures struct {
	times int
	until time.Time
}

// isLocked says whether a client is locked out.
func (s *lockout) isLocked(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.by[who]
	return had.times >= cmp.Or(s.limit, maxFailures) && time.Now().Before(had.until)
}

// fail counts a failed attempt, and says whether it exceeds the bound.
func (s *lockout) fail(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	had := s.by[who]
	if now.After(had.until) {
		had.times = 0
	}
	had.times++
	had.until = now.Add(lockoutTime)
	if s.by == nil {
		s.by = map[string]failures{}
	}
	s.by[who] = had
	if len(s.by) > maxTracked {
		s.forget(now)
	}
	return had.times == cmp.Or(s.limit, maxFailures)
}

// clear forgets the failures of a client that was admitted.
func (s *lockout) clear(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, who)
}

// forget drops all clients that are no longer locked out, or else the one with the least time left.
func (s *lockout) forget(now time.Time) {
	least := ""
	for who, one := range s.by {
		if now.After(one.until) {
			delete(s.by, who)
		} else if least == "" || one.until.Before(s.by[least].until) {
			least = who
		}
	}
	if len(s.by) > maxTracked {
		delete(s.by, least)
	}
}

// origin is the owner of an address of another host. All IPv6 addresses with one prefix commonly belong to one
// owner.
func origin(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		host, _, _ := net.SplitHostPort(address)
		return host
	}
	ip := at.Addr().Unmap()
	if ip.Is6() {
		if prefix, err := ip.WithZone("").Prefix(64); err == nil {
			return prefix.String()
		}
	}
	return ip.String()
}
