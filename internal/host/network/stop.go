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

// stopKind ends whatever there is of a network. The bridge goes first: without rules it
// would let its guests out, and without it the rest does nobody harm while that is owed.
var stopKind = operation.Kind[*Network]{
	Name: "network-stop", Version: 1, Class: operation.Change,
	Steps: []string{"bridge", "rules", "service", "forget"},
	Bind:  func(n *Network) operation.Work { return &stop{links{n: n}} },
}

type stop struct{ links }

// Steps implements operation.Work.
func (s *stop) Steps() []operation.Step {
	forget := operation.Step{Name: "forget", Effect: operation.Boot, Do: s.forget}
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

// down ends what runs, also where there is no room to write that down or its request is given
// up. What cannot be removed now is owed; while that is the bridge, an error says so. It runs
// with the turn.
func (n *Network) down(ctx context.Context, d *Definition) error {
	op, err := n.ops.Follow(scope.Daemon("taking down what an earlier daemon left of a network"), stopKind.Name, &stop{links{Definition: d, n: n}}, operation.Record{})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // each step is bounded
	err = op.Run(ctx)
	// What changed the run, or mended it, has nothing left to do.
	_ = n.ops.End(ctx, operation.TheProcess) // what is owed says so itself
	if err != nil && d.Managed() && stillThere(d) {
		return fault.Wrap(err, fault.Of(err), fault.Network, "cannot end network %q yet, which is tried again", n.name)
	}
	return nil
}

// forget removes what says that the network runs: there is nothing of it any more.
func (s *stop) forget(context.Context) error {
	if s.Definition.Managed() {
		if err := s.n.home.status.remove(s.bridge()); err != nil {
			s.n.home.Log.Warn("the host's name service has addresses of a network that has ended", "network", s.n.name, "error", err)
		}
	}
	err := os.Remove(s.n.runningFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Network, "cannot forget what ran")
}

// removeBridge removes a network's bridge and no other that has taken its name.
func (l *links) removeBridge(context.Context) error {
	if own, err := ownBridge(l.Definition); !own {
		return err
	}
	return hostnet.Remove(l.bridge())
}

// ownBridge reports whether the bridge of a network is there, as it was made.
func ownBridge(d *Definition) (bool, error) {
	l, err := hostnet.ByName(d.Bridge.Name)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil && l.Kind == "bridge" && l.MAC.String() == d.MAC, err
}
