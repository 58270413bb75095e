package network

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

// running is the file that tells the next daemon about a running network. The last step of a start writes it,
// and the last step of a stop removes it; the records of operations describe states in between.
type running struct {
	Boot         string           `json:"boot"`
	Definition   *Definition      `json:"definition"`
	ChosenBridge bool             `json:"chosenBridge"`
	Service      *hostnet.Process `json:"service,omitempty"`
	Followed     string           `json:"followed,omitempty"` // the operation that changed the definition last
}

const runningSuffix = ".running.json"

func (n *Network) runningFile() string { return filepath.Join(n.networks.Run, n.uuid+runningSuffix) }

func (n *Network) dnsmasqFiles() hostnet.DnsmasqFiles {
	return hostnet.DnsmasqIn(n.networks.Data, n.networks.Run, n.uuid)
}

func (n *Network) removeLeases() { _ = os.Remove(n.dnsmasqFiles().Leases) }

// recordRunning records the running state.
func (n *Network) recordRunning(d *Definition, chosen bool) error {
	return n.writeRunning(running{Boot: n.networks.boot, Definition: d, ChosenBridge: chosen})
}

func (n *Network) writeRunning(r running) error {
	if n.service != nil {
		p := n.service.Process()
		r.Service = &p
	}
	return fault.Wrap(atomicfile.WriteJSON(n.runningFile(), r), fault.Failed, fault.Network, "cannot record the running network")
}

// readRunning returns nil if no file says that the network runs.
func (n *Network) readRunning() (*running, error) {
	r, err := atomicfile.ReadJSON[running](n.runningFile())
	if err == nil && r != nil && r.Definition == nil {
		return nil, fault.New(fault.Failed, fault.Network, "%s has no definition", n.runningFile())
	}
	return r, err
}

// applyRules applies a network's firewall rules, if it has any.
func (n *Network) applyRules(d *Definition) error {
	rules, some := d.rules()
	if !some {
		return nil
	}
	return n.networks.firewall.Apply(rules)
}

// enableForwarding turns on IP forwarding for a network that is not isolated.
func enableForwarding(d *Definition) error {
	_, err := hostnet.Forward(d.forwardedFamilies())
	return err
}

// forwardedFamilies returns the address families that a network needs forwarding for.
func (d *Definition) forwardedFamilies() (four, six bool) {
	if !d.Managed() || d.Forward.Mode == ForwardNone {
		return false, false
	}
	for _, ip := range d.IPs {
		four, six = four || ip.Address.Is4(), six || ip.Address.Is6()
	}
	return four, six
}

// reconnectGuests connects the guests of a network that was stopped to its new bridge.
func (n *Network) reconnectGuests(d *Definition) {
	for _, p := range n.Ports() {
		n.connectPort(d, p)
	}
}

// connectPort connects a port to the network's bridge. A macvtap is on no bridge.
func (n *Network) connectPort(d *Definition, p Port) {
	if p.Parent != "" {
		return
	}
	err := hostnet.SetBridge(p.Interface, d.Bridge.Name)
	if err == nil && d.isolates(p.Isolated) { // as it was on the old bridge
		if err = hostnet.SetIsolated(p.Interface, true); err != nil {
			err = errors.Join(err, hostnet.ClearBridge(p.Interface))
		}
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		n.networks.Log.Warn("cannot plug a guest in again", "network", n.name, "interface", p.Interface, "owner", p.Owner, "error", err)
	}
}

// connectNewPort connects a new port to the bridge if it is on none: the network was stopped and started after the
// NIC was connected to the old bridge.
func (n *Network) connectNewPort(p Port) {
	d := n.View().Live
	if d == nil || !d.Managed() {
		return
	}
	if l, err := hostnet.ByName(p.Interface); err == nil && l.Master == 0 {
		n.connectPort(d, p)
	}
}
