package network

import (
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

const (
	firstPause   = time.Second     // between two looks at the firewall
	longestPause = 5 * time.Minute // where another program keeps removing the rules
)

// watchRules restores the networks' firewall rules when another program removes them, such as a firewall service
// that loads its own rules. It ends with the daemon.
func (s *Networks) watchRules(w *hostnet.FirewallWatch) {
	defer w.Close()
	for r := (growingPause{}); ; {
		by, err := w.Next(s.work)
		if s.work.Err() != nil {
			return
		}
		if err != nil {
			s.Log.Warn("losses of firewall rules may go unnoticed for a while", "error", err)
		}
		for done := false; !done; {
			done = s.restoreRules(by)
			if !s.sleep(r.next(time.Now())) {
				return
			}
		}
	}
}

// restoreRules adds missing rules. It returns whether all rules are there.
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

// watchForwarding turns IP forwarding on again for running networks when another program turns it off, such as
// one that reloads sysctl settings. It ends with the daemon.
func (s *Networks) watchForwarding(w *hostnet.ForwardingWatch) {
	defer w.Close()
	for r := (growingPause{}); ; {
		err := w.Next(s.work)
		if s.work.Err() != nil {
			return
		}
		if err != nil {
			s.Log.Warn("it may go unnoticed for a while when the host's forwarding is turned off", "error", err)
		}
		for done := false; !done; {
			done = s.restoreForwarding()
			if !s.sleep(r.next(time.Now())) {
				return
			}
		}
	}
}

// restoreForwarding turns on what running networks need. It returns whether all is on.
func (s *Networks) restoreForwarding() bool {
	four, six, need := false, false, []string{}
	for _, n := range s.List() {
		v := n.View()
		if v == nil || !v.Active() {
			continue
		}
		if a, b := v.Live.forwardedFamilies(); a || b {
			four, six, need = four || a, six || b, append(need, n.name)
		}
	}
	off, err := hostnet.Forward(four, six)
	first := strings.Join(need[:min(len(need), 8)], " ")
	switch {
	case err != nil:
		s.Log.Error("IP forwarding was turned off and cannot be turned on; guests cannot reach other networks", "settings", off, "networks", first, "error", err)
	case len(off) > 0:
		s.Log.Warn("IP forwarding was turned off; it is on again because running networks need it. To keep it off, stop those networks",
			"settings", off, "networks", len(need), "first", first)
	}
	return err == nil
}

// growingPause is the pause after each look at the firewall. It grows if the next look is due at once, so that
// a program that keeps removing the rules and this daemon do not keep each other busy.
type growingPause struct {
	last  time.Duration
	until time.Time
}

func (r *growingPause) next(look time.Time) time.Duration {
	if look.Sub(r.until) > r.last {
		r.last = 0
	}
	r.last = min(max(2*r.last, firstPause), longestPause)
	r.until = look.Add(r.last)
	return r.last
}
