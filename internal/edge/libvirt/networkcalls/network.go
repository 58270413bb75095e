package networkcalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// NetworkCalls are the calls about virtual networks.
func NetworkCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectNumOfNetworks, connectNumOfNetworks)
	rpc.On(g, xdr.ProcConnectListNetworks, connectListNetworks)
	rpc.On(g, xdr.ProcConnectNumOfDefinedNetworks, connectNumOfDefinedNetworks)
	rpc.On(g, xdr.ProcConnectListDefinedNetworks, connectListDefinedNetworks)
	rpc.On(g, xdr.ProcConnectListAllNetworks, connectListAllNetworks)
	rpc.On(g, xdr.ProcNetworkLookupByName, networkLookupByName)
	rpc.On(g, xdr.ProcNetworkLookupByUUID, networkLookupByUUID)
	rpc.On(g, xdr.ProcNetworkCreateXML, networkCreateXML)
	rpc.On(g, xdr.ProcNetworkCreateXMLFlags, networkCreateXMLFlags)
	rpc.On(g, xdr.ProcNetworkDefineXML, networkDefineXML)
	rpc.On(g, xdr.ProcNetworkDefineXMLFlags, networkDefineXMLFlags)
	rpc.On(g, xdr.ProcNetworkUndefine, networkUndefine)
	rpc.On(g, xdr.ProcNetworkCreate, networkCreate)
	rpc.On(g, xdr.ProcNetworkDestroy, networkDestroy)
	rpc.On(g, xdr.ProcNetworkGetXMLDesc, networkGetXMLDesc)
	rpc.On(g, xdr.ProcNetworkGetAutostart, networkGetAutostart)
	rpc.On(g, xdr.ProcNetworkSetAutostart, networkSetAutostart)
	rpc.On(g, xdr.ProcNetworkGetBridgeName, networkGetBridgeName)
	rpc.On(g, xdr.ProcNetworkIsActive, networkIsActive)
	rpc.On(g, xdr.ProcNetworkIsPersistent, networkIsPersistent)
	rpc.On(g, xdr.ProcNetworkUpdate, networkUpdate)
	rpc.On(g, xdr.ProcNetworkGetDHCPLeases, networkGetDHCPLeases)
	rpc.On(g, xdr.ProcNetworkSetMetadata, networkSetMetadata)
	rpc.On(g, xdr.ProcNetworkGetMetadata, networkGetMetadata)
	rpc.On(g, xdr.ProcNetworkListAllPorts, networkListAllPorts)
	rpc.On(g, xdr.ProcNetworkPortLookupByUUID, networkPortLookupByUUID)
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

// findNetwork finds the network that a client names, by its UUID: the name may be out of date.
func findNetwork(h *rpc.Handlers, n xdr.Network) (*network.Network, error) {
	return h.Networks.ByUUID(rpc.FormatUUID(n.UUID))
}

func wireNetwork(n *network.Network) (xdr.Network, error) {
	id, err := rpc.ParseUUID(n.UUID())
	return xdr.Network{Name: n.Name(), UUID: id}, err
}

func networkReply(n *network.Network, err error) (*xdr.WithNetwork, error) {
	if err != nil {
		return nil, err
	}
	w, err := wireNetwork(n)
	return &xdr.WithNetwork{Network: w}, err
}

// visibleNetworks returns the networks that match and that the client may see.
func visibleNetworks(h *rpc.Handlers, s *rpc.Session, match func(*network.View) bool) []*network.Network {
	var found []*network.Network
	for _, n := range h.Networks.List() {
		if match(n.View()) && s.CanSeeNetwork(n) {
			found = append(found, n)
		}
	}
	return found
}

func isActive(v *network.View) bool { return v.Active() }

func isInactive(v *network.View) bool { return !v.Active() }

func networkNames(found []*network.Network, room int32) (*xdr.WithNames, error) {
	ret := &xdr.WithNames{}
	for _, n := range found {
		ret.Names = append(ret.Names, n.Name())
	}
	return ret, rpc.TruncateList(&ret.Names, room)
}

func connectNumOfNetworks(_ context.Context, h *rpc.Handlers, s *rpc.Request, _ *rpc.Void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(visibleNetworks(h, s.Session, isActive)))}, nil
}

func connectListNetworks(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return networkNames(visibleNetworks(h, s.Session, isActive), args.MaxNames)
}

func connectNumOfDefinedNetworks(_ context.Context, h *rpc.Handlers, s *rpc.Request, _ *rpc.Void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(visibleNetworks(h, s.Session, isInactive)))}, nil
}

