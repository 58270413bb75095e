package network

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// plug is the destination of a NIC, from its type and its network's mode.
type plug struct {
	network  *Network // nil if it is on no network of Lodge's
	bridge   string   // the tap's bridge; "" for a tap without one
	parent   string   // the macvtap's link; "" for a tap
	mode     hostnet.MacvtapMode
	mtu      int
	isolated bool
	existing bool // the tap exists already
}

// CheckSource returns why a NIC cannot be connected, before anything is made for it: its network or link does
// not exist.
func (s *Networks) CheckSource(nic *device.NIC) error {
	if nic.Type == "user" {
		return nil
	}
	p, err := s.resolve(nic)
	if err == nil {
		p.unpick()
	}
	return err
}

// AttachNIC makes the host's end of a NIC. The caller owns the files of the attachment. Release undoes the
// rest after QEMU has ended or failed to start. A tap vanishes when its last file is closed. The owner is a
// name for people.
//
// AttachNIC calls note with the name of a macvtap before it makes it: unlike a tap, a macvtap outlives the
// last process that has it open. After a daemon was killed, the next one finds the macvtap by that name. Of
// several names the last one counts. Nil: no name is noted.
func (s *Networks) AttachNIC(ctx context.Context, sc scope.Scope, nic *device.NIC, owner string, note func(ifName string) error) (_ *device.NICAttachment, release func(), err error) {
	if err := sc.Check(); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err := CheckBandwidth(nic); err != nil {
		return nil, nil, err
	}
	if nic.Type == "user" {
		return &device.NICAttachment{MTU: nic.MTU}, func() {}, nil
	}
	p, err := s.resolve(nic)
	if err != nil {
		return nil, nil, ofHost(err)
	}
	defer p.unpick()
	if p.parent != "" {
		if err := onLink(nic); err != nil {
			return nil, nil, err
		}
	}
	a := &device.NICAttachment{Bridge: p.bridge, MTU: uint(p.mtu)}
	if err := backend(a, nic); err != nil {
		return nil, nil, err
	}
	if p.parent != "" {
		err = s.openMacvtap(a, nic, p, note)
	} else {
		err = s.openTap(a, nic, p)
	}
	if err == nil && nic.Inbound != nil {
		err = SetBandwidth(nic, a.IfName)
	}
	if err != nil {
		a.Close()
		return nil, nil, ofHost(err)
	}
	port := Port{Interface: a.IfName, MAC: nic.MAC, Owner: owner, Parent: p.parent, Isolated: nic.Isolated}
	if p.parent != "" {
		l, err := hostnet.ByName(a.IfName)
		if err != nil {
			a.Close()
			return nil, nil, errors.Join(err, hostnet.Remove(a.IfName))
		}
		port.Index = l.Index
	}
	return a, s.plugIn(p, port), nil
}

// ofHost changes the error about a missing link: the host lacks it, because it is no object that a client
// could define.
func ofHost(err error) error {
	if fault.Is(err, fault.NotFound) && fault.About(err) == fault.Interface {
		return fault.Wrap(err, fault.NotFound, fault.File, "the host lacks a link")
	}
	return err
}

// plugIn is enter for a new NIC.
func (s *Networks) plugIn(p plug, port Port) (release func()) {
	release = s.enter(p, port)
	if p.network != nil {
		p.network.plugLate(port)
	}
	return release
}

// AdoptNIC enters the NIC of a guest that an earlier daemon started, and returns the release that AttachNIC
// returned then.
func (s *Networks) AdoptNIC(nic *device.NIC, ifName, owner string) (release func(), err error) {
	if nic.Type == "user" || ifName == "" {
		return func() {}, nil
	}
	all, err := hostnet.All()
	if err != nil {
		return nil, err
	}
	p, index := plug{}, 0
	for _, l := range all {
		if l.Name == ifName && mayBe(l, nic, all) {
			p.parent, index = parentOf(l, all), l.Index
		}
	}
	if index == 0 {
		return nil, fault.New(fault.NotFound, fault.Interface, "no network interface with name %q", ifName)
	}
	if nic.Type == "network" {
		p.network, _ = s.ByName(nic.Network) // the network may be gone while the link exists
	}
	return s.enter(p, Port{Interface: ifName, MAC: nic.MAC, Owner: owner, Parent: p.parent, Index: index, Isolated: nic.Isolated}), nil
}

