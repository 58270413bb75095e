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
	maxTracked  = 4096        // clients counted; beyond that the one with the least time left is forgotten
)

// lockout counts the failed attempts of each client, and locks a client out for lockoutTime after too many. Each
// attempt costs the daemon a handshake, a question to polkit, or a line of the audit.
type lockout struct {
	limit int // failed attempts; 0: maxFailures

	mu      sync.Mutex
	clients map[string]failureCount
}

// failureCount is the count for one client.
type failureCount struct {
	count int
	until time.Time // the count is forgotten after it
}

// isLocked says whether a client is locked out.
func (s *lockout) isLocked(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.clients[who]
	return had.count >= cmp.Or(s.limit, maxFailures) && time.Now().Before(had.until)
}

// fail counts a failed attempt, and says whether the client is locked out from now on.
func (s *lockout) fail(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	had := s.clients[who]
	if now.After(had.until) {
		had.count = 0
	}
	had.count++
	had.until = now.Add(lockoutTime)
	if s.clients == nil {
		s.clients = map[string]failureCount{}
	}
	s.clients[who] = had
	if len(s.clients) > maxTracked {
		s.forget(now)
	}
	return had.count == cmp.Or(s.limit, maxFailures)
}

// clear forgets the failures of a client that was admitted.
func (s *lockout) clear(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, who)
}

// forget drops all clients that are no longer locked out, or else the one with the least time left.
func (s *lockout) forget(now time.Time) {
	least := ""
	for who, one := range s.clients {
		if now.After(one.until) {
			delete(s.clients, who)
		} else if least == "" || one.until.Before(s.clients[least].until) {
			least = who
		}
	}
	if len(s.clients) > maxTracked {
		delete(s.clients, least)
	}
}

// origin returns the part of another host's address that attempts are counted for: an IPv4 address, or the /64 of an
// IPv6 address, whose addresses commonly belong to one owner.
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
