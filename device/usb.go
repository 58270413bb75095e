package device

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// hubPorts is how many ports a USB hub has.
const hubPorts = 8

// usbPorts are how many ports a USB controller has, by its model; the USB 1
// parts of an ICH9 controller have those of its USB 2 part.
func usbPorts(c *Controller) uint {
	switch c.Model {
	case "piix3-uhci", "piix4-uhci", "vt82c686b-uhci":
		return 2
	case "pci-ohci":
		return 3
	case "ehci", "ich9-ehci1":
		return 6
	case "nec-xhci", "qemu-xhci":
		if c.Ports > 0 {
			return c.Ports
		}
		return 4
	}
	return 0
}

// AssignUSB gives every USB device without an address a free port, adding hubs
// where there are too few. Hubs come first: others may sit behind them.
func (s *Set) AssignUSB() error {
	s.addHubs()
	m, err := newUSBMap(s)
	if err != nil {
		return err
	}
	for _, d := range usbDevices(s) {
		if err := m.place(d); err != nil {
			return err
		}
	}
	return nil
}

// PlugUSB gives one device that is about to be plugged into a running guest a
// free port, and adds nothing.
func (s *Set) PlugUSB(d Device) error {
	if !isUSB(d) {
		return nil
	}
	m, err := newUSBMap(s)
	if err != nil {
		return err
	}
	return m.place(d)
}

// isUSB reports whether a device is plugged into a USB port.
func isUSB(d Device) bool {
	switch d := d.(type) {
	case *Disk:
		return d.Bus == "usb"
	case *Input:
		return d.Bus == "usb"
	case *HostDevice:
		return d.Type == "usb"
	case *Char:
		return d.TargetType == "usb-serial"
	case *Redir:
		return d.Bus == "usb"
	case *Hub:
		return d.Type == "usb"
	case *Sound:
		return d.Model == "usb"
	case *Controller:
		return d.Type == "ccid"
	}
	return false
}

func usbDevices(s *Set) []Device {
	var all []Device
	all = gather(all, s.Hubs)
	all = gather(all, s.HostDevices)
	all = gather(all, s.Disks)
	all = gather(all, s.Controllers)
	all = gather(all, s.Inputs)
	all = gather(all, s.Serials)
	all = gather(all, s.Sounds)
	all = gather(all, s.Redirs)
	return slices.DeleteFunc(all, func(d Device) bool { return !isUSB(d) })
}

// usbMap is which USB ports there are and which are taken.
type usbMap struct {
	set   *Set
	buses []uint // in ascending order
	ports map[uint]uint
	taken map[USB]bool
	hubs  []USB // where hubs sit, in the order in which they were found
}

func newUSBMap(s *Set) (*usbMap, error) {
	m := &usbMap{set: s, ports: map[uint]uint{}, taken: map[USB]bool{}}
	for _, c := range s.Controllers {
		if n := usbPorts(c); c.Type == "usb" && n > 0 {
			m.buses = append(m.buses, c.Index)
			m.ports[c.Index] = max(m.ports[c.Index], n)
		}
	}
	slices.Sort(m.buses)
	m.buses = slices.Compact(m.buses)
	for _, d := range usbDevices(s) {
		if at, ok := d.Common().Address.(USB); ok && at.Port != "" {
			if _, isHub := d.(*Hub); isHub {
				m.hubs = append(m.hubs, at)
			}
		}
	}
	for _, d := range usbDevices(s) {
		if at, ok := d.Common().Address.(USB); ok && at.Port != "" {
			if err := m.take(d, at); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

func (m *usbMap) take(d Device, at USB) error {
	if !m.exists(at) {
		return fault.New(fault.Invalid, fault.XML, "the %s cannot be at %s: the guest has no such port", d.Kind(), at)
	}
	if m.taken[at] {
		return fault.New(fault.Invalid, fault.XML, "two devices are at %s; the second is the %s", at, d.Kind())
	}
	m.taken[at] = true
	return nil
}

// maxUSBDepth is how many hubs may stand in a row, as the USB standard has it.
const maxUSBDepth = 5

func (m *usbMap) exists(at USB) bool {
	parent, last := "", at.Port
	if i := strings.LastIndexByte(at.Port, '.'); i >= 0 {
		parent, last = at.Port[:i], at.Port[i+1:]
	}
	number, err := strconv.ParseUint(last, 10, 8)
	if err != nil || number == 0 || strings.Count(at.Port, ".") > maxUSBDepth {
		return false
	}
	if parent == "" {
		return uint(number) <= m.ports[at.Bus]
	}
	return number <= hubPorts && slices.Contains(m.hubs, USB{Bus: at.Bus, Port: parent})
}

func (m *usbMap) place(d Device) error {
	info := d.Common()
	at, _ := info.Address.(USB)
	if at.Port != "" {
		return nil
	}
	var only *uint
	if info.Address != nil {
		only = &at.Bus // the bus is said, the port is not
	}
	at, ok := m.free(only)
	if !ok {
		return fault.New(fault.NoCapacity, fault.Device, "no free USB port for a %s; add a USB controller or hub to the domain's config", d.Kind())
	}
	info.Address = at
	if _, isHub := d.(*Hub); isHub {
		m.hubs = append(m.hubs, at)
	}
	return m.take(d, at)
}

// free finds the first free port, on controllers first and then behind hubs.
func (m *usbMap) free(only *uint) (USB, bool) {
	for _, bus := range m.buses {
		if only != nil && *only != bus {
			continue
		}
		for port := uint(1); port <= m.ports[bus]; port++ {
			at := USB{Bus: bus, Port: strconv.FormatUint(uint64(port), 10)}
			if !m.taken[at] {
				return at, true
			}
		}
	}
	for _, hub := range m.hubs {
		if only != nil && *only != hub.Bus {
			continue
		}
		for port := range hubPorts {
			at := USB{Bus: hub.Bus, Port: hub.Port + "." + strconv.Itoa(port+1)}
			if !m.taken[at] {
				return at, true
			}
		}
	}
	return USB{}, false
}

// addHubs adds as many hubs as are missing ports for: each gives eight and takes
// one.
func (s *Set) addHubs() {
	ports, needed := 0, len(usbDevices(s))
	buses := map[uint]uint{}
	for _, c := range s.Controllers {
		if c.Type == "usb" {
			buses[c.Index] = max(buses[c.Index], usbPorts(c))
		}
	}
	for _, n := range buses {
		ports += int(n)
	}
	for _, h := range s.Hubs {
		if isUSB(h) {
			ports += hubPorts
		}
	}
	if ports == 0 {
		return
	}
	for ; needed > ports; needed, ports = needed+1, ports+hubPorts {
		s.Hubs = append(s.Hubs, &Hub{Type: "usb"})
	}
}
