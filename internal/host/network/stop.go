package network

import (
	"context"
	"errors"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// stopKind removes everything of a network. The bridge goes first: without rules it would let its guests out,
// and without the bridge the rest does no harm until it is removed.
var stopKind = operation.Kind[*Network]{
	Name: "network-stop", Version: 1, Class: operation.Change,
	Steps: []string{"bridge", "rules", "service", "forget"},
	Bind:  func(n *Network) operation.Work { return &stopWork{linkWork{n: n}} },
}

type stopWork struct{ linkWork }

// Steps implements operation.Work.
func (s *stopWork) Steps() []operation.Step {
	forget := operation.Step{Name: "forget", Effect: operation.Boot, Do: s.forgetRunning}
	if !s.Definition.Managed() {
		forget.Decisive = true
		return []operation.Step{forget}
	}
	return []operation.Step{
		{Name: "bridge", Effect: operation.Boot, Decisive: true, Do: s.removeBridge},
		{Name: "rules", Effect: operation.Boot, Do: s.removeRules},
		{Name: "service", Effect: operation.Boot, Do: s.endService},
		forget,
	}
}

// performStop stops a network, even if the stop cannot be recorded or the request is cancelled. What cannot be
// removed now is removed later; an error says so only for the bridge. The caller has the turn.
func (n *Network) performStop(ctx context.Context, d *Definition) error {
	op, err := n.ops.ForceBegin(scope.Daemon("taking down what an earlier daemon left of a network"), stopKind.Name, &stopWork{linkWork{Definition: d, n: n}}, operation.Record{})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // each step is bounded
	err = op.Run(ctx)
	// Operations that changed or mended the running network have nothing left to do.
	_ = n.ops.End(ctx, operation.TheProcess) // an operation that stays pending logs that itself
	if err != nil && d.Managed() && linksExist(d) {
		return fault.Wrap(err, fault.Of(err), fault.Network, "cannot stop network %q yet; this is tried again", n.name)
	}
	return nil
}

// forgetRunning removes the record that the network runs: nothing of it is left.
func (s *stopWork) forgetRunning(context.Context) error {
	if s.Definition.Managed() {
		if err := s.n.networks.status.remove(s.bridge()); err != nil {
			s.n.networks.Log.Warn("the host's name service has addresses of a network that has ended", "network", s.n.name, "error", err)
		}
	}
	err := os.Remove(s.n.runningFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Network, "cannot remove the record of the running network")
}

// removeBridge removes a network's bridge, but no other link that has its name.
func (l *linkWork) removeBridge(context.Context) error {
	if own, err := bridgeExists(l.Definition); !own {
		return err
	}
	return hostnet.Remove(l.bridge())
}

// bridgeExists says whether a network's bridge exists as it was made.
func bridgeExists(d *Definition) (bool, error) {
	l, err := hostnet.ByName(d.Bridge.Name)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil && l.Kind == "bridge" && l.MAC.String() == d.MAC, err
}
