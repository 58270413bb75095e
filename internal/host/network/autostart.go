package network

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// What a network needs may come later than the daemon when the host boots: the interface that it
// forwards to, a firewall, an address that something else still has. A start with the host that
// fails is tried again, later after each try, for as long as that of a guest is.
const (
	autostarting = time.Hour
	rarest       = 5 * time.Minute
)

// autostartOnce starts what is to start with the host, once a boot: a network
// that somebody ended by hand stays ended when the daemon is restarted.
func (s *Networks) autostartOnce(ctx context.Context, sc scope.Scope) {
	marker := filepath.Join(s.Run, "autostarted")
	done := s.ofThisBoot(marker)
	var group errgroup.Group
	group.SetLimit(adoptAtOnce)
	for _, n := range s.List() {
		if v := n.View(); v.Autostart && !v.Active() && (!done || s.ofThisBoot(n.dueFile())) {
			group.Go(func() error { s.startWithHost(ctx, sc, n); return nil })
		}
	}
	_ = group.Wait() // each failure has been logged
	if err := os.WriteFile(marker, []byte(s.boot), 0o600); err != nil {
		s.Log.Error("cannot remember that networks were started with the host", "error", err)
	}
}

// ofThisBoot says whether a file was written in this boot of the host.
func (s *Networks) ofThisBoot(path string) bool {
	seen, err := os.ReadFile(path)
	return err == nil && string(seen) == s.boot
}

// dueFile is there while a network could not be started with the host, for the next daemon.
func (n *Network) dueFile() string { return filepath.Join(n.home.Run, n.uuid+".due") }

// noteDue leaves it to the next daemon to go on with the starts. It runs with the turn.
func (n *Network) noteDue() {
	if err := os.WriteFile(n.dueFile(), []byte(n.home.boot), 0o600); err != nil {
		n.home.Log.Error("the next daemon does not know that a network is still to be started", "network", n.name, "error", err)
	}
}

// settle notes that this boot has not to start a network any more. It runs with the turn.
func (n *Network) settle() {
	n.due = false
	_ = os.Remove(n.dueFile()) // mostly there is none
}

// startWithHost starts a network that is marked for that. It returns after the first try; more go on beside.
func (s *Networks) startWithHost(ctx context.Context, sc scope.Scope, n *Network) {
	n.due = true
	tried := make(chan struct{})
	first := sync.OnceFunc(func() { close(tried) })
	s.workers.Go(func() {
		defer first()
		try := func() (struct{}, error) { defer first(); return struct{}{}, n.startDue(s.work, sc) }
		told := func(err error, pause time.Duration) {
			s.Log.Warn("cannot start a network with the host; that is tried again", "network", n.name, "error", err, "pause", pause)
		}
		pauses := &backoff.ExponentialBackOff{InitialInterval: firstWait, Multiplier: 2, MaxInterval: rarest}
		_, err := backoff.Retry(s.work, try, backoff.WithBackOff(pauses), backoff.WithNotify(told), backoff.WithMaxElapsedTime(autostarting))
		if err != nil && s.work.Err() == nil && !fault.Is(err, fault.Aborted) {
			s.Log.Error("cannot start a network with the host; that is given up", "network", n.name, "error", err)
			_ = n.change(s.work, func() error { n.settle(); return nil }) // else it has gone, or the daemon ends
		}
	})
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// startDue starts a network unless that is not to be done any more: somebody has started or
// forgotten it, or took its mark away.
func (n *Network) startDue(ctx context.Context, sc scope.Scope) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWait, fault.New(fault.Timeout, fault.Network, "not started within %v", adoptWait))
	defer cancel()
	settled := fault.New(fault.Aborted, fault.Network, "network %q is not to be started with the host any more", n.name)
	err := n.change(ctx, func() error {
		v := n.View()
		if !n.due || !v.Autostart || v.Active() {
			n.settle()
			return settled
		}
		err := n.start(ctx, sc, v.Config, v.chosenBridge)
		if err != nil {
			n.noteDue()
		}
		return err
	})
	if errors.Is(err, errGone) || errors.Is(err, settled) {
		return backoff.Permanent(settled)
	}
	return err
}
