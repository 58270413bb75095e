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

// When the host boots, an interface, a firewall or an address that a network needs may become available later
// than the daemon. A failed start is retried after growing pauses, for as long as the autostart of a guest is.
const (
	autostartLimit = time.Hour
	maxRetryPause  = 5 * time.Minute
)

// autostartOnce starts the networks with autostart, once a boot: a network that a user destroyed stays
// inactive when the daemon restarts.
func (s *Networks) autostartOnce(ctx context.Context, sc scope.Scope) {
	marker := filepath.Join(s.Run, "autostarted")
	done := s.isOfThisBoot(marker)
	var group errgroup.Group
	group.SetLimit(adoptAtOnce)
	for _, n := range s.List() {
		if v := n.View(); v.Autostart && !v.Active() && (!done || s.isOfThisBoot(n.autostartDueFile())) {
			group.Go(func() error { s.autostart(ctx, sc, n); return nil })
		}
	}
	_ = group.Wait() // each failure has been logged
	if err := os.WriteFile(marker, []byte(s.boot), 0o600); err != nil {
		s.Log.Error("cannot remember that networks were started with the host", "error", err)
	}
}

// isOfThisBoot says whether a file was written in this boot of the host.
func (s *Networks) isOfThisBoot(path string) bool {
	seen, err := os.ReadFile(path)
	return err == nil && string(seen) == s.boot
}

// autostartDueFile exists while an autostart is pending, for the next daemon.
func (n *Network) autostartDueFile() string { return filepath.Join(n.networks.Run, n.uuid+".due") }

// recordAutostartDue records for the next daemon that the start is pending. The caller has the turn.
func (n *Network) recordAutostartDue() {
	if err := os.WriteFile(n.autostartDueFile(), []byte(n.networks.boot), 0o600); err != nil {
		n.networks.Log.Error("the next daemon does not know that a network is still to be started", "network", n.name, "error", err)
	}
}

// clearAutostartDue records that the start is no longer pending. The caller has the turn.
func (n *Network) clearAutostartDue() {
	n.autostartDue = false
	_ = os.Remove(n.autostartDueFile()) // it usually does not exist
}

// autostart starts a network with autostart. It returns after the first try; retries run in the
// background.
func (s *Networks) autostart(ctx context.Context, sc scope.Scope, n *Network) {
	n.autostartDue = true
	tried := make(chan struct{})
	first := sync.OnceFunc(func() { close(tried) })
	s.workers.Go(func() {
		defer first()
		try := func() (struct{}, error) { defer first(); return struct{}{}, n.tryAutostart(s.work, sc) }
		told := func(err error, pause time.Duration) {
			s.Log.Warn("cannot start a network with the host; that is tried again", "network", n.name, "error", err, "pause", pause)
		}
		pauses := &backoff.ExponentialBackOff{InitialInterval: firstWait, Multiplier: 2, MaxInterval: maxRetryPause}
		_, err := backoff.Retry(s.work, try, backoff.WithBackOff(pauses), backoff.WithNotify(told), backoff.WithMaxElapsedTime(autostartLimit))
		if err != nil && s.work.Err() == nil && !fault.Is(err, fault.Aborted) {
			s.Log.Error("cannot start a network with the host; that is given up", "network", n.name, "error", err)
			_ = n.change(s.work, func() error { n.clearAutostartDue(); return nil }) // otherwise it was removed, or the daemon ends
		}
	})
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// tryAutostart starts a network unless it was started or undefined, or lost its autostart mark meanwhile.
func (n *Network) tryAutostart(ctx context.Context, sc scope.Scope) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWait, fault.New(fault.Timeout, fault.Network, "not started within %v", adoptWait))
	defer cancel()
	settled := fault.New(fault.Aborted, fault.Network, "network %q no longer has autostart", n.name)
	err := n.change(ctx, func() error {
		v := n.View()
		if !n.autostartDue || !v.Autostart || v.Active() {
			n.clearAutostartDue()
			return settled
		}
		err := n.start(ctx, sc, v.Config, v.chosenBridge)
		if err != nil {
			n.recordAutostartDue()
		}
		return err
	})
	if errors.Is(err, errGone) || errors.Is(err, settled) {
		return backoff.Permanent(settled)
	}
	return err
}
