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

// Network is one network. Verbs that change it take turns; everything else
// reads the view and waits for nobody.
type Network struct {
	home       *Networks
	uuid, name string

	turn chan struct{} // holds one token; whoever has taken it may change the network
	view atomic.Pointer[View]
	gone bool // undefined and out of the registry; guarded by turn
	due  bool // this boot has still to start it; guarded by turn

	service  *hostnet.Dnsmasq // of a running network that serves; guarded by turn
	followed []string         // operations whose change is stored; guarded by turn
	// ops are those that are open. Their steps are done with the turn.
	ops *operation.Set[*Network]

	// What nobody else is given until a verb is done; guarded by home.mu.
	reserved string      // the name of a bridge, see reserve; "" for none
	starting *Definition // its addresses, see claimAddresses; nil for none

	// ports are the NICs that are plugged in, by the host's name for them.
	// Guarded by portMu, apart from turn, so that starting a guest does not
	// wait for a verb.
	portMu sync.Mutex
	ports  map[string]Port
	picked map[string]int // how often a parent was chosen for a NIC that is no port yet
}

// Port is a NIC that is plugged into a network.
type Port struct {
	Interface string // the host's end
	MAC       string
	Owner     string        // whose NIC it is, for people
	Parent    string        // the link that a macvtap is on; "" for a port of a bridge
	Index     int           // of a macvtap: its name may come to be another's
	Isolated  device.Switch // what the NIC says of that, see isolates
}

// View is a network at one moment; it never changes.
type View struct {
	// Live is the definition in force, nil while the network is inactive.
	Live *Definition
	// Config is the definition that is kept, nil for a transient network.
	Config    *Definition
	Autostart bool

	submitted string // the document of Config as it was given
	written   uint64 // bytes that are kept of the definitions; publish counts them
	// chosenBridge tells that the bridge's name in Config, or without that in
	// Live, is Lodge's choice.
	chosenBridge bool
}

// Active reports whether the network runs.
func (v *View) Active() bool { return v.Live != nil }

// Persistent reports whether the network outlives being destroyed.
func (v *View) Persistent() bool { return v.Config != nil }

// current is the definition in force, or that which will be.
func (v *View) current() *Definition {
	if v.Live != nil {
		return v.Live
	}
	return v.Config
}

// errGone says that a network was undefined while somebody waited for it.
var errGone = errors.New("the network is gone")

func (s *Networks) newNetwork(uuid, name string) *Network {
	n := &Network{home: s, uuid: uuid, name: name, turn: make(chan struct{}, 1), ports: map[string]Port{}, picked: map[string]int{}}
	n.turn <- struct{}{}
	n.ops = operation.New(n.operations())
	return n
}

// Name is the network's name.
func (n *Network) Name() string { return n.name }

// UUID is the network's UUID, in lower case with dashes.
func (n *Network) UUID() string { return n.uuid }

// View is the network as it was last published. It is never nil for a network
// that somebody was given.
func (n *Network) View() *View { return n.view.Load() }

func (n *Network) publish(v View) {
	v.written = v.size()
	n.view.Store(&v)
	n.home.status.notice(n)
}

// turnWait is how long a verb waits for another on the same network; each is done
// or given up in about half of it.
const turnWait = 30 * time.Second

// change does something with the turn, unless the network has gone. One that this leaves
// without a view has.
func (n *Network) change(ctx context.Context, do func() error) error {
	return n.inTurn(ctx, func() error {
		if n.gone {
			return fault.Wrap(errGone, fault.NotFound, fault.Network, "no network with name %q", n.name)
		}
		err := do()
		if n.View() == nil { // it did not come to be
			n.vanish()
		}
		return err
	})
}

// inTurn waits for the turn and does something with it.
func (n *Network) inTurn(ctx context.Context, do func() error) error {
	bounded, stop := context.WithTimeoutCause(ctx, turnWait, fault.New(fault.Timeout, fault.Network, "an earlier request is not done after %v", turnWait))
	defer stop()
	select {
	case <-n.turn:
	case <-bounded.Done():
		return fault.Wrap(context.Cause(bounded), fault.Of(context.Cause(bounded)), fault.Network, "network %q is busy", n.name)
	}
	defer func() {
		n.home.mu.Lock()
		n.reserved, n.starting = "", nil
		n.home.mu.Unlock()
		n.turn <- struct{}{}
	}()
	return do()
}

func (n *Network) source() event.Source { return event.Source{Name: n.name, UUID: n.uuid, ID: -1} }

func (n *Network) tell(c event.Change) {
	n.home.Events.Append(n.source(), event.NetworkChange{Change: c})
}

// XML is the network's document: as it runs, or with inactive set, or when it
// does not run, as it is kept.
func (n *Network) XML(inactive bool) (string, error) {
	v := n.View()
	d, connections := v.current(), n.Connections()
	if inactive && v.Config != nil {
		d, connections = v.Config, 0
	}
	return d.XML(connections)
}

// Connections counts the NICs that are plugged in.
func (n *Network) Connections() int {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	return len(n.ports)
}

