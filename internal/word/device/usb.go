package device

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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

// AssignUSB gives every USB device without an address a free port, as libvirt does, and adds hubs where
// there are too few ports. Hubs come first: others may sit behind them.
func (s *Set) AssignUSB() error {
	devices := usbDevices(s)
	s.addHubs(len(devices))
	m, err := newUSBMap(s, devices)
	if err != nil {
		return err
	}
	for _, h := range s.Hubs {
		if err := m.place(h); err != nil {
			return err
		}
	}
	for _, d := range devices {
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
	m, err := newUSBMap(s, usbDevices(s))
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

// usbDevices are the USB devices in libvirt's order: hubs first.
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
	buses map[uint]*usbHub
	order []uint // of buses, ascending
}

// usbHub is a controller or hub: something with ports.
type usbHub struct {
	ports uint
	taken map[uint]bool
	hubs  map[uint]*usbHub // by the port that they are plugged into
	low   uint             // no port from 1 to this one is free
	full  bool             // no port is free here, nor behind the hubs here
}

func newUSBHub(ports uint) *usbHub {
	return &usbHub{ports: ports, taken: map[uint]bool{}, hubs: map[uint]*usbHub{}}
}

func newUSBMap(s *Set, devices []Device) (*usbMap, error) {
	m := &usbMap{buses: map[uint]*usbHub{}}
	for _, c := range s.Controllers {
		n := usbPorts(c)
		if c.Type != "usb" || n == 0 {
			continue
		}
		if m.buses[c.Index] != nil {
			return nil, fault.New(fault.Invalid, fault.XML, "two USB controllers have the index %d", c.Index)
		}
		m.buses[c.Index] = newUSBHub(n)
		m.order = append(m.order, c.Index)
	}
	slices.Sort(m.order)
	for _, d := range devices { // hubs are the first
		if at, ok := d.Common().Address.(USB); ok && at.Port != "" {
			if err := m.take(d, at); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// maxUSBDepth is how many numbers the path of a port may have: the controller's and those of hubs.
const maxUSBDepth = 4

// path takes the numbers of a port apart.
func (at USB) path() ([]uint, bool) {
	parts := strings.Split(at.Port, ".")
	if len(parts) > maxUSBDepth {
		return nil, false
	}
	path := make([]uint, len(parts))
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, 32)
		if err != nil || number == 0 {
			return nil, false
		}
		path[i] = uint(number)
	}
	return path, true
}

// take marks the port of a device, and opens those of a hub.
func (m *usbMap) take(d Device, at USB) error {
	hub := m.buses[at.Bus]
	path, ok := at.path()
	for ok && hub != nil && len(path) > 1 {
		hub, path = hub.hubs[path[0]], path[1:]
	}
	if !ok || hub == nil || path[0] > hub.ports {
		return fault.New(fault.Invalid, fault.XML, "the %s cannot be at %s: the guest has no such port", d.Kind(), at)
	}
	if hub.taken[path[0]] {
		return fault.New(fault.Invalid, fault.XML, "two devices are at %s; the second is the %s", at, d.Kind())
	}
	hub.taken[path[0]] = true
	if _, isHub := d.(*Hub); isHub {
		hub.hubs[path[0]] = newUSBHub(hubPorts)
		m.reopen(at)
	}
	return nil
}

// reopen notes that there are free ports again on the way to a new hub.
func (m *usbMap) reopen(at USB) {
	hub := m.buses[at.Bus]
	path, _ := at.path()
	for _, port := range path {
		hub.full = false
		hub = hub.hubs[port]
	}
}

func (m *usbMap) place(d Device) error {
	info := d.Common()
	at, _ := info.Address.(USB)
	if at.Port != "" || !isUSB(d) {
		return nil
	}
	buses := m.order
	if info.Address != nil {
		buses = []uint{at.Bus} // the bus is said, the port is not
	}
	at, ok := m.free(buses)
	if !ok {
		return m.full(d)
	}
	info.Address = at
	return m.take(d, at)
}

func (m *usbMap) full(d Device) error {
	if len(m.buses) == 0 {
		return fault.New(fault.Unsupported, fault.Config, "the %s needs USB, and the domain has no USB controller; take model='none' out, or add a controller of type usb", usbName(d))
	}
	return fault.New(fault.NoCapacity, fault.Device, "no free USB port for the %s; add a USB controller or hub to the domain's config", usbName(d))
}

// usbName names a device to its user.
func usbName(d Device) string {
	switch d := d.(type) {
	case *Disk:
		return "disk " + d.Target
	case *Input:
		return d.Type
	}
	return d.Kind()
}

// free finds the first free port of some buses.
func (m *usbMap) free(buses []uint) (USB, bool) {
	for _, bus := range buses {
		hub := m.buses[bus]
		if hub == nil {
			continue
		}
		if path := hub.free(1); path != nil {
			slices.Reverse(path)
			return USB{Bus: bus, Port: strings.Join(path, ".")}, true
		}
	}
	return USB{}, false
}

// free finds the first free port: here, or else behind the hubs here, in the order of their ports. It gives
// the path from the port up, or nil.
func (h *usbHub) free(depth int) []string {
	if h.full {
		return nil
	}
	for ; h.low < h.ports; h.low++ {
		if !h.taken[h.low+1] {
			return []string{strconv.FormatUint(uint64(h.low+1), 10)}
		}
	}
	if depth < maxUSBDepth {
		for _, port := range slices.Sorted(maps.Keys(h.hubs)) {
			if path := h.hubs[port].free(depth + 1); path != nil {
				return append(path, strconv.FormatUint(uint64(port), 10))
			}
		}
	}
	h.full = true
	return nil
}

// addHubs adds the hubs that are missing for a number of devices. Each gives eight ports and takes one. One
// port more than needed is planned.
func (s *Set) addHubs(devices int) {
	ports := 0
	for _, c := range s.Controllers {
		if c.Type == "usb" {
			ports += int(usbPorts(c))
		}
	}
	for _, h := range s.Hubs {
		if isUSB(h) {
			ports += hubPorts
		}
	}
	if ports == 0 || devices <= ports {
		return
	}
	for range (devices - ports + hubPorts - 1) / (hubPorts - 1) {
		s.Hubs = append(s.Hubs, &Hub{Type: "usb"})
	}
}
