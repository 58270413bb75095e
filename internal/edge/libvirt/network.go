package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// networkCalls are the calls about virtual networks.
func networkCalls(g group) {
	on(g, xdr.ProcConnectNumOfNetworks, (*handlers).connectNumOfNetworks)
	on(g, xdr.ProcConnectListNetworks, (*handlers).connectListNetworks)
	on(g, xdr.ProcConnectNumOfDefinedNetworks, (*handlers).connectNumOfDefinedNetworks)
	on(g, xdr.ProcConnectListDefinedNetworks, (*handlers).connectListDefinedNetworks)
	on(g, xdr.ProcConnectListAllNetworks, (*handlers).connectListAllNetworks)
	on(g, xdr.ProcNetworkLookupByName, (*handlers).networkLookupByName)
	on(g, xdr.ProcNetworkLookupByUUID, (*handlers).networkLookupByUUID)
	on(g, xdr.ProcNetworkCreateXML, (*handlers).networkCreateXML)
	on(g, xdr.ProcNetworkCreateXMLFlags, (*handlers).networkCreateXMLFlags)
	on(g, xdr.ProcNetworkDefineXML, (*handlers).networkDefineXML)
	on(g, xdr.ProcNetworkDefineXMLFlags, (*handlers).networkDefineXMLFlags)
	on(g, xdr.ProcNetworkUndefine, (*handlers).networkUndefine)
	on(g, xdr.ProcNetworkCreate, (*handlers).networkCreate)
	on(g, xdr.ProcNetworkDestroy, (*handlers).networkDestroy)
	on(g, xdr.ProcNetworkGetXMLDesc, (*handlers).networkGetXMLDesc)
	on(g, xdr.ProcNetworkGetAutostart, (*handlers).networkGetAutostart)
	on(g, xdr.ProcNetworkSetAutostart, (*handlers).networkSetAutostart)
	on(g, xdr.ProcNetworkGetBridgeName, (*handlers).networkGetBridgeName)
	on(g, xdr.ProcNetworkIsActive, (*handlers).networkIsActive)
	on(g, xdr.ProcNetworkIsPersistent, (*handlers).networkIsPersistent)
	on(g, xdr.ProcNetworkUpdate, (*handlers).networkUpdate)
	on(g, xdr.ProcNetworkGetDHCPLeases, (*handlers).networkGetDHCPLeases)
	on(g, xdr.ProcNetworkSetMetadata, (*handlers).networkSetMetadata)
	on(g, xdr.ProcNetworkGetMetadata, (*handlers).networkGetMetadata)
	on(g, xdr.ProcNetworkListAllPorts, (*handlers).networkListAllPorts)
	on(g, xdr.ProcNetworkPortLookupByUUID, (*handlers).networkPortLookupByUUID)
}

// Flags of the calls about networks.
const (
	listNetworkInactive    = 1 << 0
	listNetworkActive      = 1 << 1
	listNetworkPersistent  = 1 << 2
	listNetworkTransient   = 1 << 3
	listNetworkAutostart   = 1 << 4
	listNetworkNoAutostart = 1 << 5
	listNetworkAll         = 1<<6 - 1

	networkXMLInactive = 1 << 0
	networkValidate    = 1 << 0
	networkLive        = 1 << 0
	networkConfig      = 1 << 1
)

// network finds the network that a client names, by its UUID: the name may be out of date.
func (h *handlers) network(n xdr.Network) (*network.Network, error) {
	return h.Networks.ByUUID(formatUUID(n.UUID))
}

func wireNetwork(n *network.Network) (xdr.Network, error) {
	id, err := parseUUID(n.UUID())
	return xdr.Network{Name: n.Name(), UUID: id}, err
}

func withNetwork(n *network.Network, err error) (*xdr.WithNetwork, error) {
	if err != nil {
		return nil, err
	}
	w, err := wireNetwork(n)
	return &xdr.WithNetwork{Network: w}, err
}

// networksThat gives the networks with a view that passes the test.
func (h *handlers) networksThat(s *session, take func(*network.View) bool) []*network.Network {
	var found []*network.Network
	for _, n := range h.Networks.List() {
		if take(n.View()) && s.seesNetwork(n) {
			found = append(found, n)
		}
	}
	return found
}