// BridgeName is the name of the bridge that guests are on.
func (n *Network) BridgeName() (string, error) {
	if name := n.View().current().Bridge.Name; name != "" {
		return name, nil
	}
	return "", fault.New(fault.Unsupported, fault.Network, "network %q has no bridge", n.name)
}

// save writes a view's definition to the store; returning nil means it is kept.
func (n *Network) save(v View) error {
	r, err := v.record()
	if err != nil {
		return err
	}
	return n.keep(*r)
}

// keep stores a record, with the operations that it has followed: these and those before. It runs with the turn.
func (n *Network) keep(r record, more ...string) error {
	r.Followed = append(slices.DeleteFunc(slices.Clone(n.followed), func(id string) bool { return !n.ops.Remembers(id) }), more...)
	if err := n.home.Store.Put(kind, n.uuid, r); err != nil {
		return err
	}
	n.followed = r.Followed
	return nil
}

// record is what the store keeps of a persistent network.
func (v *View) record() (*record, error) {
	doc, err := v.Config.kept()
	if err != nil {
		return nil, err
	}
	return &record{Submitted: v.submitted, Definition: doc, Autostart: v.Autostart, ChosenBridge: v.chosenBridge}, nil
}

// Written are about the bytes that are kept of a definition: as it was given, and as it was understood.
func Written(doc string) uint64 { return 2 * uint64(len(doc)) }

// Written are those of the network's.
func (v *View) Written() uint64 { return v.written }

// size counts them: of the running definition and the kept one the larger.
func (v *View) size() uint64 {
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
	n.tell(event.Defined)
	return nil
}

// Undefine forgets the kept definition. A running network runs on and is gone
// when it is destroyed.
func (n *Network) Undefine(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := *n.View()
		if !v.Persistent() {
			return fault.New(fault.WrongState, fault.Network, "network %q is transient; there is nothing to undefine", n.name)
		}
		if err := n.home.Store.Delete(kind, n.uuid); err != nil {
			return err
		}
		if !v.Active() {
			n.vanish()
		} else {
			v.Config, v.Autostart, v.submitted = nil, false, ""
			n.publish(v)
		}
		n.tell(event.Undefined)
		return nil
	})
}

// vanish takes the network out of the registry. It runs with the turn.
func (n *Network) vanish() {
	failpoint.Reach("network.vanish")
	n.gone = true
	n.settle()
	n.removeLeases()
	n.home.forget(n) // at last: from then on another may have its UUID, and files by that
	n.home.status.notice(n)
}

// SetAutostart says whether the network starts with the host.
func (n *Network) SetAutostart(ctx context.Context, sc scope.Scope, on bool) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := *n.View()
		if !v.Persistent() {
			return fault.New(fault.WrongState, fault.Network, "network %q is transient and cannot start by itself", n.name)
		}
		v.Autostart = on
		if err := n.save(v); err != nil {
			return err
		}
		n.publish(v)
		return nil
	})
}

// Start runs the network as it is defined.
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
	if n.ops.Behind != nil {
		return n.ops.Behind()
	}
	if err := n.ops.End(ctx, operation.Nothing); err != nil {
		return fault.Wrap(err, fault.Busy, fault.Network, "network %q has not ended wholly yet, which is tried again", n.name)
	}
	d, err := n.rename(d, chosen)
	if err != nil {
		return err
	}
	if err := n.up(ctx, sc, d, chosen); err != nil {
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
	n.settle()
	n.publish(v)
	n.tell(event.Started)
	return nil
}

// startFault says of what kind a failed start is: what is missing or in the way
// is not the network itself.
func startFault(err error) fault.Kind {
	switch kind := fault.Of(err); kind {
	case fault.NotFound, fault.Exists, fault.Invalid:
		return fault.Failed
	default:
		return kind
	}
}

// rename gives a network whose bridge's name is Lodge's own choice another one
// when somebody has taken that in the meantime, and keeps it. It runs with the turn.
func (n *Network) rename(d *Definition, chosen bool) (*Definition, error) {
	if !chosen {
		return d, nil
	}
	taken, err := linkNames()
	if err != nil {
		return nil, err
	}
	changed := *d
	changed.Bridge.Name, err = n.home.reserve(n, func(used map[string]bool) (string, error) {
		isTaken := func(name string) bool { return used[name] || taken[name] }
		if now := d.Bridge.Name; !isTaken(now) {
			return now, nil
		}
		return freeBridge(rowOf(d.Bridge.Name), isTaken)
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

// Destroy ends the running network. Guests stay plugged into nothing until it
// is started again.
func (n *Network) Destroy(ctx context.Context, sc scope.Scope) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.change(ctx, func() error {
		v := *n.View()
		if !v.Active() {
			return fault.New(fault.WrongState, fault.Network, "network %q is not active", n.name)
		}
		err := n.down(ctx, v.Live)
		if err != nil && !n.ops.Has(stopKind.Name) { // it was not begun
			return err
		}
		v.Live = nil
		if v.Persistent() {
			n.publish(v)
		} else {
			n.vanish()
		}
		n.tell(event.Stopped)
		return err
	})
}
