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

// nicTarget is the destination of a NIC, from its type and its network's mode.
type nicTarget struct {
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
		p.releaseParent()
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
		return nil, nil, hostFault(err)
	}
	defer p.releaseParent()
	if p.parent != "" {
		if err := refuseOnLink(nic); err != nil {
			return nil, nil, err
		}
	}
	a := &device.NICAttachment{Bridge: p.bridge, MTU: uint(p.mtu)}
	if err := openVhost(a, nic); err != nil {
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
		return nil, nil, hostFault(err)
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
	return a, s.addNewPort(p, port), nil
}

// hostFault changes the error about a missing link: the host lacks it, because it is no object that a client
// could define.
func hostFault(err error) error {
	if fault.Is(err, fault.NotFound) && fault.About(err) == fault.Interface {
		return fault.Wrap(err, fault.NotFound, fault.File, "the host lacks a link")
	}
	return err
}

// addNewPort is addPort for a new NIC.
func (s *Networks) addNewPort(p nicTarget, port Port) (release func()) {
	release = s.addPort(p, port)
	if p.network != nil {
		p.network.connectNewPort(port)
	}
	return release
}

// AdoptNIC counts the NIC of a guest that an earlier daemon started, and returns the release that AttachNIC
// returned then.
func (s *Networks) AdoptNIC(nic *device.NIC, ifName, owner string) (release func(), err error) {
	if nic.Type == "user" || ifName == "" {
		return func() {}, nil
	}
	all, err := hostnet.All()
	if err != nil {
		return nil, err
	}
	p, index := nicTarget{}, 0
	for _, l := range all {
		if l.Name == ifName && mayBelongTo(l, nic, all) {
			p.parent, index = parentOf(l, all), l.Index
		}
	}
	if index == 0 {
		return nil, fault.New(fault.NotFound, fault.Interface, "no network interface with name %q", ifName)
	}
	if nic.Type == "network" {
		p.network, _ = s.ByName(nic.Network) // the network may be gone while the link exists
	}
	return s.addPort(p, Port{Interface: ifName, MAC: nic.MAC, Owner: owner, Parent: p.parent, Index: index, Isolated: nic.Isolated}), nil
}

