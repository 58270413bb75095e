package network

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// CheckBandwidth refuses unsupported limits of a NIC. The host can only drop what a guest sends, not delay it,
// and a floor would need limits on all other guests of the network.
func CheckBandwidth(nic *device.NIC) error {
	in := nic.Inbound
	switch {
	case nic.Outbound != nil:
		return unsupportedBandwidth(nic, "a bound of outbound traffic")
	case in == nil:
		return nil
	case nic.Type == "user" || nic.Type == "direct":
		return unsupportedBandwidth(nic, "a bound of traffic on interfaces of type "+nic.Type)
	case in.Floor != 0:
		return unsupportedBandwidth(nic, "a floor of inbound traffic")
	case in.Average == 0 || in.Average >= 1<<22 || in.Peak >= 1<<22 || in.Burst >= 1<<22:
		return fault.New(fault.Invalid, fault.Config, "interface %s: an inbound average is needed, and all bounds below %d KiB", nic.MAC, uint64(1)<<22)
	}
	return nil
}

func unsupportedBandwidth(nic *device.NIC, what string) error {
	return fault.New(fault.Unsupported, fault.Config, "interface %s: %s is not supported; inbound average, peak and burst are", nic.MAC, what)
}

// refuseOnLink refuses limits of a NIC that sends directly to a link of the host: its packets cannot be limited
// there.
func refuseOnLink(nic *device.NIC) error {
	if nic.Inbound == nil {
		return nil
	}
	return unsupportedBandwidth(nic, "a bound of traffic on a network that forwards to interfaces of the host directly")
}

// SetBandwidth sets the limits on the host's end of a NIC.
func SetBandwidth(nic *device.NIC, ifName string) error {
	if err := CheckBandwidth(nic); err != nil {
		return err
	}
	if nic.Inbound == nil {
		return hostnet.SetShape(ifName, nil)
	}
	if l, err := hostnet.ByName(ifName); err == nil && l.Kind == "macvtap" {
		return refuseOnLink(nic)
	}
	return hostnet.SetShape(ifName, &hostnet.Shape{
		Rate: nic.Inbound.Average << 10, Peak: nic.Inbound.Peak << 10, Burst: nic.Inbound.Burst << 10,
	})
}
