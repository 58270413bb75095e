package device

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Seat gives a device that is about to be added its place on a
// controller, unless it has one: the port of a channel, the number of a
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

// Controller finds a controller, or returns nil.
func (s *Set) Controller(kind string, index uint) *Controller {
	for _, c := range s.Controllers {
		if c.Type == kind && c.Index == index {
			return c
		}
	}
	return nil
}

func (s *Set) seatChar(d *Char, mayAdd bool) error {
	if !isPort(d) {
		if d.Role != Channel && !d.PortSaid {
			for _, other := range *s.chars(d.Role) {
				d.Port = max(d.Port, other.Port+1)
			}
			d.PortSaid = true
		}
		return nil
	}
	with := *s
	with.Controllers = slices.Clone(s.Controllers)
	with.Channels, with.Consoles = slices.Clone(s.Channels), slices.Clone(s.Consoles)
	if err := with.Add(d); err != nil {
		return err
	}
	with.addSerialControllers()
	m, err := newSerialMap(&with)
	if err != nil {
		return err
	}
	if mayAdd {
		m.reserveForConsoles(&with)
	} else { // QEMU has given ports to the consoles
		if _, err := m.consolePorts(s); err != nil {
			return err
		}
	}
	before := d.Address
	if err := m.assignAll(&with); err != nil {
		return err
	}
	switch {
	case len(with.Controllers) == len(s.Controllers):
		return nil
	case mayAdd:
		s.Controllers = with.Controllers
		return nil
	}
	d.Address = before
	return fault.New(fault.WrongState, fault.Device, "the running domain has no virtio-serial controller %d; attach one first",
		with.Controllers[len(s.Controllers)].Index)
}

func (s *Set) seatController(d *Controller) error {
	if d.Index != NoIndex {
		if s.Controller(d.Type, d.Index) != nil && !d.HasMaster {
			return fault.New(fault.Invalid, fault.XML, "the domain has a %s controller %d already", d.Type, d.Index)
		}
		return nil
	}
	taken := map[uint]bool{}
	for _, other := range s.Controllers {
		if other.Type == d.Type {
			taken[other.Index] = true
		}
	}
	for d.Index = 0; taken[d.Index]; {
		d.Index++
	}
	return nil
}