// mayBe says whether a link may be a NIC's: a macvtap has the NIC's address or, until that is set, the address
// of its parent in passthrough mode.
func mayBe(l hostnet.Link, nic *device.NIC, all []hostnet.Link) bool {
	mac, err := net.ParseMAC(nic.MAC)
	return l.Kind != "macvtap" || err != nil || bytes.Equal(l.MAC, mac) ||
		slices.ContainsFunc(all, func(p hostnet.Link) bool { return p.Index == l.Parent && bytes.Equal(p.MAC, l.MAC) })
}

// parentOf names a macvtap's parent link; "" for any other link.
func parentOf(l hostnet.Link, all []hostnet.Link) string {
	if l.Kind != "macvtap" {
		return ""
	}
	for _, p := range all {
		if p.Index == l.Parent {
			return p.Name
		}
	}
	return "?" // it was moved to another network namespace
}

// enter counts a NIC for its network and returns the function that undoes everything.
func (s *Networks) enter(p plug, port Port) (release func()) {
	if n := p.network; n != nil {
		n.portMu.Lock()
		n.ports[port.Interface] = port
		n.portMu.Unlock()
		s.status.notice(n)
	}
	return func() {
		if n := p.network; n != nil {
			n.portMu.Lock()
			if n.ports[port.Interface] == port { // another NIC may have the name by now
				delete(n.ports, port.Interface)
			}
			n.portMu.Unlock()
			s.status.notice(n)
		}
		if port.Parent == "" {
			return
		}
		if err := hostnet.RemoveSame(port.Interface, port.Index); err != nil {
			s.Log.Error("cannot remove the macvtap of a guest", "interface", port.Interface, "owner", port.Owner, "error", err)
		}
	}
}

// Ports lists the connected NICs by interface.
func (n *Network) Ports() []Port {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	return slices.SortedFunc(maps.Values(n.ports), func(a, b Port) int { return strings.Compare(a.Interface, b.Interface) })
}

func (s *Networks) resolve(nic *device.NIC) (plug, error) {
	switch nic.Type {
	case "network":
		return s.resolveNetwork(nic)
	case "bridge":
		return plug{bridge: nic.Bridge, mtu: int(nic.MTU), isolated: nic.Isolated == device.On}, checkIsBridge(nic.Bridge)
	case "direct":
		mode, err := macvtapMode(nic.DirectMode)
		return plug{parent: nic.HostDev, mode: mode, mtu: int(nic.MTU)}, err
	case "ethernet":
		return plug{mtu: int(nic.MTU), existing: nic.Managed == device.Off}, nil
	}
	return plug{}, fault.New(fault.Unsupported, fault.Config, "a NIC of type %q is not supported", nic.Type)
}

func (s *Networks) resolveNetwork(nic *device.NIC) (plug, error) {
	n, err := s.ByName(nic.Network)
	if err != nil {
		return plug{}, err
	}
	d := n.View().Live
	if d == nil {
		return plug{}, fault.New(fault.WrongState, fault.Network, "network %q is not active; start it", n.name)
	}
	if nic.PortGroup != "" && !slices.ContainsFunc(d.PortGroups, func(g PortGroup) bool { return g.Name == nic.PortGroup }) {
		return plug{}, fault.New(fault.Invalid, fault.Config, "network %q has no port group %q", n.name, nic.PortGroup)
	}
	if d.Managed() && !stillThere(d) {
		return plug{}, fault.New(fault.WrongState, fault.Network,
			"the bridge %q of network %q is there no more, somebody has removed it; end the network and start it again", d.Bridge.Name, n.name)
	}
	p := plug{network: n, bridge: d.Bridge.Name, mtu: cmp.Or(int(nic.MTU), d.MTU)}
	p.isolated = d.isolates(nic.Isolated)
	if d.direct() {
		p.bridge = ""
		if p.mode, err = macvtapMode(string(d.Forward.Mode)); err == nil {
			p.parent, err = n.pickParent(d)
		}
	}
	return p, err
}

// isolates says whether a NIC cannot reach the network's other guests, by its own setting or the network's.
func (d *Definition) isolates(own device.Switch) bool {
	return own == device.On || own == device.Unset && d.Isolated == device.On
}

func macvtapMode(word string) (hostnet.MacvtapMode, error) {
	switch word {
	case "", "vepa":
		return hostnet.VEPA, nil
	case "bridge":
		return hostnet.BridgeMode, nil
	case "private":
		return hostnet.Private, nil
	case "passthrough":
		return hostnet.Passthrough, nil
	}
	return 0, fault.New(fault.Invalid, fault.Config, "%q is no mode of a direct NIC", word)
}