func connectListDefinedNetworks(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return networkNames(visibleNetworks(h, s.Session, isInactive), args.MaxNames)
}

func connectListAllNetworks(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllNetworksRet, error) {
	if err := rpc.CheckFlags("CONNECT_LIST_ALL_NETWORKS", args.Flags, listNetworkAll); err != nil {
		return nil, err
	}
	found := visibleNetworks(h, s.Session, func(v *network.View) bool {
		return rpc.MatchesFilter(args.Flags, listNetworkActive, listNetworkInactive, v.Active()) &&
			rpc.MatchesFilter(args.Flags, listNetworkPersistent, listNetworkTransient, v.Persistent()) &&
			rpc.MatchesFilter(args.Flags, listNetworkAutostart, listNetworkNoAutostart, v.Autostart)
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

func networkLookupByName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithName) (*xdr.WithNetwork, error) {
	return networkReply(h.Networks.ByName(args.Name))
}

func networkLookupByUUID(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithUUID) (*xdr.WithNetwork, error) {
	return networkReply(h.Networks.ByUUID(rpc.FormatUUID(args.UUID)))
}

func networkCreateXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXML) (*xdr.WithNetwork, error) {
	return networkReply(h.Networks.Create(ctx, s.Scope, args.XML, false))
}

func networkCreateXMLFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXMLFlags) (*xdr.WithNetwork, error) {
	if err := rpc.CheckFlags("NETWORK_CREATE_XML_FLAGS", args.Flags, networkValidate); err != nil {
		return nil, err
	}
	return networkReply(h.Networks.Create(ctx, s.Scope, args.XML, args.Flags&networkValidate != 0))
}

func networkDefineXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXML) (*xdr.WithNetwork, error) {
	return networkReply(h.Networks.Define(ctx, s.Scope, args.XML, false))
}

func networkDefineXMLFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXMLFlags) (*xdr.WithNetwork, error) {
	if err := rpc.CheckFlags("NETWORK_DEFINE_XML_FLAGS", args.Flags, networkValidate); err != nil {
		return nil, err
	}
	return networkReply(h.Networks.Define(ctx, s.Scope, args.XML, args.Flags&networkValidate != 0))
}

func networkUndefine(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithNetwork) (*rpc.Void, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Undefine(ctx, s.Scope)
}

func networkCreate(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithNetwork) (*rpc.Void, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Start(ctx, s.Scope)
}

func networkDestroy(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithNetwork) (*rpc.Void, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Destroy(ctx, s.Scope)
}

func networkGetXMLDesc(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NetworkGetXMLDescArgs) (*xdr.WithXML, error) {
	if err := rpc.CheckFlags("NETWORK_GET_XML_DESC", args.Flags, networkXMLInactive); err != nil {
		return nil, err
	}
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	doc, err := rpc.RunFair(ctx, func() (string, error) { return n.XML(args.Flags&networkXMLInactive != 0) })
	return &xdr.WithXML{XML: doc}, err
}

func networkGetAutostart(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithNetwork) (*xdr.WithAutostart, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return &xdr.WithAutostart{Autostart: n.View().Autostart}, nil
}

func networkSetAutostart(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NetworkSetAutostartArgs) (*rpc.Void, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.SetAutostart(ctx, s.Scope, args.Autostart)
}

func networkGetBridgeName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithNetwork) (*xdr.WithName, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	name, err := n.BridgeName()
	return &xdr.WithName{Name: name}, err
}

func networkIsActive(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithNetwork) (*xdr.WithActive, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return &xdr.WithActive{Active: n.View().Active()}, nil
}

func networkIsPersistent(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithNetwork) (*xdr.WithPersistent, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return &xdr.WithPersistent{Persistent: n.View().Persistent()}, nil
}

// networkSections and networkCommands are libvirt's numbers of the sections of a network
// and of the commands that change one. Sections that NETWORK_UPDATE cannot change are
// listed, so that the error can name them.
var (
	networkSections = map[uint32]network.Section{
		1: "bridge", 2: "domain", 3: "ip", 4: network.SectionDHCPHost, 5: network.SectionDHCPRange,
		6: "forward", 7: network.SectionForwardInterface, 8: "forward-pf", 9: network.SectionPortGroup,
		10: network.SectionDNSHost, 11: network.SectionDNSTXT, 12: network.SectionDNSSRV,
	}
	networkCommands = map[uint32]network.Command{1: network.Modify, 2: network.Delete, 3: network.AddLast, 4: network.AddFirst}
)

