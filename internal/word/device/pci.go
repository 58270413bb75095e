package device

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Board is the property of a machine type that decides where PCI devices sit.
type Board int

// The boards: one conventional bus, PCI Express, or no PCI at all.
const (
	NoPCI Board = iota
	I440FX
	Q35
)

// AssignPCI gives every PCI device without an address the one that libvirt gives it, and adds the bridges
// and ports that are missing. Given addresses stay. Two devices in one place are refused.
//
// A first pass only plans: it finds how many buses are needed. The bridges for them are added, and a second
// pass returns the addresses. Bridges come first in that order, so a device may move to another bus than
// planned.
func (s *Set) AssignPCI(b Board) error {
	if b == NoPCI {
		return s.refusePCI()
	}
	if err := s.planPCI(b); err != nil {
		return err
	}
	m, err := newPCIMap(s, b, false)
	if err != nil {
		return err
	}
	if err := m.placeFixed(); err != nil {
		return err
	}
	if err := m.placeRest(); err != nil {
		return err
	}
	s.markMultifunction()
	return s.checkBridges()
}

// planPCI adds the bridges and ports that the devices need. A machine with PCI Express whose definition has
// no ports yet gets one more than it needs, so that a device can be plugged in later.
func (s *Set) planPCI(b Board) error {
	m, err := newPCIMap(s, b, true)
	if err != nil {
		return err
	}
	if err := m.placeFixed(); err != nil {
		return err
	}
	if err := m.keepSlot(); err != nil {
		return err
	}
	if err := m.placeRest(); err != nil {
		return err
	}
	if b == Q35 && m.said == 1 && len(m.buses) > 1 {
		if err := m.reserveNext(express); err != nil {
			return err
		}
	}
	return m.addBridges()
}

// KeepPort adds a root port unless a port is free into which a device can be plugged while the guest runs.
// The addresses are complete before.
func (s *Set) KeepPort(b Board) error {
	if b != Q35 {
		return nil
	}
	m, err := newPCIMap(s, b, true)
	if err != nil {
		return err
	}
	if err := m.reserveNext(express); err != nil {
		return err
	}
	if err := m.addBridges(); err != nil {
		return err
	}
	return s.AssignPCI(b)
}

// PlugPCI gives one device that is about to be plugged into a running guest an address among those that can
// take it, and adds nothing.
func (s *Set) PlugPCI(d Device, b Board) error {
	need := slotsFor(d, Q35)
	if b == NoPCI {
		if need != 0 {
			return fault.New(fault.Unsupported, fault.Config, "this machine has no PCI bus to plug a %s into", d.Kind())
		}
		return nil
	}
	m, err := newPCIMap(s, b, false)
	if err != nil {
		return err
	}
	m.running = true
	if at, said := d.Common().Address.(PCI); said {
		return m.checkPlug(d, at)
	}
	return m.place(d)
}

// refusePCI finds devices that need a bus which the machine does not have. Virtio devices have a bus of
// their own there.
func (s *Set) refusePCI() error {
	for _, d := range s.All() {
		_, said := d.Common().Address.(PCI)
		if said || slotsFor(d, Q35) != 0 && !isVirtio(d) {
			return fault.New(fault.Unsupported, fault.Config, "this machine has no PCI bus for a %s", d.Kind())
		}
	}
	return nil
}

func isVirtio(d Device) bool {
	switch d := d.(type) {
	case *Disk:
		return d.Bus == "virtio"
	case *Controller:
		return d.Type == "virtio-serial" || strings.HasPrefix(d.Model, "virtio")
	case *NIC:
		return strings.HasPrefix(d.Model, "virtio")
	case *Input:
		return d.Bus == "virtio"
	case *Video:
		return d.Model == "virtio"
	case *Balloon, *RNG, *VSock:
		return true
	}
	return false
}

// markMultifunction marks function 0 of every slot that has further functions, unless the definition says
// that it has none.
func (s *Set) markMultifunction() {
	shared := map[PCI]bool{}
	for _, d := range s.All() {
		if at, ok := d.Common().Address.(PCI); ok && at.Function != 0 {
			shared[PCI{Domain: at.Domain, Bus: at.Bus, Slot: at.Slot}] = true
		}
	}
	for _, d := range s.All() {
		info := d.Common()
		if at, ok := info.Address.(PCI); ok && at.Function == 0 && at.Multifunction == Unset && shared[at] {
			at.Multifunction = On
			info.Address = at
		}
	}
}

// checkBridges finds bridges that sit below themselves, and pci-bridges that the firmware would number
// before the bus they are on.
func (s *Set) checkBridges() error {
	above := map[uint]uint{}
	for _, c := range s.Controllers {
		at, placed := c.Address.(PCI)
		if c.Type != "pci" || !placed {
			continue
		}
		if c.Model == "pci-bridge" && c.Index <= at.Bus {
			return fault.New(fault.Unsupported, fault.Config, "PCI controller %d sits on bus %d; the index of a pci-bridge must be larger than that of its bus", c.Index, at.Bus)
		}
		above[c.Index] = at.Bus
	}
	reaches := map[uint]bool{0: true} // buses from which the root is known to be reached
	for index := range above {
		var path []uint
		for at := index; !reaches[at]; at = above[at] {
			if _, placed := above[at]; !placed || len(path) > len(above) {
				return fault.New(fault.Invalid, fault.XML, "PCI controller %d does not hang from the root bus", index)
			}
			path = append(path, at)
		}
		for _, at := range path {
			reaches[at] = true
		}
	}
	return nil
}
