package network

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Section is a part of a definition that can be changed alone.
type Section string

// The sections that can be changed, in virsh's words.
const (
	SectionDHCPHost         Section = "ip-dhcp-host"
	SectionDHCPRange        Section = "ip-dhcp-range"
	SectionForwardInterface Section = "forward-interface"
	SectionPortGroup        Section = "portgroup"
	SectionDNSHost          Section = "dns-host"
	SectionDNSTXT           Section = "dns-txt"
	SectionDNSSRV           Section = "dns-srv"
)

// Command is the change to a section.
type Command string

// The commands. Add refuses an existing entry, the others a missing one.
const (
	AddFirst Command = "add-first"
	AddLast  Command = "add-last"
	Modify   Command = "modify"
	Delete   Command = "delete"
)

// Affect says which definition of a network a change is for. Neither means the
// one in force.
type Affect struct{ Live, Config bool }

// Update is a change to one entry of one section.
type Update struct {
	Command Command
	Section Section
	Parent  int    // which <ip> the entry belongs to, from 0; -1 for the one that serves DHCP
	XML     string // the entry
	Affect  Affect
}

// Update changes the active definition, the stored one, or both.
func (n *Network) Update(ctx context.Context, sc scope.Scope, u Update) error {
	if err := sc.Check(); err != nil {
		return err
	}
	return n.edit(ctx, sc, u.Affect, func(d Definition) (Definition, error) {
		d, err := d.apply(u)
		if err != nil {
			return d, err
		}
		return d, d.check()
	})
}

// edit changes the definitions that a scope selects: all of them or none.
func (n *Network) edit(ctx context.Context, sc scope.Scope, s Affect, change func(Definition) (Definition, error)) error {
	return n.change(ctx, func() error {
		if err := n.ops.End(ctx, operation.Nothing); n.ops.Has(updateKind.Name) {
			return fault.Wrap(err, fault.Busy, fault.Network, "an earlier change of network %q is not completed or undone yet; this is tried again", n.name)
		}
		v := *n.View()
		live, config := s.Live, s.Config
		if !live && !config {
			live, config = v.Active(), !v.Active()
		}
		if live && !v.Active() {
			return fault.New(fault.WrongState, fault.Network, "network %q is not active", n.name)
		}
		if config && !v.Persistent() {
			return fault.New(fault.WrongState, fault.Network, "network %q is transient and has no stored definition", n.name)
		}
		after := v
		for _, part := range []struct {
			wanted bool
			d      **Definition
		}{{live, &after.Live}, {config, &after.Config}} {
			if !part.wanted {
				continue
			}
			changed, err := change(**part.d)
			if err != nil {
				return err
			}
			*part.d = &changed
		}
		if err := sc.ReserveNetwork(n.name, after.countStoredBytes()); err != nil {
			return err
		}
		return n.replace(ctx, sc, v, after)
	})
}

// replace applies and stores changed definitions. The caller has the turn.
func (n *Network) replace(ctx context.Context, sc scope.Scope, before, after View) (err error) {
	if after.Live == before.Live {
		if err := n.save(after); err != nil {
			return err
		}
		n.publish(after)
		return nil
	}
	u := &updateWork{Live: after.Live, n: n, before: before.Live, config: after.Config}
	if _, err := u.Live.storedXML(); err != nil {
		return err
	}
	if after.Config != before.Config {
		if u.Saved, err = after.record(); err != nil {
			return err
		}
	}
	return n.perform(ctx, sc, updateKind.Name, u)
}

// updateKind changes the running network and the stored definition, or neither. The record in the store
// decides: it has followed the operation, or it has not. For a change of the running network alone, its run
// record decides.
var updateKind = operation.Kind[*Network]{
	Name: "network-update", Version: 1, Class: operation.Change,
	Steps: []string{"service", "store", "run"}, Undo: []string{"service"},
	Bind: func(n *Network) operation.Work { return &updateWork{n: n} },
}

// updateWork is the payload.
type updateWork struct {
	Live  *Definition // that is to run
	Saved *record     `json:",omitempty"` // the record to store; nil: the stored one stays

	n            *Network
	id           string
	before       *Definition // of the daemon that began it
	config       *Definition // the stored definition before
	reconfigured bool        // what runs follows Live
}

// Steps implements operation.Work.
func (u *updateWork) Steps() []operation.Step {
	service := operation.Step{Name: "service", Effect: operation.Process, Do: u.reconfigure, Undo: u.undoReconfigure}
	run := operation.Step{Name: "run", Effect: operation.Process, Do: u.recordRunning}
	if u.Saved == nil {
		run.Decisive, run.Probe = true, u.probeRunning
		return []operation.Step{service, run}
	}
	return []operation.Step{service, {Name: "store", Effect: operation.Process, Decisive: true, Do: u.storeDefinition, Probe: u.probeStored}, run}
}