// mayBelongTo says whether a link may be a NIC's: a macvtap has the NIC's address or, until that is set, the address
// of its parent in passthrough mode.
func mayBelongTo(l hostnet.Link, nic *device.NIC, all []hostnet.Link) bool {
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

// addPort counts a NIC as a port of its network. The release removes the port again.
func (s *Networks) addPort(p nicTarget, port Port) (release func()) {
	if n := p.network; n != nil {
		n.portMu.Lock()
		n.ports[port.Interface] = port
		n.portMu.Unlock()
		s.status.schedule(n)
	}
	return func() { s.releaseNIC(p.network, port) }
}

// releaseNIC removes a port from its network (nil: it is on none), and removes a macvtap from the host. Nothing removes
// a tap: the kernel frees it when its last file is closed.
func (s *Networks) releaseNIC(n *Network, port Port) {
	if n != nil {
		n.portMu.Lock()
		if n.ports[port.Interface] == port { // another NIC may have the name by now
			delete(n.ports, port.Interface)
		}
		n.portMu.Unlock()
		s.status.schedule(n)
	}
	if port.Parent == "" {
		return
	}
	if err := hostnet.RemoveSame(port.Interface, port.Index); err != nil {
		s.Log.Error("cannot remove the macvtap of a guest", "interface", port.Interface, "owner", port.Owner, "error", err)
	}
}

// Ports lists the connected NICs by interface.
func (n *Network) Ports() []Port {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	return slices.SortedFunc(maps.Values(n.ports), func(a, b Port) int { return strings.Compare(a.Interface, b.Interface) })
}

func (s *Networks) resolve(nic *device.NIC) (nicTarget, error) {
	switch nic.Type {
	case "network":
		return s.resolveNetwork(nic)
	case "bridge":
		return nicTarget{bridge: nic.Bridge, mtu: int(nic.MTU), isolated: nic.Isolated == device.On}, checkIsBridge(nic.Bridge)
	case "direct":
		mode, err := macvtapMode(nic.DirectMode)
		return nicTarget{parent: nic.HostDev, mode: mode, mtu: int(nic.MTU)}, err
	case "ethernet":
		return nicTarget{mtu: int(nic.MTU), existing: nic.Managed == device.Off}, nil
	}
	return nicTarget{}, fault.New(fault.Unsupported, fault.Config, "a NIC of type %q is not supported", nic.Type)
}

func (s *Networks) resolveNetwork(nic *device.NIC) (nicTarget, error) {
	n, err := s.ByName(nic.Network)
	if err != nil {
		return nicTarget{}, err
	}
	d := n.View().Live
	if d == nil {
		return nicTarget{}, fault.New(fault.WrongState, fault.Network, "network %q is not active; start it", n.name)
	}
	if nic.PortGroup != "" && !slices.ContainsFunc(d.PortGroups, func(g PortGroup) bool { return g.Name == nic.PortGroup }) {
		return nicTarget{}, fault.New(fault.Invalid, fault.Config, "network %q has no port group %q", n.name, nic.PortGroup)
	}
	if d.Managed() && !linksExist(d) {
		return nicTarget{}, fault.New(fault.WrongState, fault.Network,
			"the bridge %q of network %q was removed; stop the network and start it again", d.Bridge.Name, n.name)
	}
	p := nicTarget{network: n, bridge: d.Bridge.Name, mtu: cmp.Or(int(nic.MTU), d.MTU)}
	p.isolated = d.isolates(nic.Isolated)
	if d.direct() {
		p.bridge = ""
		if p.mode, err = macvtapMode(string(d.Forward.Mode)); err == nil {
			p.parent, err = n.chooseParent(d)
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

// chooseParent chooses the parent link with the fewest guests; in passthrough mode it must have none. The choice
// counts until releaseParent.
func (n *Network) chooseParent(d *Definition) (string, error) {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	used := maps.Clone(n.chosenParents)
	for _, p := range n.ports {
		used[p.Parent]++
	}
	best := slices.MinFunc(d.Forward.Interfaces, func(a, b string) int { return cmp.Compare(used[a], used[b]) })
	if d.Forward.Mode == ForwardPassthrough && used[best] > 0 {
		return "", fault.New(fault.NoCapacity, fault.Network, "all %d interfaces of network %q are in use", len(d.Forward.Interfaces), n.name)
	}
	n.chosenParents[best]++
	return best, nil
}

// releaseParent ends that count: the NIC has become a port, or has failed.
func (p nicTarget) releaseParent() {
	if n := p.network; n != nil && p.parent != "" {
		n.portMu.Lock()
		n.chosenParents[p.parent]--
		n.portMu.Unlock()
	}
}

// openVhost opens vhost for a NIC that can use it.
func openVhost(a *device.NICAttachment, nic *device.NIC) error {
	switch {
	case nic.Backend == "qemu":
		a.VHostReason = "the definition asks for QEMU's own back end"
		return nil
	case !isVirtio(nic) && nic.Backend == "vhost":
		return fault.New(fault.Unsupported, fault.Config, "devices/interface/driver/@name: vhost serves models of virtio, not %s; leave the driver out, or use model virtio", nic.Model)
	case !isVirtio(nic):
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

func isVirtio(nic *device.NIC) bool { return strings.HasPrefix(nic.Model, "virtio") }

func (s *Networks) openTap(a *device.NICAttachment, nic *device.NIC, p nicTarget) error {
	t := hostnet.Tap{
		Queues: int(nic.Queues), VNetHeader: isVirtio(nic), MTU: p.mtu, Bridge: p.bridge, Isolated: p.isolated,
		Up: nic.Link != "down", Existing: p.existing,
	}
	if p.existing && nic.Target == "" {
		return unsuitableError("a NIC that brings its own tap needs the name of it as target")
	}
	if mac, err := net.ParseMAC(nic.MAC); err == nil && len(mac) == 6 && !p.existing {
		// Higher than any other address, so that the bridge never takes it for its own.
		mac[0] = 0xfe
		t.MAC = mac
	}
	return tryNames(nic.Target, "vnet%d", s.taps.Add, func(name string) (err error) {
		t.Name, a.IfName = name, name
		a.Tap, err = hostnet.OpenTransientTap(t)
		return err
	})
}

// noteFreeName records a name that no other link has. A nil note records nothing.
func noteFreeName(note func(ifName string) error, ifName string) error {
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

func (s *Networks) openMacvtap(a *device.NICAttachment, nic *device.NIC, p nicTarget, note func(ifName string) error) error {
	mac, err := net.ParseMAC(nic.MAC)
	if err != nil {
		return unsuitableError("%q is no MAC address", nic.MAC)
	}
	m := hostnet.Macvtap{
		Parent: p.parent, Mode: p.mode, MAC: mac, MTU: p.mtu,
		Queues: int(nic.Queues), VNetHeader: isVirtio(nic), Up: nic.Link != "down",
	}
	return tryNames(nic.Target, "macvtap%d", s.macvtaps.Add, func(name string) (err error) {
		if err := noteFreeName(note, name); err != nil {
			return err
		}
		m.Name, a.IfName = name, name
		a.Tap, err = hostnet.OpenMacvtap(m)
		return err
	})
}

// maxNames bounds the search for a free name; it exceeds the number of links of one host.
const maxNames = 1 << 16

// tryNames runs do with the given name, or with the names of a pattern until one is free. Numbers count up, so
// that a name is not reused at once by another guest.
func tryNames(given, row string, next func(uint64) uint64, do func(name string) error) error {
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
