package device

import (
	"cmp"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// serialPorts is how many ports a virtio-serial controller has unless it says otherwise. Port 0 is for a
// console.
const serialPorts = 31

// AssignSerial gives channels their ports on virtio-serial controllers and adds the controllers that are
// missing, as libvirt does. A console's port is left open; ConsolePorts returns the port that it gets at the start.
func (s *Set) AssignSerial() error {
	s.addSerialControllers()
	m, err := newSerialMap(s)
	if err != nil {
		return err
	}
	m.reserveForConsoles(s)
	return m.assignAll(s)
}

func (m *serialMap) assignAll(s *Set) (err error) {
	for _, c := range s.Channels {
		if !isPort(c) || !lacksPort(c) {
			continue
		}
		if c.Address, err = m.assign(c); err != nil {
			return err
		}
	}
	s.Controllers = append(s.Controllers, m.added...)
	return nil
}

// reserveForConsoles takes a port of controller 0 for each console whose address has port 0. The console
// stays at port 0; libvirt leaves that other port out when it gives channels theirs.
func (m *serialMap) reserveForConsoles(s *Set) {
	bus := m.byIdx[0]
	for _, c := range s.Consoles {
		at, said := c.Address.(VirtioSerial)
		if bus == nil || !isPort(c) || !said || at.Port != 0 {
			continue
		}
		if port, ok := bus.free(); ok {
			bus.taken[port] = true
		}
	}
}

// ConsolePorts returns ports for the virtio consoles without one: port 0 if it is free, or else the
// lowest that the channels leave.
func (s *Set) ConsolePorts() (map[*Char]VirtioSerial, error) {
	m, err := newSerialMap(s)
	if err != nil {
		return nil, err
	}
	return m.consolePorts(s)
}

func (m *serialMap) consolePorts(s *Set) (map[*Char]VirtioSerial, error) {
	ports := map[*Char]VirtioSerial{}
	for _, c := range s.Consoles {
		if !isPort(c) || c.Address != nil {
			continue
		}
		at, ok := m.keep()
		if !ok {
			return nil, fault.New(fault.NoCapacity, fault.Device, "no port is free for a console; add a controller of type virtio-serial")
		}
		ports[c] = at
	}
	return ports, nil
}

// isPort reports whether a character device is a port of a virtio-serial controller.
func isPort(c *Char) bool {
	return c.TargetType == "virtio" && (c.Role == Channel || c.Role == Console)
}

// lacksPort reports whether a channel does not say its port. Port 0 of an address means that it is still to
// be chosen.
func lacksPort(c *Char) bool {
	at, said := c.Address.(VirtioSerial)
	return !said || at.Port == 0
}

// addSerialControllers adds the controllers that ports are said to be on, and the first where any is.
func (s *Set) addSerialControllers() {
	there := map[uint]bool{}
	for _, c := range s.Controllers {
		if c.Type == "virtio-serial" {
			there[c.Index] = true
		}
	}
	for _, c := range slices.Concat(s.Channels, s.Consoles) {
		at, _ := c.Address.(VirtioSerial)
		if isPort(c) && !there[at.Controller] {
			there[at.Controller] = true
			s.Controllers = append(s.Controllers, &Controller{Type: "virtio-serial", Index: at.Controller})
		}
	}
}

// serialMap is which ports of virtio-serial controllers are taken.
type serialMap struct {
	buses []*serialBus // by index, ascending
	byIdx map[uint]*serialBus
	// open is the first bus that may have a free port, openZero the first that may have port 0 free, too.
	open, openZero int
	// added are the controllers that were added because all ports are taken.
	added []*Controller
}

type serialBus struct {
	index, ports uint
	taken        map[uint]bool
	low          uint // no port from 1 to this one is free
}

func newSerialMap(s *Set) (*serialMap, error) {
	m := &serialMap{byIdx: map[uint]*serialBus{}}
	for _, c := range s.Controllers {
		if c.Type == "virtio-serial" && m.byIdx[c.Index] == nil {
			m.addBus(c.Index, c.Ports)
		}
	}
	slices.SortFunc(m.buses, func(a, b *serialBus) int { return cmp.Compare(a.index, b.index) })
	for _, c := range slices.Concat(s.Channels, s.Consoles) {
		if !isPort(c) || c.Address == nil {
			continue
		}
		at, ok := c.Address.(VirtioSerial)
		if !ok {
			return nil, fault.New(fault.Invalid, fault.XML, "%s %q cannot sit at %s", c.Role, c.Name, c.Address)
		}
		if at.Port == 0 && c.Role == Channel {
			continue
		}
		if err := m.take(c, at); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *serialMap) addBus(index, ports uint) *serialBus {
	if ports == 0 {
		ports = serialPorts
	}
	bus := &serialBus{index: index, ports: ports, taken: map[uint]bool{}}
	m.buses = append(m.buses, bus)
	m.byIdx[index] = bus
	return bus
}

func (m *serialMap) take(c *Char, at VirtioSerial) error {
	bus := m.byIdx[at.Controller]
	switch {
	case bus == nil || at.Port >= bus.ports:
		return fault.New(fault.Invalid, fault.XML, "%s %q cannot be at %s: there is no such port", c.Role, c.Name, at)
	case bus.taken[at.Port]:
		return fault.New(fault.Invalid, fault.XML, "%s %q cannot be at %s: another device is there", c.Role, c.Name, at)
	}
	bus.taken[at.Port] = true
	return nil
}

// free returns the lowest free port from 1.
func (b *serialBus) free() (uint, bool) {
	for b.low+1 < b.ports {
		if !b.taken[b.low+1] {
			return b.low + 1, true
		}
		b.low++
	}
	return 0, false
}

// assign gives a channel a port: on its own controller where it says one, or else on the first that has a
// free port. Where all are full, a controller is added.
func (m *serialMap) assign(c *Char) (VirtioSerial, error) {
	if at, said := c.Address.(VirtioSerial); said {
		bus := m.byIdx[at.Controller]
		port, ok := bus.free()
		if !ok {
			return at, fault.New(fault.Invalid, fault.XML, "no port is free for %s %q on virtio-serial controller %d", c.Role, c.Name, at.Controller)
		}
		bus.taken[port] = true
		return VirtioSerial{Controller: at.Controller, Port: port}, nil
	}
	for ; m.open < len(m.buses); m.open++ {
		if port, ok := m.buses[m.open].free(); ok {
			return m.reserve(m.buses[m.open], port), nil
		}
	}
	return m.reserve(m.grow(), 1), nil
}

// keep reserves a port for a console.
func (m *serialMap) keep() (at VirtioSerial, ok bool) {
	for ; m.openZero < len(m.buses); m.openZero++ {
		bus := m.buses[m.openZero]
		if !bus.taken[0] {
			return m.reserve(bus, 0), true
		}
		if port, ok := bus.free(); ok {
			return m.reserve(bus, port), true
		}
	}
	return at, false
}

func (m *serialMap) reserve(bus *serialBus, port uint) VirtioSerial {
	bus.taken[port] = true
	return VirtioSerial{Controller: bus.index, Port: port}
}

// grow adds a controller of the lowest free index.
func (m *serialMap) grow() *serialBus {
	index := uint(0)
	for m.byIdx[index] != nil {
		index++
	}
	m.added = append(m.added, &Controller{Type: "virtio-serial", Index: index})
	return m.addBus(index, 0)
}
