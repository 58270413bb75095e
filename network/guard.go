package network

import (
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/link"
)

const (
	firstRest   = time.Second     // between two looks at the firewall
	longestRest = 5 * time.Minute // where another program takes the rules away again and again
)

// guard puts the networks' firewall rules back when another program, such as a
// firewall's service that loads its own, has taken them away. It ends with the daemon.
func (s *Networks) guard(w *link.FirewallWatch) {
	defer w.Close()
	for r := (rests{}); ; {
		by, err := w.Next(s.work)
		if s.work.Err() != nil {
			return
		}
		if err != nil {
			s.Log.Warn("losses of firewall rules may go unnoticed for a while", "error", err)
		}
		for done := false; !done; {
			done = s.restoreRules(by)
			if !s.pause(r.after(time.Now())) {
				return
			}
		}
	}
}

// restoreRules puts back what is lacking. It reports whether all is there.
func (s *Networks) restoreRules(by string) bool {
	lacking, err := s.firewall.Restore()
	switch {
	case err != nil:
		s.Log.Error("another program has taken firewall rules of networks away, and they cannot be put back yet", "program", by, "error", err)
	case len(lacking) > 0:
		s.Log.Warn("another program has taken firewall rules of networks away; they are put back",
			"program", by, "networks", len(lacking), "bridges", strings.Join(lacking[:min(len(lacking), 8)], " "))
	}
	return err == nil
}

// rests say how long to leave the firewall alone after each look: longer each time where the
// next is due at once, so that a program that always takes the rules away and this daemon do
// not keep each other busy.
type rests struct {
	last  time.Duration
	until time.Time
}

func (r *rests) after(look time.Time) time.Duration {
	if look.Sub(r.until) > r.last {
		r.last = 0
	}
	r.last = min(max(2*r.last, firstRest), longestRest)
	r.until = look.Add(r.last)
	return r.last
}
