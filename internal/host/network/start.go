package network

import (
	"context"
	"net"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// startKind makes everything that a network consists of, or nothing.
var startKind = operation.Kind[*Network]{
	Name: "network-start", Version: 1, Class: operation.Change,
	Steps: []string{"bridge", "addresses", "rules", "service", "run"}, Undo: []string{"bridge", "rules", "service"},
	Bind: func(n *Network) operation.Work { return &startWork{linkWork{n: n}} },
}

type startWork struct{ linkWork }

// Steps implements operation.Work.
func (s *startWork) Steps() []operation.Step {
	run := operation.Step{Name: "run", Effect: operation.Boot, Decisive: true, Do: s.recordRunning, Probe: s.probeRunning}
	if !s.Definition.Managed() {
		return []operation.Step{run}
	}
	return []operation.Step{
		{Name: "bridge", Effect: operation.Boot, Do: s.makeBridge, Undo: s.removeBridge},
		{Name: "addresses", Effect: operation.Boot, Do: s.addAddresses},
		{Name: "rules", Effect: operation.Boot, Do: s.makeRules, Undo: s.removeRules},
		{Name: "service", Effect: operation.Boot, Do: s.startService, Undo: s.endService},
		run,
	}
}

// performStart makes everything that a network consists of, or nothing. The caller has the turn.
func (n *Network) performStart(ctx context.Context, sc scope.Scope, d *Definition, chosen bool) error {
	if err := n.checkStart(d); err != nil {
		return err
	}
	return n.perform(ctx, sc, startKind.Name, &startWork{linkWork{Definition: d, n: n, chosen: chosen}})
}

// checkStart refuses early what cannot work on this host.
func (n *Network) checkStart(d *Definition) error {
	if !d.Managed() {
		return checkLinks(d)
	}
	switch l, err := hostnet.ByName(d.Bridge.Name); {
	case err == nil && l.Kind == "bridge" && l.MAC.String() == d.MAC:
		return fault.New(fault.Exists, fault.Network,
			"the bridge %q of an earlier run still exists without a record; end the dnsmasq on it, remove it (ip link delete %s), and start the network again", d.Bridge.Name, fault.Word(d.Bridge.Name))
	case !fault.Is(err, fault.NotFound):
		return fault.New(fault.Exists, fault.Network, "the bridge name %q is taken by another interface of the host", d.Bridge.Name)
	}
	if err := n.networks.claimAddresses(n, d); err != nil { // before reading the routes, which include networks that have claimed and started
		return err
	}
	routes, err := hostnet.Routes()
	if err != nil {
		return err
	}
	bridges := n.otherBridges() // a network may not take even a part of these routes
	for _, ip := range d.IPs {
		device := overlappingLink(ip.Prefix(), routes, func(device string) bool { return bridges[device] })
		if r := conflictingRoute(ip.Prefix(), routes); r != nil {
			device = r.Device
		}
		if device != "" {
			return addressesInUse(ip, device)
		}
	}
	return nil
}

func addressesInUse(ip IP, device string) error {
	return fault.New(fault.Busy, fault.Network, "the addresses %s are already in use on the host's interface %q; choose others", ip.Prefix().Masked(), device)
}

// checkLinks checks that the links of an unmanaged network exist.
func checkLinks(d *Definition) error {
	if d.direct() {
		for _, name := range d.Forward.Interfaces {
			if _, err := hostnet.ByName(name); err != nil {
				return err
			}
		}
		return nil
	}
	return checkIsBridge(d.Bridge.Name)
}

func checkIsBridge(name string) error {
	l, err := hostnet.ByName(name)
	if err == nil && l.Kind != "bridge" {
		return fault.New(fault.Invalid, fault.Config, "the host's interface %q is no bridge", name)
	}
	return err
}

func (s *startWork) makeBridge(context.Context) error {
	d := s.Definition
	mac, err := net.ParseMAC(d.MAC)
	if err != nil {
		return fault.Wrap(err, fault.Internal, fault.Network, "the bridge has no address")
	}
	return hostnet.CreateBridge(hostnet.Bridge{
		Name: d.Bridge.Name, MAC: mac, MTU: d.MTU, STP: d.Bridge.STP, Delay: time.Duration(d.Bridge.Delay) * time.Second,
	})
}

func (s *startWork) addAddresses(context.Context) error {
	if err := assignAddresses(s.Definition); err != nil {
		return err
	}
	if err := hostnet.SetUp(s.bridge()); err != nil {
		return err
	}
	for _, r := range s.Definition.Routes {
		if err := hostnet.AddRoute(s.bridge(), r.Destination, r.Gateway, r.Metric); err != nil {
			return err
		}
	}
	return enableForwarding(s.Definition)
}

func (s *startWork) makeRules(context.Context) error { return s.n.applyRules(s.Definition) }

func (s *startWork) startService(ctx context.Context) error {
	return s.n.startService(ctx, s.Definition)
}

// recordRunning records that the network runs. Its guests are on the bridge before the next daemon could take the
// network for complete.
func (s *startWork) recordRunning(context.Context) error {
	s.n.reconnectGuests(s.Definition)
	return s.n.recordRunning(s.Definition, s.chosen)
}

func (s *startWork) probeRunning(context.Context, operation.Gone) (operation.Verdict, error) {
	r, err := s.n.readRunning()
	if r == nil {
		return operation.Never, err
	}
	return operation.Happened, nil
}

func assignAddresses(d *Definition) error {
	six := d.IPv6.Or(false)
	for _, ip := range d.IPs {
		six = six || ip.Address.Is6()
	}
	if err := hostnet.QuietIPv6(d.Bridge.Name, six); err != nil {
		return err
	}
	for _, ip := range d.IPs {
		if err := hostnet.AddAddress(d.Bridge.Name, ip.Prefix()); err != nil {
			return err
		}
	}
	return nil
}
