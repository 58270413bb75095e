package network

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/link"
)

// running is the file by which the next daemon knows what runs. It is written
// before the first link is made and removed after the last one has gone, so
// that whatever moment a daemon dies at, the next one finishes or undoes.
type running struct {
	Boot         string        `json:"boot"`
	Ready        bool          `json:"ready"` // false while starting and ending
	Definition   string        `json:"definition"`
	ChosenBridge bool          `json:"chosenBridge"`
	Service      *link.Process `json:"service,omitempty"`
	// Keep is what is to be stored along with a change to what runs: whoever finds
	// it stores it, so that a change comes into both or into none.
	Keep *record `json:"keep,omitempty"`
}

const runningSuffix = ".running.json"

func (n *Network) runningFile() string { return filepath.Join(n.home.Run, n.uuid+runningSuffix) }

func (n *Network) files() link.DnsmasqFiles { return link.DnsmasqIn(n.home.Data, n.home.Run, n.uuid) }

func (n *Network) removeLeases() { _ = os.Remove(n.files().Leases) }

// mark writes the running file.
func (n *Network) mark(d *Definition, ready, chosen bool) error {
	doc, err := d.kept()
	if err != nil {
		return err
	}
	r := running{Boot: n.home.boot, Ready: ready, Definition: doc, ChosenBridge: chosen, Keep: n.keep}
	if n.service != nil {
		p := n.service.Process()
		r.Service = &p
	}
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := n.runningFile()
	if err = os.WriteFile(path+".new", body, 0o600); err == nil {
		failpoint.Reach("network.mark")
		err = os.Rename(path+".new", path)
		failpoint.Reach("network.marked")
	}
	if err == nil {
		n.astray = false
	}
	return fault.Wrap(err, fault.Failed, fault.Network, "cannot record what runs")
}

// up makes what a network consists of, or nothing. It runs with the turn.
func (n *Network) up(ctx context.Context, d *Definition, chosen bool) error {
	if err := n.admit(d); err != nil {
		return err
	}
	err := n.mark(d, false, chosen)
	if err == nil && d.Managed() {
		if err = createBridge(d); fault.Is(err, fault.Exists) {
			return errors.Join(err, n.unmark()) // what has that name is another's, and so are the rules for it
		}
		if err == nil {
			err = n.build(ctx, d)
		}
	}
	if err == nil {
		n.plugAgain(d) // before the next daemon would take it for whole
		err = n.mark(d, true, chosen)
	}
	if err == nil {
		return nil
	}
	undo, cancel := toItsEnd(ctx)
	defer cancel()
	return errors.Join(err, n.down(undo, d))
}

// toItsEnd is for what is not left half done when its request is given up.
func toItsEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), closeGrace,
		fault.New(fault.Timeout, fault.Network, "not done within %v", closeGrace))
}

// admit refuses early what the host has no room for.
func (n *Network) admit(d *Definition) error {
	if !d.Managed() {
		return admitLinks(d)
	}
	switch l, err := link.ByName(d.Bridge.Name); {
	case err == nil && l.Kind == "bridge" && l.MAC.String() == d.MAC:
		return fault.New(fault.Exists, fault.Network,
			"the bridge %q of an earlier run of it is there, of which no record is left; end the dnsmasq that serves there, remove it (ip link delete %s), and start it again", d.Bridge.Name, fault.Word(d.Bridge.Name))
	case !fault.Is(err, fault.NotFound):
		return fault.New(fault.Exists, fault.Network, "the bridge name %q is taken by another interface of the host", d.Bridge.Name)
	}
	if err := n.home.claimAddresses(n, d); err != nil { // before the routes, which have those of whom has done so before
		return err
	}
	routes, err := link.Routes()
	if err != nil {
		return err
	}
	bridges := n.othersBridges() // from which not even a part may be taken
	for _, ip := range d.IPs {
		device := overlap(ip.Prefix(), routes, func(device string) bool { return bridges[device] })
		if r := clash(ip.Prefix(), routes); r != nil {
			device = r.Device
		}
		if device != "" {
			return inUse(ip, device)
		}
	}
	return nil
}

func inUse(ip IP, device string) error {
	return fault.New(fault.Busy, fault.Network, "the addresses %s are already in use on the host's interface %q; choose others", ip.Prefix().Masked(), device)
}

// admitLinks checks that the host has what an unmanaged network refers to.
func admitLinks(d *Definition) error {
	if d.direct() {
		for _, name := range d.Forward.Interfaces {
			if _, err := link.ByName(name); err != nil {
				return err
			}
		}
		return nil
	}
	return checkIsBridge(d.Bridge.Name)
}

func checkIsBridge(name string) error {
	l, err := link.ByName(name)
	if err == nil && l.Kind != "bridge" {
		return fault.New(fault.Invalid, fault.Config, "the host's interface %q is no bridge", name)
	}
	return err
}