func isActive(v *network.View) bool   { return v.Active() }
func isInactive(v *network.View) bool { return !v.Active() }

func networkNames(found []*network.Network, room int32) (*xdr.WithNames, error) {
	ret := &xdr.WithNames{}
	for _, n := range found {
		ret.Names = append(ret.Names, n.Name())
	}
	return ret, atMost(&ret.Names, room)
}

func (h *handlers) connectNumOfNetworks(_ context.Context, s *request, _ *void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(h.networksThat(s.session, isActive)))}, nil
}

func (h *handlers) connectListNetworks(_ context.Context, s *request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return networkNames(h.networksThat(s.session, isActive), args.MaxNames)
}

func (h *handlers) connectNumOfDefinedNetworks(_ context.Context, s *request, _ *void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(h.networksThat(s.session, isInactive)))}, nil
}

func (h *handlers) connectListDefinedNetworks(_ context.Context, s *request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return networkNames(h.networksThat(s.session, isInactive), args.MaxNames)
}

func (h *handlers) connectListAllNetworks(_ context.Context, s *request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllNetworksRet, error) {
	if err := checkFlags("CONNECT_LIST_ALL_NETWORKS", args.Flags, listNetworkAll); err != nil {
		return nil, err
	}
	found := h.networksThat(s.session, func(v *network.View) bool {
		return either(args.Flags, listNetworkActive, listNetworkInactive, v.Active()) &&
			either(args.Flags, listNetworkPersistent, listNetworkTransient, v.Persistent()) &&
			either(args.Flags, listNetworkAutostart, listNetworkNoAutostart, v.Autostart)
	})
	ret := &xdr.ConnectListAllNetworksRet{Count: uint32(len(found))}
	if !args.NeedResults {
		return ret, nil
	}
	for _, n := range found {
		w, err := wireNetwork(n)
		if err != nil {
			return nil, err
		}
		ret.Networks = append(ret.Networks, w)
	}
	return ret, nil
}

// either reports whether a pair of filter flags admits an object. The object has (so) or
// lacks a property. With neither flag, and with both, every object passes.
func either(flags, ifSo, ifNot uint32, so bool) bool {
	switch flags & (ifSo | ifNot) {
	case ifSo:
		return so
	case ifNot:
		return !so
	}
	return true
}

func (h *handlers) networkLookupByName(_ context.Context, _ *request, args *xdr.WithName) (*xdr.WithNetwork, error) {
	return withNetwork(h.Networks.ByName(args.Name))
}

func (h *handlers) networkLookupByUUID(_ context.Context, _ *request, args *xdr.WithUUID) (*xdr.WithNetwork, error) {
	return withNetwork(h.Networks.ByUUID(formatUUID(args.UUID)))
}

func (h *handlers) networkCreateXML(ctx context.Context, s *request, args *xdr.WithXML) (*xdr.WithNetwork, error) {
	return withNetwork(h.Networks.Create(ctx, s.scope, args.XML, false))
}

func (h *handlers) networkCreateXMLFlags(ctx context.Context, s *request, args *xdr.WithXMLFlags) (*xdr.WithNetwork, error) {
	if err := checkFlags("NETWORK_CREATE_XML_FLAGS", args.Flags, networkValidate); err != nil {
		return nil, err
	}
	return withNetwork(h.Networks.Create(ctx, s.scope, args.XML, args.Flags&networkValidate != 0))
}

func (h *handlers) networkDefineXML(ctx context.Context, s *request, args *xdr.WithXML) (*xdr.WithNetwork, error) {
	return withNetwork(h.Networks.Define(ctx, s.scope, args.XML, false))
}

func (h *handlers) networkDefineXMLFlags(ctx context.Context, s *request, args *xdr.WithXMLFlags) (*xdr.WithNetwork, error) {
	if err := checkFlags("NETWORK_DEFINE_XML_FLAGS", args.Flags, networkValidate); err != nil {
		return nil, err
	}
	return withNetwork(h.Networks.Define(ctx, s.scope, args.XML, args.Flags&networkValidate != 0))
}

