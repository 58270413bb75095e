package hotplug

import (
	"context"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// AddressSource is the source that is asked for a guest's addresses.
type AddressSource int

// The sources: DHCP leases of Lodge's own networks, the guest's agent, and the neighbours that the host has
// seen on its links.
const (
	ByLease AddressSource = iota
	ByAgent
	ByARP
)

// Interface is one interface of a guest with its addresses.
type Interface struct {
	Name, MAC string
	Addresses []Address
}

// Address is an IP address with its prefix length.
type Address struct {
	IP     string
	Prefix uint
	IPv6   bool
}

// Addresses returns the addresses of a running guest that the source knows.
func Addresses(ctx context.Context, g *machine.Guest, sc scope.Scope, source AddressSource) ([]Interface, error) {
	v := g.View()
	if v.Active == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	switch source {
	case ByLease:
		return leasedAddresses(g.Reg, v.Active)
	case ByAgent:
		return agentAddresses(ctx, g, sc)
	case ByARP:
		return seenAddresses(v.Active)
	}
	return nil, fault.New(fault.Invalid, fault.Call, "unknown data source %d", source)
}

func leasedAddresses(r *machine.Registry, def *domain.Definition) ([]Interface, error) {
	var all []Interface
	for _, n := range def.Devices.NICs {
		if n.Type != "network" {
			continue
		}
		net, err := r.Networks.ByName(n.Network)
		if err != nil {
			continue // the network is gone since
		}
		leases, err := net.Leases(n.MAC)
		if err != nil {
			return nil, err
		}
		i := Interface{Name: n.Target, MAC: n.MAC}
		for _, l := range leases {
			i.Addresses = append(i.Addresses, Address{IP: l.Address.String(), Prefix: uint(l.Bits), IPv6: l.Address.Is6()})
		}
		if len(i.Addresses) > 0 {
			all = append(all, i)
		}
	}
	return all, nil
}

func seenAddresses(def *domain.Definition) ([]Interface, error) {
	neighbours, err := hostnet.Neighbours()
	if err != nil {
		return nil, err
	}
	var all []Interface
	for _, n := range def.Devices.NICs {
		i := Interface{Name: n.Target, MAC: n.MAC}
		for _, seen := range neighbours {
			if strings.EqualFold(seen.MAC.String(), n.MAC) {
				i.Addresses = append(i.Addresses, Address{IP: seen.Address.String(), IPv6: seen.Address.Is6()})
			}
		}
		if len(i.Addresses) > 0 {
			all = append(all, i)
		}
	}
	return all, nil
}

// maxInterfaces bounds how many interfaces an agent may report.
const maxInterfaces = 1024

func agentAddresses(ctx context.Context, g *machine.Guest, sc scope.Scope) ([]Interface, error) {
	var answer []struct {
		Name      string
		MAC       string `json:"hardware-address"`
		Addresses []struct {
			Type   string `json:"ip-address-type"`
			IP     string `json:"ip-address"`
			Prefix uint
		} `json:"ip-addresses"`
	}
	if err := provision.Agent(ctx, g, sc, "guest-network-get-interfaces", nil, &answer, 0); err != nil {
		return nil, err
	}
	if len(answer) > maxInterfaces {
		return nil, fault.New(fault.Failed, fault.Agent, "the agent reports %d interfaces, more than a guest can have", len(answer))
	}
	all := make([]Interface, 0, len(answer))
	for _, a := range answer {
		i := Interface{Name: provision.Printable(a.Name), MAC: provision.Printable(a.MAC)}
		for _, ip := range a.Addresses[:min(len(a.Addresses), maxInterfaces)] {
			i.Addresses = append(i.Addresses, Address{IP: provision.Printable(ip.IP), Prefix: ip.Prefix, IPv6: ip.Type == "ipv6"})
		}
		all = append(all, i)
	}
	return all, nil
}
