package network

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const (
	adoptAtOnce = 8                // networks adopted side by side
	adoptWait   = 20 * time.Second // for one of them
)

// adoptAll adopts what an earlier daemon left running or unfinished. Each network has its own time limit, so
// none delays the others.
func (s *Networks) adoptAll(ctx context.Context) {
	records, err := operation.FileJournal{Dir: s.Run}.Read()
	if err != nil {
		s.Log.Error("cannot read what an earlier daemon was cut off in", "error", err)
	}
	all := map[string][]operation.Record{}
	for _, r := range records {
		all[r.Owner] = append(all[r.Owner], r)
	}
	found, _ := filepath.Glob(filepath.Join(s.Run, "*"+runningSuffix)) // Glob fails only for a malformed pattern
	for _, path := range found {
		id := strings.TrimSuffix(filepath.Base(path), runningSuffix)
		all[id] = append(all[id], nil...) // a running network has an entry even without records
	}
	var group errgroup.Group
	group.SetLimit(adoptAtOnce)
	for id, records := range all {
		group.Go(func() error {
			if err := s.adoptOne(ctx, id, records); err != nil {
				s.Log.Error("cannot adopt a network", "uuid", id, "error", err)
			}
			return nil
		})
	}
	_ = group.Wait() // each failure has been logged
}

// adoptOne first settles interrupted operations, because they change what there is to adopt.
func (s *Networks) adoptOne(ctx context.Context, id string, records []operation.Record) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWait,
		fault.New(fault.Timeout, fault.Network, "not adopted within %v", adoptWait))
	defer cancel()
	n, err := s.networkOf(id)
	if err != nil {
		return err
	}
	return n.change(ctx, func() error {
		if err := n.resumeOperations(ctx, records); err != nil {
			return err
		}
		r, err := n.readRunning()
		if r == nil || n.ops.Has(startKind.Name) || n.ops.Has(stopKind.Name) {
			return err
		}
		return n.adopt(ctx, r)
	})
}

// networkOf returns the network that files or records belong to. If it is neither defined nor recorded as running,
// only its remains are removed.
func (s *Networks) networkOf(id string) (*Network, error) {
	if n, err := s.ByUUID(id); err == nil {
		return n, nil
	}
	n := s.newNetwork(id, id)
	r, err := n.readRunning()
	if r == nil {
		return n, err
	}
	return s.register(r.Definition)
}

// adopt adopts a network. The caller has its turn.
func (n *Network) adopt(ctx context.Context, r *running) error {
	d := r.Definition
	if r.Boot != n.networks.boot || !linksExist(d) {
		if r.Boot == n.networks.boot {
			n.networks.Log.Warn("a network was found half gone and is ended", "network", n.name)
		}
		return n.performStop(ctx, d)
	}
	// Guests are on its bridge, so a network that lacks something is adopted too.
	err := errors.Join(enableForwarding(d), n.ensureComplete(ctx, d, r.Service))
	v := View{}
	if now := n.View(); now != nil {
		v = *now
	}
	v.Live = d
	v.chosenBridge = v.chosenBridge || r.ChosenBridge
	n.publish(v)
	if err = errors.Join(err, n.recordRunning(d, v.chosenBridge)); err == nil {
		return nil
	}
	n.networks.Log.Error("a running network is adopted without all that belongs to it; that is tried again", "network", n.name, "error", err)
	op, err := n.ops.ForceBegin(scope.Daemon("mending a network"), repairKind.Name, &repairWork{n}, operation.Record{})
	if err == nil {
		_ = op.Run(ctx) // what cannot be made yet is tried again
	}
	return err
}

// repairKind makes what a running network lacks, as soon as possible.
var repairKind = operation.Kind[*Network]{
	Name: "network-mend", Version: 1, Class: operation.Change,
	Steps: []string{"resume"},
	Bind:  func(n *Network) operation.Work { return &repairWork{n} },
}

type repairWork struct{ n *Network }

// Steps implements operation.Work.
func (m *repairWork) Steps() []operation.Step {
	return []operation.Step{{Name: "resume", Effect: operation.Process, Decisive: true, Do: m.completeNetwork}}
}

func (m *repairWork) completeNetwork(ctx context.Context) error {
	n := m.n
	v := n.View()
	if v == nil || v.Live == nil {
		return nil // adoption finds the missing parts
	}
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWait, fault.New(fault.Timeout, fault.Network, "not there within %v", adoptWait))
	defer cancel()
	if err := errors.Join(enableForwarding(v.Live), n.ensureComplete(ctx, v.Live, nil)); err != nil {
		return err
	}
	if err := n.recordRunning(v.Live, v.chosenBridge); err != nil {
		return err
	}
	n.networks.Log.Info("a running network has all that belongs to it again", "network", n.name)
	return nil
}

// ensureComplete ensures that everything that a network consists of exists. was is the process that served it; nil:
// any dnsmasq with its files.
func (n *Network) ensureComplete(ctx context.Context, d *Definition, was *hostnet.Process) error {
	refused := n.applyRules(d)
	if n.service != nil { // an earlier try has done this
		return refused
	}
	return errors.Join(refused, n.ensureService(ctx, d, was))
}

// ensureService ensures that the network's dnsmasq runs.
func (n *Network) ensureService(ctx context.Context, d *Definition, was *hostnet.Process) error {
	content, needed := d.dnsmasqContent()
	service, err := hostnet.AdoptDnsmasq(n.dnsmasqFiles(), was)
	if err != nil {
		service, err = hostnet.AdoptDnsmasq(n.dnsmasqFiles(), nil) // one that was started just before a kill
	}
	if err != nil {
		if was != nil {
			n.networks.Log.Warn("the dnsmasq of a network has ended; a new one is started", "network", n.name, "reason", err)
		}
		return n.startService(ctx, d)
	}
	switch configured, hosts := service.Has(content); {
	case needed && configured && hosts:
		n.watch(service)
		return nil
	case needed && configured:
		n.watch(service)
		return service.Reload(content)
	}
	if err := service.Stop(ctx); err != nil {
		return err
	}
	return n.startService(ctx, d)
}

// linksExist reports whether the links of a network exist as they were made.
func linksExist(d *Definition) bool {
	if !d.Managed() {
		return checkLinks(d) == nil
	}
	own, _ := bridgeExists(d) // without an answer it counts as missing
	return own
}