func (h *handlers) networkUndefine(ctx context.Context, s *request, args *xdr.WithNetwork) (*void, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Undefine(ctx, s.scope)
}

func (h *handlers) networkCreate(ctx context.Context, s *request, args *xdr.WithNetwork) (*void, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Start(ctx, s.scope)
}

func (h *handlers) networkDestroy(ctx context.Context, s *request, args *xdr.WithNetwork) (*void, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Destroy(ctx, s.scope)
}

func (h *handlers) networkGetXMLDesc(ctx context.Context, _ *request, args *xdr.NetworkGetXMLDescArgs) (*xdr.WithXML, error) {
	if err := checkFlags("NETWORK_GET_XML_DESC", args.Flags, networkXMLInactive); err != nil {
		return nil, err
	}
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	doc, err := inTurn(ctx, func() (string, error) { return n.XML(args.Flags&networkXMLInactive != 0) })
	return &xdr.WithXML{XML: doc}, err
}

func (h *handlers) networkGetAutostart(_ context.Context, _ *request, args *xdr.WithNetwork) (*xdr.WithAutostart, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return &xdr.WithAutostart{Autostart: n.View().Autostart}, nil
}

func (h *handlers) networkSetAutostart(ctx context.Context, s *request, args *xdr.NetworkSetAutostartArgs) (*void, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.SetAutostart(ctx, s.scope, args.Autostart)
}

func (h *handlers) networkGetBridgeName(_ context.Context, _ *request, args *xdr.WithNetwork) (*xdr.WithName, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	name, err := n.BridgeName()
	return &xdr.WithName{Name: name}, err
}

func (h *handlers) networkIsActive(_ context.Context, _ *request, args *xdr.WithNetwork) (*xdr.WithActive, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return &xdr.WithActive{Active: n.View().Active()}, nil
}

func (h *handlers) networkIsPersistent(_ context.Context, _ *request, args *xdr.WithNetwork) (*xdr.WithPersistent, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return &xdr.WithPersistent{Persistent: n.View().Persistent()}, nil
}

// networkSections and networkCommands are libvirt's numbers for the sections of a
// network that can be changed, and for the changes. Sections that can never be changed
// alone are listed, so that the error can name them.
var (
	networkSections = map[uint32]network.Section{
		1: "bridge", 2: "domain", 3: "ip", 4: network.SectionDHCPHost, 5: network.SectionDHCPRange,
		6: "forward", 7: network.SectionForwardInterface, 8: "forward-pf", 9: network.SectionPortGroup,
		10: network.SectionDNSHost, 11: network.SectionDNSTXT, 12: network.SectionDNSSRV,
	}
	networkCommands = map[uint32]network.Command{1: network.Modify, 2: network.Delete, 3: network.AddLast, 4: network.AddFirst}
)

func (h *handlers) networkUpdate(ctx context.Context, s *request, args *xdr.NetworkUpdateArgs) (*void, error) {
	affect, err := networkAffect("NETWORK_UPDATE", args.Flags)
	if err != nil {
		return nil, err
	}
	section, command := networkSections[args.Section], networkCommands[args.Command]
	if section == "" || command == "" {
		return nil, fault.New(fault.Unsupported, fault.Network, "there is no section %d of a network, or no command %d", args.Section, args.Command)
	}
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Update(ctx, s.scope, network.Update{
		Command: command, Section: section, Parent: int(args.ParentIndex), XML: args.XML, Affect: affect,
	})
}

func networkAffect(call string, flags uint32) (network.Affect, error) {
	err := checkFlags(call, flags, networkLive|networkConfig)
	return network.Affect{Live: flags&networkLive != 0, Config: flags&networkConfig != 0}, err
}

