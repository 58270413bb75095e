package network

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Network is one network. Verbs that change it take turns; all other methods read the view and never wait.
type Network struct {
	networks   *Networks
	uuid, name string

	turn         chan struct{} // holds one token; the holder may change the network
	view         atomic.Pointer[View]
	gone         bool // undefined and out of the registry; guarded by turn
	autostartDue bool // autostart is still pending in this boot; guarded by turn

	service  *hostnet.Dnsmasq // of a running network that serves; guarded by turn
	followed []string         // operations with a stored change; guarded by turn
	// ops are the open operations. Their steps run with the turn.
	ops *operation.Set[*Network]

	// Values that no other network gets until the verb ends; guarded by networks.mu.
	reservedBridge     string      // the name of a bridge, see Networks.reserveBridge; "" for none
	startingDefinition *Definition // its addresses, see claimAddresses; nil for none

	// ports are the connected NICs, by the host's interface name. portMu guards them, not the turn, so that a
	// guest's start does not wait for a verb.
	portMu        sync.Mutex
	ports         map[string]Port
	chosenParents map[string]int // how often a parent was chosen for a NIC that has no port yet
}

// Port is a NIC that is connected to a network.
type Port struct {
	Interface string // the host's end
	MAC       string
	Owner     string        // the name of its guest, for people
	Parent    string        // the link that a macvtap is on; "" for a port of a bridge
	Index     int           // of a macvtap: its name may come to be another's
	Isolated  device.Switch // what the NIC says of that, see isolates
}

// View is a network at one moment; it is immutable.
type View struct {
	// Live is the active definition; nil while the network is inactive.
	Live *Definition
	// Config is the stored definition; nil for a transient network.
	Config    *Definition
	Autostart bool

	submitted   string // the document of Config as it was given
	storedBytes uint64 // bytes that are kept of the definitions; publish counts them
	// chosenBridge says that Lodge chose the bridge's name in Config or, without Config, in Live.
	chosenBridge bool
}

// Active says whether the network runs.
func (v *View) Active() bool { return v.Live != nil }

// Persistent says whether the network remains when it is destroyed.
func (v *View) Persistent() bool { return v.Config != nil }

// current is the active definition, or the stored one of an inactive network.
func (v *View) current() *Definition {
	if v.Live != nil {
		return v.Live
	}
	return v.Config
}

// errGone says that a network was undefined while a caller waited for it.
var errGone = errors.New("the network is gone")

func (s *Networks) newNetwork(uuid, name string) *Network {
	n := &Network{networks: s, uuid: uuid, name: name, turn: make(chan struct{}, 1), ports: map[string]Port{}, chosenParents: map[string]int{}}
	n.turn <- struct{}{}
	n.ops = operation.New(n.operations())
	return n
}

// Name is the network's name.
func (n *Network) Name() string { return n.name }

// UUID is the network's UUID, in lower case with dashes.
func (n *Network) UUID() string { return n.uuid }

// View returns the last published view. It is never nil for a network that a caller was given.
func (n *Network) View() *View { return n.view.Load() }

func (n *Network) publish(v View) {
	v.storedBytes = v.countStoredBytes()
	n.view.Store(&v)
	n.networks.status.schedule(n)
}

// turnWait is how long a verb waits for another one on the same network; each ends within about half of that.
const turnWait = 30 * time.Second

// change runs do with the turn, unless the network was removed. If it has no view afterwards, it is removed.
func (n *Network) change(ctx context.Context, do func() error) error {
	return n.withTurn(ctx, func() error {
		if n.gone {
			return fault.Wrap(errGone, fault.NotFound, fault.Network, "no network with name %q", n.name)
		}
		err := do()
		if n.View() == nil { // it did not come to be
			n.remove()
		}
		return err
	})
}

