package network

import (
	"context"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// What changes a network in several steps is an operation: see package operation.
// Each kind stands with what it does; this file joins the runner to networks. All
// records lie in the run directory, beside the files that say what runs.

var kinds = operation.Kinds[*Network]{startKind, stopKind, updateKind, mendKind}

// operations say how those of a network are run. The boot is not said: where the run
// directory outlives it, files are to be removed, too.
func (n *Network) operations() operation.Config[*Network] {
	return operation.Config[*Network]{
		Owner: n, Name: n.uuid, Kinds: kinds, Files: operation.Files{Dir: n.home.Run},
		Log: n.home.Log.With("network", n.name), Turn: n.inTurn, Life: n.home.work,
	}
}

// Operations are those that are open.
func (s *Networks) Operations() (all []operation.Listed) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range slices.Concat(slices.Collect(maps.Values(s.byUUID)), slices.Collect(maps.Values(s.left))) {
		all = append(all, n.ops.List(n.name, n.uuid)...)
	}
	return all
}

// perform does an operation. It runs with the turn.
func (n *Network) perform(ctx context.Context, sc scope.Scope, kind string, w operation.Work) error {
	op, err := n.ops.Begin(sc, kind, w, operation.Record{})
	if err != nil {
		return err
	}
	return op.Run(ctx)
}

// reopen takes over the operations that an earlier daemon was cut off in, and does or undoes
// what is left of them. Where this daemon does not know one, nothing is begun. It runs with the turn.
func (n *Network) reopen(ctx context.Context, records []operation.Record) error {
	config := n.operations()
	ops, err := operation.Open(config, records)
	if err != nil {
		config.Behind = func() error { return err }
		n.ops = operation.New(config)
		return err
	}
	n.ops = ops
	if err := n.ops.End(ctx, operation.Nothing); err != nil {
		n.home.Log.Error("what an earlier daemon was cut off in is not done or taken back yet; that is tried again", "network", n.name, "error", err)
	}
	return nil
}

// links is the payload of what makes or removes a network's links, rules and processes.
type links struct {
	Definition *Definition

	n      *Network
	chosen bool // the name of its bridge; of the daemon that began it
}

// Ended implements operation.Ender.
func (l *links) Ended() {
	l.n.home.mu.Lock()
	defer l.n.home.mu.Unlock()
	delete(l.n.home.left, l.n.uuid)
}

// addLeft adds the bridges of which something may be left: no other network gets their names.
func (n *Network) addLeft(used map[string]bool) {
	for _, op := range n.ops.Operations() {
		if w, is := op.Work().(interface{ bridge() string }); is {
			used[w.bridge()] = true
		}
	}
}

func (l *links) bridge() string { return l.Definition.Bridge.Name }

func (l *links) removeRules(context.Context) error { return l.n.home.firewall.Remove(l.bridge()) }

func (l *links) endService(ctx context.Context) error { return l.n.stopService(ctx) }