// pickParent chooses the parent link with the fewest guests; in passthrough mode it must have none. The choice
// counts until unpick.
func (n *Network) pickParent(d *Definition) (string, error) {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	used := maps.Clone(n.picked)
	for _, p := range n.ports {
		used[p.Parent]++
	}
	best := slices.MinFunc(d.Forward.Interfaces, func(a, b string) int { return cmp.Compare(used[a], used[b]) })
	if d.Forward.Mode == ForwardPassthrough && used[best] > 0 {
		return "", fault.New(fault.NoCapacity, fault.Network, "all %d interfaces of network %q are in use", len(d.Forward.Interfaces), n.name)
	}
	n.picked[best]++
	return best, nil
}

// unpick ends that count: the NIC has become a port, or has failed.
func (p plug) unpick() {
	if n := p.network; n != nil && p.parent != "" {
		n.portMu.Lock()
		n.picked[p.parent]--
		n.portMu.Unlock()
	}
}

// backend opens vhost for a NIC that can use it.
func backend(a *device.NICAttachment, nic *device.NIC) error {
	switch {
	case nic.Backend == "qemu":
		a.VHostReason = "the definition asks for QEMU's own back end"
		return nil
	case !virtio(nic) && nic.Backend == "vhost":
		return fault.New(fault.Unsupported, fault.Config, "devices/interface/driver/@name: vhost serves models of virtio, not %s; leave the driver out, or use model virtio", nic.Model)
	case !virtio(nic):
		a.VHostReason = fmt.Sprintf("a NIC of model %q cannot use it", nic.Model)
		return nil
	}
	files, err := hostnet.OpenVHost(max(int(nic.Queues), 1))
	if err != nil && nic.Backend == "vhost" {
		return err
	}
	if err != nil {
		a.VHostReason = err.Error()
		return nil
	}
	a.VHost = files
	return nil
}

func virtio(nic *device.NIC) bool { return strings.HasPrefix(nic.Model, "virtio") }

func (s *Networks) openTap(a *device.NICAttachment, nic *device.NIC, p plug) error {
	t := hostnet.Tap{
		Queues: int(nic.Queues), VNetHeader: virtio(nic), MTU: p.mtu, Bridge: p.bridge, Isolated: p.isolated,
		Up: nic.Link != "down", Existing: p.existing,
	}
	if p.existing && nic.Target == "" {
		return unsuitable("a NIC that brings its own tap needs the name of it as target")
	}
	if mac, err := net.ParseMAC(nic.MAC); err == nil && len(mac) == 6 && !p.existing {
		// Higher than any other address, so that the bridge never takes it for its own.
		mac[0] = 0xfe
		t.MAC = mac
	}
	return named(nic.Target, "vnet%d", s.taps.Add, func(name string) (err error) {
		t.Name, a.IfName = name, name
		a.Tap, err = hostnet.OpenTap(t)
		return err
	})
}

// noted records a name that no other link has. A nil note records nothing.
func noted(note func(ifName string) error, ifName string) error {
	if note == nil {
		return nil
	}
	if _, err := hostnet.ByName(ifName); err == nil {
		return fault.New(fault.Exists, fault.Interface, "a network interface with name %q already exists", ifName)
	} else if !fault.Is(err, fault.NotFound) {
		return err
	}
	return note(ifName)
}

func (s *Networks) openMacvtap(a *device.NICAttachment, nic *device.NIC, p plug, note func(ifName string) error) error {
	mac, err := net.ParseMAC(nic.MAC)
	if err != nil {
		return unsuitable("%q is no MAC address", nic.MAC)
	}
	m := hostnet.Macvtap{
		Parent: p.parent, Mode: p.mode, MAC: mac, MTU: p.mtu,
		Queues: int(nic.Queues), VNetHeader: virtio(nic), Up: nic.Link != "down",
	}
	return named(nic.Target, "macvtap%d", s.macvtaps.Add, func(name string) (err error) {
		if err := noted(note, name); err != nil {
			return err
		}
		m.Name, a.IfName = name, name
		a.Tap, err = hostnet.OpenMacvtap(m)
		return err
	})
}

// maxNames bounds the search for a free name; it exceeds the number of links of one host.
const maxNames = 1 << 16

// named runs do with the given name, or with the names of a pattern until one is free. Numbers count up, so
// that a name is not reused at once by another guest.
func named(given, row string, next func(uint64) uint64, do func(name string) error) error {
	if given != "" {
		return do(given)
	}
	for range maxNames {
		if err := do(fmt.Sprintf(row, next(1)-1)); !fault.Is(err, fault.Exists) {
			return err
		}
	}
	return fault.New(fault.NoCapacity, fault.Interface, "no name like %q is free", row)
}
