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

func (n *Network) runningFile() string { return filepath.Join(n.home.Run, n.uuid+runningSuffix) }

func (n *Network) files() hostnet.DnsmasqFiles {
	return hostnet.DnsmasqIn(n.home.Data, n.home.Run, n.uuid)
}

func (n *Network) removeLeases() { _ = os.Remove(n.files().Leases) }

// recordRunning records the running state.
func (n *Network) recordRunning(d *Definition, chosen bool) error {
	return n.writeRunning(running{Boot: n.home.boot, Definition: d, ChosenBridge: chosen})
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
	return n.home.firewall.Apply(rules)
}

// forward turns on IP forwarding for a network that is not isolated.
func forward(d *Definition) error {
	_, err := hostnet.Forward(d.forwards())
	return err
}

// forwards returns the address families that a network needs forwarding for.
func (d *Definition) forwards() (four, six bool) {
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
		n.plug(d, p)
	}
}

func (n *Network) plug(d *Definition, p Port) {
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
		n.home.Log.Warn("cannot plug a guest in again", "network", n.name, "interface", p.Interface, "owner", p.Owner, "error", err)
	}
}

// reconnectLate connects a new port to the bridge if it is on none: the network was stopped and started after the
// NIC was connected to the old bridge.
func (n *Network) reconnectLate(p Port) {
	d := n.View().Live
	if d == nil || !d.Managed() {
		return
	}
	if l, err := hostnet.ByName(p.Interface); err == nil && l.Master == 0 {
		n.plug(d, p)
	}
}