func createBridge(d *Definition) error {
	mac, err := net.ParseMAC(d.MAC)
	if err != nil {
		return fault.Wrap(err, fault.Internal, fault.Network, "the bridge has no address")
	}
	return link.CreateBridge(link.Bridge{
		Name: d.Bridge.Name, MAC: mac, MTU: d.MTU, STP: d.Bridge.STP, Delay: time.Duration(d.Bridge.Delay) * time.Second,
	})
}

// build makes what else a managed network consists of: links, rules and processes. What it
// leaves behind when it fails is for down.
func (n *Network) build(ctx context.Context, d *Definition) error {
	name := d.Bridge.Name
	failpoint.Reach("network.bridge")
	if err := address(d); err != nil {
		return err
	}
	failpoint.Reach("network.address")
	if err := link.SetUp(name); err != nil {
		return err
	}
	for _, r := range d.Routes {
		if err := link.AddRoute(name, r.Destination, r.Gateway, r.Metric); err != nil {
			return err
		}
	}
	if err := forward(d); err != nil {
		return err
	}
	if rules, some := d.rules(); some {
		if err := n.home.firewall.Apply(rules); err != nil {
			return err
		}
	}
	failpoint.Reach("network.rules")
	return n.serve(ctx, d)
}

func address(d *Definition) error {
	six := d.IPv6.Or(false)
	for _, ip := range d.IPs {
		six = six || ip.Address.Is6()
	}
	if err := link.QuietIPv6(d.Bridge.Name, six); err != nil {
		return err
	}
	for _, ip := range d.IPs {
		if err := link.AddAddress(d.Bridge.Name, ip.Prefix()); err != nil {
			return err
		}
	}
	return nil
}

// forward lets the host route for a network that leads anywhere.
func forward(d *Definition) error {
	_, err := link.Forward(d.forwards())
	return err
}

// forwards tells which families a network has the host route.
func (d *Definition) forwards() (four, six bool) {
	if !d.Managed() || d.Forward.Mode == ForwardNone {
		return false, false
	}
	for _, ip := range d.IPs {
		four, six = four || ip.Address.Is4(), six || ip.Address.Is6()
	}
	return four, six
}

// down ends whatever there is of a network, however far it had come. It runs
// with the turn and may be repeated.
func (n *Network) down(ctx context.Context, d *Definition) error {
	// Where there is no room for the mark it ends all the same: the next daemon ends what this
	// one is killed in, or goes on with it.
	if err := n.mark(d, false, false); err != nil {
		n.home.Log.Warn("a network ends without a mark of that", "network", n.name, "error", err)
	}
	n.lacking = false
	var err error
	if d.Managed() {
		err = n.stopService(ctx)
		failpoint.Reach("network.unserved")
		err = errors.Join(err, n.home.firewall.Remove(d.Bridge.Name))
		failpoint.Reach("network.unruled")
		err = errors.Join(err, removeBridge(d))
		failpoint.Reach("network.unbridged")
	}
	if err != nil {
		return err
	}
	return n.unmark()
}

// unmark removes the running file: there is nothing of the network any more.
func (n *Network) unmark() error {
	err := os.Remove(n.runningFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Network, "cannot forget what ran")
}

// removeBridge removes a network's bridge and no other that has taken its name.
func removeBridge(d *Definition) error {
	l, err := link.ByName(d.Bridge.Name)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || l.Kind != "bridge" || l.MAC.String() != d.MAC {
		return err
	}
	return link.Remove(d.Bridge.Name)
}

// plugAgain puts the guests that were plugged in when the network was ended
// back on its bridge.
func (n *Network) plugAgain(d *Definition) {
	for _, p := range n.Ports() {
		n.plug(d, p)
	}
}

func (n *Network) plug(d *Definition, p Port) {
	if p.Parent != "" {
		return
	}
	err := link.SetBridge(p.Interface, d.Bridge.Name)
	if err == nil && d.isolates(p.Isolated) { // which it was as a port of the bridge that has gone
		if err = link.SetIsolated(p.Interface, true); err != nil {
			err = errors.Join(err, link.ClearBridge(p.Interface))
		}
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		n.home.Log.Warn("cannot plug a guest in again", "network", n.name, "interface", p.Interface, "owner", p.Owner, "error", err)
	}
}

// plugLate puts a NIC that has just become a port on the bridge if it is on none: the network was ended and started
// again since it was put on the bridge that there was.
func (n *Network) plugLate(p Port) {
	d := n.View().Live
	if d == nil || !d.Managed() {
		return
	}
	if l, err := link.ByName(p.Interface); err == nil && l.Master == 0 {
		n.plug(d, p)
	}
}
