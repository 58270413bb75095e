package network

import (
	"cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

// DisplayAddress is the listen address of a display with listen type network: the host's first address in the
// network.
func (s *Networks) DisplayAddress(name string) (string, error) {
	n, err := s.ByName(name)
	if err != nil {
		return "", err
	}
	d := n.View().Live
	if d == nil {
		return "", fault.New(fault.WrongState, fault.Network, "network %q is not active; start it", name)
	}
	if d.Managed() {
		if len(d.IPs) == 0 {
			return "", noAddress(name)
		}
		return d.IPs[0].Address.String(), nil
	}
	dev := ""
	if len(d.Forward.Interfaces) > 0 {
		dev = d.Forward.Interfaces[0]
	}
	if d.Forward.Mode == ForwardBridge {
		dev = cmp.Or(d.Bridge.Name, dev)
	}
	has, err := hostnet.Addresses(dev)
	if err != nil {
		return "", hostFault(err)
	}
	for _, a := range has {
		if !a.Addr().IsLinkLocalUnicast() {
			return a.Addr().String(), nil
		}
	}
	return "", noAddress(name)
}

func noAddress(name string) error {
	return fault.New(fault.Failed, fault.Network,
		"the host has no address in network %q for a display to listen on; give the display <listen type='address'/>", name)
}