// Opened implements operation.Opener.
func (u *updateWork) Opened(op *operation.Operation) error {
	u.id = op.ID()
	return nil
}

func (u *updateWork) reconfigure(ctx context.Context) error {
	err := u.n.reconfigure(ctx, u.n.View().Live, u.Live)
	u.reconfigured = err == nil
	return err
}

// undoReconfigure restores a running network, however far the change had come. A network that is adopted follows its
// record, which does not have the change yet.
func (u *updateWork) undoReconfigure(ctx context.Context) error {
	n := u.n
	if u.before == nil {
		return nil
	}
	if n.service != nil {
		return n.reconfigure(ctx, u.Live, u.before)
	}
	if err := n.applyRules(u.before); err != nil {
		return err
	}
	return n.startService(ctx, u.before)
}

func (u *updateWork) storeDefinition(context.Context) error {
	if err := u.n.storeRecord(*u.Saved, u.id); err != nil {
		return err
	}
	v := *u.n.View()
	v.Config = u.config
	u.n.publish(v)
	return nil
}

func (u *updateWork) probeStored(context.Context, operation.Gone) (operation.Verdict, error) {
	if slices.Contains(u.n.followed, u.id) {
		return operation.Happened, nil
	}
	return operation.Never, nil
}

func (u *updateWork) probeRunning(context.Context, operation.Gone) (operation.Verdict, error) {
	r, err := u.n.readRunning()
	if r == nil || r.Followed != u.id {
		return operation.Never, err
	}
	return operation.Happened, nil
}

// recordRunning records the running state and publishes it. Before a network is adopted that is all, because it follows
// the record.
func (u *updateWork) recordRunning(ctx context.Context) error {
	n := u.n
	now := n.View()
	if now == nil || now.Live == nil {
		r, err := n.readRunning()
		if r == nil {
			return err // it was stopped
		}
		r.Definition, r.Followed = u.Live, u.id
		return n.writeRunning(*r)
	}
	if !u.reconfigured {
		if err := u.reconfigure(ctx); err != nil {
			return err
		}
	}
	err := n.writeRunning(running{Boot: n.networks.boot, Definition: u.Live, ChosenBridge: now.chosenBridge, Followed: u.id})
	if err == nil || u.Saved != nil { // the change is decided
		v := *now
		v.Live = u.Live
		n.publish(v)
	}
	return err
}

// reconfigure applies a changed definition to a running network.
func (n *Network) reconfigure(ctx context.Context, before, after *Definition) error {
	rules, some := after.rules()
	if some && !slices.Equal(before.Forward.Interfaces, after.Forward.Interfaces) {
		if err := n.networks.firewall.Apply(rules); err != nil {
			return err
		}
	}
	was, _ := before.dnsmasqContent()
	is, needed := after.dnsmasqContent()
	switch {
	case was == is:
		return nil
	case needed && n.service != nil && was.Config == is.Config:
		return n.service.Reload(is)
	}
	if err := n.stopService(ctx); err != nil {
		return err
	}
	return n.startService(ctx, after)
}

// apply returns the definition with one entry changed. Parts shared with the old definition are not modified.
func (d Definition) apply(u Update) (Definition, error) {
	switch u.Section {
	case SectionDHCPHost, SectionDHCPRange:
		return d.applyDHCP(u)
	case SectionForwardInterface, SectionPortGroup:
		return d.applyForward(u)
	case SectionDNSHost, SectionDNSTXT, SectionDNSSRV:
		return d.applyDNS(u)
	}
	return d, fault.New(fault.Unsupported, fault.Network, "section %q of a network cannot be changed alone; define the network again", u.Section)
}

func (d Definition) applyDHCP(u Update) (Definition, error) {
	i, err := d.dhcpParent(u)
	if err != nil {
		return d, err
	}
	dhcp := DHCP{}
	if d.IPs[i].DHCP != nil {
		dhcp = *d.IPs[i].DHCP
	}
	if err := d.checkOneDHCP(u, i); err != nil {
		return d, err
	}
	at := d.IPs[i].Address
	if u.Section == SectionDHCPHost {
		hosts := hosts
		hosts.check = func(h Host) error { return sameFamily("host", at, h.Address) }
		dhcp.Hosts, err = hosts.apply(u, d.Name, dhcp.Hosts)
	} else {
		if u.Command == Modify {
			return d, fault.New(fault.Unsupported, fault.Network, "a DHCP range cannot be modified; delete it and add another")
		}
		ranges := ranges
		ranges.check = func(r Range) error {
			return cmp.Or(sameFamily("range", at, r.First), sameFamily("range", at, r.Last))
		}
		dhcp.Ranges, err = ranges.apply(u, d.Name, dhcp.Ranges)
	}
	d.IPs = slices.Clone(d.IPs)
	d.IPs[i].DHCP = &dhcp
	return d, err
}

