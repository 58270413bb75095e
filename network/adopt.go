package network

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/link"
)

const (
	adoptAtOnce = 8                // networks adopted side by side
	adoptWait   = 20 * time.Second // for one of them
)

// adoptAll takes over what an earlier daemon left running, each network within
// its own time: none holds up the others.
func (s *Networks) adoptAll(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(s.Run, "*"+runningSuffix))
	if err != nil {
		return fault.Wrap(err, fault.Internal, fault.Network, "cannot look for running networks")
	}
	var group errgroup.Group
	group.SetLimit(adoptAtOnce)
	for _, path := range found {
		group.Go(func() error {
			if err := s.adoptFile(ctx, path); err != nil {
				s.Log.Error("cannot adopt a network", "uuid", strings.TrimSuffix(filepath.Base(path), runningSuffix), "error", err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (s *Networks) adoptFile(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWait,
		fault.New(fault.Timeout, fault.Network, "not adopted within %v", adoptWait))
	defer cancel()
	body, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r running
	if err := json.Unmarshal(body, &r); err != nil {
		return err
	}
	d, err := Parse(r.Definition, false)
	if err != nil {
		return err
	}
	n, err := s.claim(&d)
	if err != nil {
		return err
	}
	return n.change(ctx, func() error {
		defer func() {
			if n.View() == nil {
				n.vanish()
			}
		}()
		return n.adopt(ctx, &d, r)
	})
}

// adopt runs with the turn.
func (n *Network) adopt(ctx context.Context, d *Definition, r running) error {
	if !r.Ready || r.Boot != n.home.boot || !stillThere(d) {
		if r.Boot == n.home.boot {
			n.home.Log.Warn("a network was found half made or half gone and is ended", "network", n.name)
		}
		if d.Managed() {
			if err := n.home.status.remove(d.Bridge.Name); err != nil {
				n.home.Log.Warn("the host's name service has addresses of a network that has ended", "network", n.name, "error", err)
			}
		}
		return n.down(ctx, d)
	}
	// Guests are on its bridge: a network that lacks something is adopted too.
	if err := errors.Join(forward(d), n.resume(ctx, d, r)); err != nil {
		n.home.Log.Error("a running network is adopted without all that belongs to it; that is tried again", "network", n.name, "error", err)
		n.mendLater()
	}
	v := View{}
	if now := n.View(); now != nil {
		v = *now
	}
	if err := n.keepPending(&v, r.Keep); err != nil {
		n.home.Log.Error("cannot store a change of a network that its daemon did not live to store; that is tried again", "network", n.name, "error", err)
		n.mendLater()
	}
	v.Live = d
	v.chosenBridge = v.chosenBridge || r.ChosenBridge
	n.publish(v)
	err := n.remark(v)
	n.astray = n.astray || n.keep != nil
	return err
}

// keepPending stores what the last daemon was about to store. What cannot be yet stays in the running file.
func (n *Network) keepPending(v *View, r *record) error {
	if r == nil {
		return nil
	}
	d, err := Parse(r.Definition, false)
	if err != nil {
		return err
	}
	v.Config, v.submitted, v.Autostart, v.chosenBridge = &d, r.Submitted, r.Autostart, r.ChosenBridge
	n.keep = r
	return n.storeKeep()
}

func (n *Network) storeKeep() error {
	if n.keep == nil {
		return nil
	}
	err := n.home.Store.Put(kind, n.uuid, n.keep)
	if err == nil {
		n.keep = nil
	}
	return err
}

// mendLater has what a running network lacks be made when it can be. It runs with the turn.
func (n *Network) mendLater() {
	if !n.lacking {
		n.lacking = true
		n.home.workers.Go(n.resumeLate)
	}
}

// resumeLate makes what a running network lacks, until all is there, or the network was ended.
func (n *Network) resumeLate() {
	err := n.home.untilDone(func() error { return n.change(n.home.work, n.resumeRest) }, longestWait)
	if err != nil && n.home.work.Err() == nil {
		n.home.Log.Debug("a network went before it had all that belongs to it", "network", n.name, "error", err)
	}
}

// resumeRest tries that once. It runs with the turn.
func (n *Network) resumeRest() error {
	v := n.View()
	if !n.lacking || v == nil || v.Live == nil {
		n.lacking = false
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(n.home.work, adoptWait, fault.New(fault.Timeout, fault.Network, "not there within %v", adoptWait))
	defer cancel()
	if err := errors.Join(forward(v.Live), n.resume(ctx, v.Live, running{}), n.storeKeep()); err != nil {
		return err
	}
	if err := n.mark(v.Live, true, v.chosenBridge); err != nil {
		return err
	}
	n.lacking = false
	n.home.Log.Info("a running network has all that belongs to it again", "network", n.name)
	return nil
}

// resume makes sure that everything a network consists of is there.
func (n *Network) resume(ctx context.Context, d *Definition, r running) error {
	var refused error
	if rules, some := d.rules(); some {
		refused = n.home.firewall.Apply(rules)
	}
	if n.service != nil { // another try needs not see to it
		return refused
	}
	return errors.Join(refused, n.resumeService(ctx, d, r))
}

// resumeService makes sure that a network's dnsmasq serves it.
func (n *Network) resumeService(ctx context.Context, d *Definition, r running) error {
	content, needed := d.service()
	service, err := link.AdoptDnsmasq(n.files(), r.Service)
	if err != nil {
		service, err = link.AdoptDnsmasq(n.files(), nil) // one that was started just before a kill
	}
	if err != nil {
		if r.Service != nil {
			n.home.Log.Warn("the dnsmasq of a network has ended; a new one is started", "network", n.name, "reason", err)
		}
		return n.serve(ctx, d)
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
	return n.serve(ctx, d)
}

// stillThere reports whether the links of a network exist as they were made.
func stillThere(d *Definition) bool {
	if !d.Managed() {
		return admitLinks(d) == nil
	}
	l, err := link.ByName(d.Bridge.Name)
	return err == nil && l.Kind == "bridge" && l.MAC.String() == d.MAC
}
