package hotplug

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// findNIC finds an interface by its MAC address or by its name on the host.
func findNIC(def *domain.Definition, name string) *device.NIC {
	for _, n := range def.Devices.NICs {
		if name != "" && (n.Target == name || n.MAC == name) {
			return n
		}
	}
	return nil
}

// InterfaceStats returns the traffic of a running guest's interface, by its MAC address or its name on the
// host. The kernel counts it: QEMU is not asked.
func InterfaceStats(g *machine.Guest, name string) (machine.NICStats, error) {
	v := g.View()
	if v.Active == nil {
		return machine.NICStats{}, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	n := findNIC(v.Active, name)
	if n == nil {
		return machine.NICStats{}, fault.New(fault.Invalid, fault.Call, "invalid path, '%s' is not a known interface", name)
	}
	st, found := statistics.NICStats(g.Reg, n, machine.Counted{})
	if !found {
		return machine.NICStats{}, fault.New(fault.Unsupported, fault.Interface, "the host does not count the traffic of interface %s of type %s", name, n.Type)
	}
	return st, nil
}