func networkUpdate(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NetworkUpdateArgs) (*rpc.Void, error) {
	affect, err := networkAffect("NETWORK_UPDATE", args.Flags)
	if err != nil {
		return nil, err
	}
	section, command := networkSections[args.Section], networkCommands[args.Command]
	if section == "" || command == "" {
		return nil, fault.New(fault.Unsupported, fault.Network, "there is no section %d of a network, or no command %d", args.Section, args.Command)
	}
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.Update(ctx, s.Scope, network.Update{
		Command: command, Section: section, Parent: int(args.ParentIndex), XML: args.XML, Affect: affect,
	})
}

func networkAffect(call string, flags uint32) (network.Affect, error) {
	err := rpc.CheckFlags(call, flags, networkLive|networkConfig)
	return network.Affect{Live: flags&networkLive != 0, Config: flags&networkConfig != 0}, err
}

func networkGetDHCPLeases(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NetworkGetDHCPLeasesArgs) (*xdr.NetworkGetDHCPLeasesRet, error) {
	if err := rpc.CheckFlags("NETWORK_GET_DHCP_LEASES", args.Flags, 0); err != nil {
		return nil, err
	}
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	wanted := ""
	if args.MAC != nil {
		mac, err := device.ParseMAC(*args.MAC)
		if err != nil {
			return nil, rpc.WithCode(rpc.CodeInvalidMAC, fault.Wrap(err, fault.Invalid, fault.Network, "cannot list the leases of a NIC"))
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
		MAC: rpc.OptionalString(l.MAC), IAID: rpc.OptionalString(l.IAID), Hostname: rpc.OptionalString(l.Hostname), ClientID: rpc.OptionalString(l.ClientID),
	}
	if !l.Expiry.IsZero() {
		w.ExpiryTime = l.Expiry.Unix()
	}
	if l.Address.Is6() {
		w.Type = 1
	}
	return w
}

// networkTexts are libvirt's numbers of the types of a network's metadata.
var networkTexts = map[int32]network.Text{0: network.TextDescription, 1: network.TextTitle, 2: network.TextElement}

func networkText(number int32) (network.Text, error) {
	text := networkTexts[number]
	if text == "" {
		return "", fault.New(fault.Invalid, fault.Call, "there is no metadata of type %d", number)
	}
	return text, nil
}

func networkSetMetadata(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NetworkSetMetadataArgs) (*rpc.Void, error) {
	affect, err := networkAffect("NETWORK_SET_METADATA", args.Flags)
	if err != nil {
		return nil, err
	}
	text, err := networkText(args.Type)
	if err != nil {
		return nil, err
	}
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, n.SetMetadata(ctx, s.Scope, text, rpc.StringValue(args.Metadata), rpc.StringValue(args.Key), rpc.StringValue(args.URI), affect)
}

func networkGetMetadata(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NetworkGetMetadataArgs) (*xdr.WithMetadata, error) {
	affect, err := networkAffect("NETWORK_GET_METADATA", args.Flags)
	if err != nil {
		return nil, err
	}
	text, err := networkText(args.Type)
	if err != nil {
		return nil, err
	}
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	found, err := n.Metadata(text, rpc.StringValue(args.URI), affect)
	return &xdr.WithMetadata{Metadata: found}, err
}

// networkListAllPorts answers only for a network without connected NICs. NICs have no
// port objects with UUIDs here, and a list without them would be wrong.
func networkListAllPorts(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NetworkListAllPortsArgs) (*xdr.NetworkListAllPortsRet, error) {
	if err := rpc.CheckFlags("NETWORK_LIST_ALL_PORTS", args.Flags, 0); err != nil {
		return nil, err
	}
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	if !n.View().Active() {
		return nil, fault.New(fault.WrongState, fault.Network, "network %q is not active", n.Name())
	}
	if nics := n.Connections(); nics > 0 {
		return nil, rpc.WithCode(rpc.CodeNoSupport, fault.New(fault.Unsupported, fault.Network,
			"net-port-list of network %q with %d NICs is not built; virsh domiflist lists the NICs of a guest", n.Name(), nics))
	}
	return &xdr.NetworkListAllPortsRet{}, nil
}

func networkPortLookupByUUID(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NetworkPortLookupByUUIDArgs) (*xdr.WithPort, error) {
	n, err := findNetwork(h, args.Network)
	if err != nil {
		return nil, err
	}
	return nil, rpc.WithCode(rpc.CodeNoNetworkPort, fault.New(fault.NotFound, fault.Network, "network %q has no port with UUID %s", n.Name(), rpc.FormatUUID(args.UUID)))
}
