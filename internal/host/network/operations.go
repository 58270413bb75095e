package network

import (
	"context"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A change of a network in several steps is an operation: see package operation. Each kind is defined next to
// its code; this file connects the runner to networks. The records are in the run directory, next to the files
// about running networks.

var operationKinds = operation.Kinds[*Network]{startKind, stopKind, updateKind, repairKind}

// operations configures a network's operations. The boot is not given: if the run directory outlives it, files
// must be removed, too.
func (n *Network) operations() operation.Config[*Network] {
	return operation.Config[*Network]{
		Owner: n, Name: n.uuid, Kinds: operationKinds, Files: operation.FileJournal{Dir: n.networks.Run},
		Log: n.networks.Log.With("network", n.name), Turn: n.withTurn, Life: n.networks.work,
	}
}

// Operations lists the open operations.
func (s *Networks) Operations() (all []operation.OwnedStatus) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range slices.Concat(slices.Collect(maps.Values(s.byUUID)), slices.Collect(maps.Values(s.leftovers))) {
		all = append(all, n.ops.List(n.name, n.uuid)...)
	}
	return all
}

// perform runs an operation. The caller has the turn.
func (n *Network) perform(ctx context.Context, sc scope.Scope, kind string, w operation.Work) error {
	op, err := n.ops.Begin(sc, kind, w, operation.Record{})
	if err != nil {
		return err
	}
	return op.Run(ctx)
}

// resumeOperations completes or undoes interrupted operations of an earlier daemon. If one is of an unknown kind, no new
// operation is begun. The caller has the turn.
func (n *Network) resumeOperations(ctx context.Context, records []operation.Record) error {
	config := n.operations()
	ops, err := operation.Open(config, records)
	if err != nil {
		config.OwnerOutdated = func() error { return err }
		n.ops = operation.New(config)
		return err
	}
	n.ops = ops
	if err := n.ops.End(ctx, operation.Nothing); err != nil {
		n.networks.Log.Error("what an earlier daemon was cut off in is not done or taken back yet; that is tried again", "network", n.name, "error", err)
	}
	return nil
}

// linkWork is the payload of operations on a network's links, rules and processes.
type linkWork struct {
	Definition *Definition

	n      *Network
	chosen bool // Lodge chose the bridge's name; set only in the daemon that began it
}

// Ended implements operation.Ender.
func (l *linkWork) Ended() {
	l.n.networks.mu.Lock()
	defer l.n.networks.mu.Unlock()
	delete(l.n.networks.leftovers, l.n.uuid)
}

// addLeftoverBridges adds the bridges that may have remains, so that no other network gets their names.
func (n *Network) addLeftoverBridges(used map[string]bool) {
	for _, op := range n.ops.Operations() {
		if w, is := op.Work().(interface{ bridge() string }); is {
			used[w.bridge()] = true
		}
	}
}

func (l *linkWork) bridge() string { return l.Definition.Bridge.Name }

func (l *linkWork) removeRules(context.Context) error {
	return l.n.networks.firewall.Remove(l.bridge())
}

func (l *linkWork) endService(ctx context.Context) error { return l.n.stopService(ctx) }
