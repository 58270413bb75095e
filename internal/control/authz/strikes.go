package authz

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of those who were not let in.
const (
	maxStrikes = 10          // failed attempts, each less than strikeTime after the one before
	strikeTime = time.Minute // that somebody who has failed so often has to wait
	maxStruck  = 4096        // remembered; then the one who has to wait least is forgotten
)

// strikes remember who was not let in, and keep out for a while who tries too often:
// each attempt costs a handshake, or a question to polkit, or a line of the audit.
type strikes struct {
	most int // failed attempts; 0: maxStrikes

	mu sync.Mutex
	by map[string]struck
}

type struck struct {
	times int
	until time.Time
}

// out says whether somebody has to wait.
func (s *strikes) out(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.by[who]
	return had.times >= cmp.Or(s.most, maxStrikes) && time.Now().Before(had.until)
}

// note counts a failed attempt, and says whether it was one too many.
func (s *strikes) note(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	had := s.by[who]
	if now.After(had.until) {
		had.times = 0
	}
	had.times++
	had.until = now.Add(strikeTime)
	if s.by == nil {
		s.by = map[string]struck{}
	}
	s.by[who] = had
	if len(s.by) > maxStruck {
		s.forget(now)
	}
	return had.times == cmp.Or(s.most, maxStrikes)
}

// clear forgets whoever was let in.
func (s *strikes) clear(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, who)
}

// forget drops all who need not wait any more, or else the one who has to wait least.
func (s *strikes) forget(now time.Time) {
	least := ""
	for who, one := range s.by {
		if now.After(one.until) {
			delete(s.by, who)
		} else if least == "" || one.until.Before(s.by[least].until) {
			least = who
		}
	}
	if len(s.by) > maxStruck {
		delete(s.by, least)
	}
}

// origin is who answers for an address of another host: its owner commonly has all
// IPv6 addresses that begin alike.
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