// sameFamily refuses an entry of IPv4 for an <ip> of IPv6, and the reverse.
func sameFamily(element string, of, given netip.Addr) error {
	if !given.IsValid() || given.Is4() == of.Is4() {
		return nil
	}
	return fault.New(fault.WrongState, fault.Network, "the address %s of the <%s> is not of the family of the <ip> %s that it is for", given, element, of)
}

// checkOneDHCP refuses DHCP on an <ip> if another one of its family has it.
func (d *Definition) checkOneDHCP(u Update, i int) error {
	if u.Command != AddFirst && u.Command != AddLast {
		return nil
	}
	for j, other := range d.IPs {
		if j != i && other.DHCP != nil && other.Address.Is4() == d.IPs[i].Address.Is4() {
			return fault.New(fault.WrongState, fault.Network, "network %q already serves DHCP on %s, and can do so on only one address of a family", d.Name, other.Address)
		}
	}
	return nil
}

// dhcpParent finds the <ip> of an entry: by number, else the one with DHCP, else the first of IPv4.
func (d *Definition) dhcpParent(u Update) (int, error) {
	if u.Parent >= len(d.IPs) || len(d.IPs) == 0 {
		return 0, fault.New(fault.WrongState, fault.Network, "network %q has no <ip> with the number %d", d.Name, u.Parent)
	}
	if u.Parent >= 0 {
		return u.Parent, nil
	}
	if i := slices.IndexFunc(d.IPs, func(ip IP) bool { return ip.DHCP != nil }); i >= 0 {
		return i, nil
	}
	return max(slices.IndexFunc(d.IPs, func(ip IP) bool { return ip.Address.Is4() }), 0), nil
}

func (d Definition) applyForward(u Update) (_ Definition, err error) {
	if u.Section == SectionPortGroup {
		d.PortGroups, err = portGroups.apply(u, d.Name, d.PortGroups)
		return d, err
	}
	if u.Command == Modify {
		return d, fault.New(fault.Unsupported, fault.Network, "an interface to forward to cannot be modified; delete it and add another")
	}
	if d.Forward.Mode == ForwardNone {
		return d, fault.New(fault.WrongState, fault.Network, "network %q is isolated and forwards to no interface", d.Name)
	}
	d.Forward.Interfaces, err = interfaces.apply(u, d.Name, d.Forward.Interfaces)
	return d, err
}

func (r *reader) forwardInterface(x libvirtxml.NetworkForwardInterface) string {
	if x.Dev == "" {
		r.fail("an <interface> to forward to has no dev")
	}
	return x.Dev
}

// portGroup refuses parts of a port group that Lodge does not support: guests would be in no VLAN.
func (r *reader) portGroup(x libvirtxml.NetworkPortGroup) PortGroup {
	if r.err == nil && (x.VLAN != nil || x.VirtualPort != nil || x.TrustGuestRxFilters != "") {
		r.err = fault.New(fault.Unsupported, fault.Config, "not supported: vlan, virtualport and trustGuestRxFilters of a portgroup")
	}
	if x.Name == "" {
		r.fail("a <portgroup> has no name")
	}
	return PortGroup{Name: x.Name, Default: r.yesNo("default", x.Default)}
}

func (d Definition) applyDNS(u Update) (_ Definition, err error) {
	if d.DNS.Enable == device.Off {
		return d, fault.New(fault.WrongState, fault.Network, "network %q serves no names", d.Name)
	}
	switch u.Section {
	case SectionDNSHost:
		d.DNS.Hosts, err = nameHosts.apply(u, d.Name, d.DNS.Hosts)
	case SectionDNSTXT:
		d.DNS.TXTs, err = txts.apply(u, d.Name, d.DNS.TXTs)
	case SectionDNSSRV:
		d.DNS.SRVs, err = srvs.apply(u, d.Name, d.DNS.SRVs)
	case SectionDHCPHost, SectionDHCPRange, SectionForwardInterface, SectionPortGroup:
	}
	return d, err
}