// withTurn waits for the turn and runs do.
func (n *Network) withTurn(ctx context.Context, do func() error) error {
	bounded, stop := context.WithTimeoutCause(ctx, turnWait, fault.New(fault.Timeout, fault.Network, "an earlier request is not done after %v", turnWait))
	defer stop()
	select {
	case <-n.turn:
	case <-bounded.Done():
		return fault.Wrap(context.Cause(bounded), fault.Of(context.Cause(bounded)), fault.Network, "network %q is busy", n.name)
	}
	defer func() {
		n.networks.mu.Lock()
		n.reservedBridge, n.startingDefinition = "", nil
		n.networks.mu.Unlock()
		n.turn <- struct{}{}
	}()
	return do()
}

func (n *Network) source() event.Source { return event.Source{Name: n.name, UUID: n.uuid, ID: -1} }

func (n *Network) emit(c event.Change) {
	n.networks.Events.Append(n.source(), event.NetworkChange{Change: c})
}

// XML returns the document of the network as it runs. With inactive, or if it does not run, it is the stored
// definition.
func (n *Network) XML(inactive bool) (string, error) {
	v := n.View()
	d, connections := v.current(), n.Connections()
	if inactive && v.Config != nil {
		d, connections = v.Config, 0
	}
	return d.XML(connections)
}

// Connections counts the connected NICs.
func (n *Network) Connections() int {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	return len(n.ports)
}

// BridgeName returns the name of the guests' bridge.
func (n *Network) BridgeName() (string, error) {
	if name := n.View().current().Bridge.Name; name != "" {
		return name, nil
	}
	return "", fault.New(fault.Unsupported, fault.Network, "network %q has no bridge", n.name)
}

// save writes a view's definition to the store; nil means that it is stored.
func (n *Network) save(v View) error {
	r, err := v.record()
	if err != nil {
		return err
	}
	return n.storeRecord(*r)
}

// storeRecord stores a record with the operations that it has followed, earlier ones included. The caller has the
// turn.
func (n *Network) storeRecord(r record, more ...string) error {
	r.Followed = append(slices.DeleteFunc(slices.Clone(n.followed), func(id string) bool { return !n.ops.MayHaveRecord(id) }), more...)
	if err := n.networks.Store.Put(recordKind, n.uuid, r); err != nil {
		return err
	}
	n.followed = r.Followed
	return nil
}

// record is what the store keeps of a persistent network.
func (v *View) record() (*record, error) {
	doc, err := v.Config.storedXML()
	if err != nil {
		return nil, err
	}
	return &record{Submitted: v.submitted, Definition: doc, Autostart: v.Autostart, ChosenBridge: v.chosenBridge}, nil
}

// StoredBytes estimates the stored bytes of a definition: the submitted document and the parsed one.
func StoredBytes(doc string) uint64 { return 2 * uint64(len(doc)) }

// StoredBytes returns the network's stored bytes.
func (v *View) StoredBytes() uint64 { return v.storedBytes }

// countStoredBytes counts the stored bytes: the larger one of the active and the stored definition.
func (v *View) countStoredBytes() uint64 {
	most := 0
	for _, d := range []*Definition{v.Config, v.Live} {
		if d == nil {
			continue
		}
		if doc, err := d.XML(0); err == nil {
			most = max(most, len(doc))
		}
	}
	return uint64(len(v.submitted) + most)
}

// define runs with the turn.
func (n *Network) define(d *Definition, doc string, chosen bool) error {
	v := View{}
	if now := n.View(); now != nil {
		v = *now
	}
	v.Config, v.submitted, v.chosenBridge = d, doc, chosen
	if err := n.save(v); err != nil {
		return err
	}
	n.publish(v)
	n.emit(event.Defined)
	return nil
}

// Undefine removes the stored definition. A running network keeps running and is removed when it is destroyed.
func (n *Network) Undefine(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := *n.View()
		if !v.Persistent() {
			return fault.New(fault.WrongState, fault.Network, "network %q is transient; there is nothing to undefine", n.name)
		}
		if err := n.networks.Store.Delete(recordKind, n.uuid); err != nil {
			return err
		}
		if !v.Active() {
			n.remove()
		} else {
			v.Config, v.Autostart, v.submitted = nil, false, ""
			n.publish(v)
		}
		n.emit(event.Undefined)
		return nil
	})
}