func (h *handlers) networkGetDHCPLeases(_ context.Context, _ *request, args *xdr.NetworkGetDHCPLeasesArgs) (*xdr.NetworkGetDHCPLeasesRet, error) {
	if err := checkFlags("NETWORK_GET_DHCP_LEASES", args.Flags, 0); err != nil {
		return nil, err
	}
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	wanted := ""
	if args.MAC != nil {
		mac, err := device.ParseMAC(*args.MAC)
		if err != nil {
			return nil, withCode(codeInvalidMAC, fault.Wrap(err, fault.Invalid, fault.Network, "cannot list the leases of a NIC"))
		}
		wanted = mac.String()
	}
	found, err := n.Leases(wanted)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NetworkGetDHCPLeasesRet{Count: uint32(len(found))}
	if !args.NeedResults {
		return ret, nil
	}
	for _, l := range found {
		ret.Leases = append(ret.Leases, wireLease(l))
	}
	return ret, nil
}

func wireLease(l network.Lease) xdr.NetworkDHCPLease {
	w := xdr.NetworkDHCPLease{
		Interface: l.Bridge, IPAddress: l.Address.String(), Prefix: uint32(l.Bits),
		MAC: optional(l.MAC), IAID: optional(l.IAID), Hostname: optional(l.Hostname), ClientID: optional(l.ClientID),
	}
	if !l.Expiry.IsZero() {
		w.ExpiryTime = l.Expiry.Unix()
	}
	if l.Address.Is6() {
		w.Type = 1
	}
	return w
}

// networkTexts are libvirt's numbers for the texts that describe a network.
var networkTexts = map[int32]network.Text{0: network.TextDescription, 1: network.TextTitle, 2: network.TextElement}

func networkText(number int32) (network.Text, error) {
	text := networkTexts[number]
	if text == "" {
		return "", fault.New(fault.Invalid, fault.Call, "there is no metadata of type %d", number)
	}
	return text, nil
}

func (h *handlers) networkSetMetadata(ctx context.Context, s *request, args *xdr.NetworkSetMetadataArgs) (*void, error) {
	affect, err := networkAffect("NETWORK_SET_METADATA", args.Flags)
	if err != nil {
		return nil, err
	}
	text, err := networkText(args.Type)
	if err != nil {
		return nil, err
	}
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.SetMetadata(ctx, s.scope, text, orEmpty(args.Metadata), orEmpty(args.Key), orEmpty(args.URI), affect)
}

func (h *handlers) networkGetMetadata(_ context.Context, _ *request, args *xdr.NetworkGetMetadataArgs) (*xdr.WithMetadata, error) {
	affect, err := networkAffect("NETWORK_GET_METADATA", args.Flags)
	if err != nil {
		return nil, err
	}
	text, err := networkText(args.Type)
	if err != nil {
		return nil, err
	}
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	found, err := n.Metadata(text, orEmpty(args.URI), affect)
	return &xdr.WithMetadata{Metadata: found}, err
}

// orEmpty is the inverse of optional.
func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// networkListAllPorts answers only for a network without plugged-in NICs. Plugged-in
// NICs have no port objects with UUIDs of their own, and an answer may not omit them.
func (h *handlers) networkListAllPorts(_ context.Context, _ *request, args *xdr.NetworkListAllPortsArgs) (*xdr.NetworkListAllPortsRet, error) {
	if err := checkFlags("NETWORK_LIST_ALL_PORTS", args.Flags, 0); err != nil {
		return nil, err
	}
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	if !n.View().Active() {
		return nil, fault.New(fault.WrongState, fault.Network, "network %q is not active", n.Name())
	}
	if plugged := n.Connections(); plugged > 0 {
		return nil, withCode(codeNoSupport, fault.New(fault.Unsupported, fault.Network,
			"net-port-list of network %q with %d NICs is not built; virsh domiflist lists the NICs of a guest", n.Name(), plugged))
	}
	return &xdr.NetworkListAllPortsRet{}, nil
}

func (h *handlers) networkPortLookupByUUID(_ context.Context, _ *request, args *xdr.NetworkPortLookupByUUIDArgs) (*xdr.WithPort, error) {
	n, err := h.network(args.Network)
	if err != nil {
		return nil, err
	}
	return nil, withCode(codeNoNetworkPort, fault.New(fault.NotFound, fault.Network, "network %q has no port with UUID %s", n.Name(), formatUUID(args.UUID)))
}
