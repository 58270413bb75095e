package device

import (
	"math"

	"github.com/lodge-kvm/lodge/fault"
)

// NoIndex is the index of a controller that has none yet.
const NoIndex = math.MaxUint32

// Seat gives a device that is about to join the others its place on a
// controller, as far as it has none: the port of a channel, the number of a
// serial port, the index of a controller. The controller must be there, or is
// added when mayAdd is true. A place that is taken is refused.
func (s *Set) Seat(d Device, mayAdd bool) error {
	switch d := d.(type) {
	case *Disk:
		return s.seatDisk(d, mayAdd)
	case *Char:
		return s.seatChar(d, mayAdd)
	case *Controller:
		return s.seatController(d)
	}
	return nil
}

func (s *Set) seatDisk(d *Disk, mayAdd bool) error {
	at, ok := d.Address.(Drive)
	if !ok {
		return nil
	}
	for _, other := range s.Disks {
		if other.Bus == d.Bus && other.Address == d.Address {
			return fault.New(fault.Invalid, fault.XML, "disk %s cannot be at %s: disk %s is there", d.Target, at, other.Target)
		}
	}
	missing, err := s.MissingControllers(d, !mayAdd)
	switch {
	case err != nil || len(missing) == 0:
		return err
	case !mayAdd:
		return fault.New(fault.WrongState, fault.Device, "the running domain has no %s controller %d; attach one first", d.Bus, missing[0].Index)
	}
	s.Controllers = append(s.Controllers, missing...)
	return nil
}

// maxIndex bounds the controllers that an address can call for.
const maxIndex = 255

// require sees to it that a controller is there.
func (s *Set) require(kind string, index uint, model string, mayAdd bool) error {
	switch {
	case s.Controller(kind, index) != nil:
		return nil
	case index > maxIndex:
		return fault.New(fault.Invalid, fault.XML, "there cannot be a %s controller %d", kind, index)
	case !mayAdd:
		return fault.New(fault.WrongState, fault.Device, "the running domain has no %s controller %d; attach one first", kind, index)
	}
	s.Controllers = append(s.Controllers, &Controller{Type: kind, Index: index, Model: model})
	return nil
}

// Controller finds a controller, or gives nil.
func (s *Set) Controller(kind string, index uint) *Controller {
	for _, c := range s.Controllers {
		if c.Type == kind && c.Index == index {
			return c
		}
	}
	return nil
}

// serialPorts is how many ports a virtio-serial controller has unless it says
// otherwise.
const serialPorts = 31

func (s *Set) seatChar(d *Char, mayAdd bool) error {
	if d.TargetType != "virtio" {
		if d.Role != Channel && !d.PortSaid {
			for _, other := range *s.chars(d.Role) {
				d.Port = max(d.Port, other.Port+1)
			}
			d.PortSaid = true
		}
		return nil
	}
	taken := map[VirtioSerial]bool{}
	for _, group := range [][]*Char{s.Channels, s.Consoles} {
		for _, other := range group {
			if at, ok := other.Address.(VirtioSerial); ok {
				taken[at] = true
			}
		}
	}
	at, said := d.Address.(VirtioSerial)
	if said && taken[at] {
		return fault.New(fault.Invalid, fault.XML, "%s %q cannot be at %s: another is there", d.Role, d.Name, at)
	}
	for port := uint(1); !said; port++ {
		limit := uint(serialPorts)
		if c := s.Controller("virtio-serial", at.Controller); c != nil && c.Ports > 0 {
			limit = c.Ports
		}
		if port >= limit {
			at.Controller, port = at.Controller+1, 1
		}
		at.Port = port
		said = !taken[at]
	}
	d.Address = at
	return s.require("virtio-serial", at.Controller, "", mayAdd)
}

func (s *Set) seatController(d *Controller) error {
	if d.Index != NoIndex {
		if s.Controller(d.Type, d.Index) != nil && !d.HasMaster {
			return fault.New(fault.Invalid, fault.XML, "the domain has a %s controller %d already", d.Type, d.Index)
		}
		return nil
	}
	for d.Index = 0; s.Controller(d.Type, d.Index) != nil; {
		d.Index++
	}
	return nil
}