// remove removes the network, with its leases and its pending autostart. The caller has the turn.
func (n *Network) remove() {
	failpoint.Reach("network.vanish")
	n.gone = true
	n.clearAutostartDue()
	n.removeLeases()
	n.networks.unregister(n) // last, because then a new network may have its UUID, and files named by it
	n.networks.status.schedule(n)
}

// SetAutostart sets whether the network starts with the host.
func (n *Network) SetAutostart(ctx context.Context, sc scope.Scope, on bool) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := *n.View()
		if !v.Persistent() {
			return fault.New(fault.WrongState, fault.Network, "network %q is transient and cannot have autostart", n.name)
		}
		v.Autostart = on
		if err := n.save(v); err != nil {
			return err
		}
		n.publish(v)
		return nil
	})
}

// Start starts the network with its stored definition.
func (n *Network) Start(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := n.View()
		if v.Active() {
			return fault.New(fault.WrongState, fault.Network, "network %q is already active", n.name)
		}
		return n.start(ctx, sc, v.Config, v.chosenBridge)
	})
}

// start runs with the turn.
func (n *Network) start(ctx context.Context, sc scope.Scope, d *Definition, chosen bool) error {
	if n.ops.OwnerOutdated != nil {
		return n.ops.OwnerOutdated()
	}
	if err := n.ops.End(ctx, operation.Nothing); err != nil {
		return fault.Wrap(err, fault.Busy, fault.Network, "network %q has not been removed completely yet; this is tried again", n.name)
	}
	d, err := n.renameBridge(d, chosen)
	if err != nil {
		return err
	}
	if err := n.performStart(ctx, sc, d, chosen); err != nil {
		return fault.Wrap(err, startFault(err), fault.Network, "cannot start network %q", n.name)
	}
	v := View{}
	if now := n.View(); now != nil {
		v = *now
	}
	v.Live = d
	if v.Config == nil {
		v.chosenBridge = chosen
	}
	n.clearAutostartDue()
	n.publish(v)
	n.emit(event.Started)
	return nil
}

// startFault returns the kind of a failed start: an object that is missing or in the way is not the network
// itself.
func startFault(err error) fault.Kind {
	switch kind := fault.Of(err); kind {
	case fault.NotFound, fault.Exists, fault.Invalid:
		return fault.Failed
	default:
		return kind
	}
}

// renameBridge gives a network another bridge name if Lodge chose the name and another link took it in the meantime.
// It stores the new name. The caller has the turn.
func (n *Network) renameBridge(d *Definition, chosen bool) (*Definition, error) {
	if !chosen {
		return d, nil
	}
	taken, err := linkNames()
	if err != nil {
		return nil, err
	}
	changed := *d
	changed.Bridge.Name, err = n.networks.reserveBridge(n, func(used map[string]bool) (string, error) {
		isTaken := func(name string) bool { return used[name] || taken[name] }
		if now := d.Bridge.Name; !isTaken(now) {
			return now, nil
		}
		return freeBridgeName(patternOf(d.Bridge.Name), isTaken)
	})
	if err != nil || changed.Bridge.Name == d.Bridge.Name {
		return d, err
	}
	v := n.View()
	if v == nil || v.Config != d {
		return &changed, nil
	}
	kept := *v
	kept.Config = &changed
	if err := n.save(kept); err != nil {
		return nil, err
	}
	n.publish(kept)
	return &changed, nil
}

// Destroy stops the running network. Guests stay disconnected until it is started again.
func (n *Network) Destroy(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := *n.View()
		if !v.Active() {
			return fault.New(fault.WrongState, fault.Network, "network %q is not active", n.name)
		}
		err := n.performStop(ctx, v.Live)
		if err != nil && !n.ops.Has(stopKind.Name) { // it was not begun
			return err
		}
		v.Live = nil
		if v.Persistent() {
			n.publish(v)
		} else {
			n.remove()
		}
		n.emit(event.Stopped)
		return err
	})
}
