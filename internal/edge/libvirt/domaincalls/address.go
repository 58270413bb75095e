package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// DomainAddressCalls return the host name and the addresses of a domain.
func DomainAddressCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainInterfaceAddresses, domainInterfaceAddresses)
	rpc.On(g, xdr.ProcDomainGetHostname, domainGetHostname)
}

// addressSources are the sources of a guest's addresses, by libvirt's numbers.
var addressSources = []hotplug.AddressSource{hotplug.ByLease, hotplug.ByAgent, hotplug.ByARP}

func domainInterfaceAddresses(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainInterfaceAddressesArgs) (*xdr.DomainInterfaceAddressesRet, error) {
	if err := rpc.CheckFlags("DOMAIN_INTERFACE_ADDRESSES", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.Source >= uint32(len(addressSources)) {
		return nil, rpc.WithCode(rpc.CodeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "unknown IP address data source %d", args.Source))
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	found, err := hotplug.Addresses(ctx, g, s.Scope, addressSources[args.Source])
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainInterfaceAddressesRet)
	for _, i := range found[:min(len(found), xdr.MaxDomainInterfaces)] {
		wire := xdr.DomainInterface{Name: i.Name, HWAddress: rpc.OptionalString(i.MAC)}
		for _, a := range i.Addresses[:min(len(i.Addresses), xdr.MaxDomainIPAddresses)] {
			address := xdr.DomainIPAddress{Address: a.IP, Prefix: uint32(a.Prefix)}
			if a.IPv6 {
				address.Type = 1
			}
			wire.Addresses = append(wire.Addresses, address)
		}
		ret.Interfaces = append(ret.Interfaces, wire)
	}
	return ret, nil
}

// Sources of a domain's host name. Without a flag, it is the agent.
const (
	hostnameLease = 1
	hostnameAgent = 2
)

func domainGetHostname(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetHostnameArgs) (*xdr.DomainGetHostnameRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_HOSTNAME", args.Flags, hostnameLease|hostnameAgent); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetHostnameRet)
	switch args.Flags {
	case hostnameLease | hostnameAgent:
		return nil, fault.New(fault.Invalid, fault.Call, "the flags lease and agent exclude each other")
	case hostnameLease:
		ret.Hostname, err = provision.LeaseHostname(g)
	default:
		ret.Hostname, err = provision.AgentHostname(ctx, g, s.Scope)
	}
	return ret, err
}
