package device

import "github.com/lodge-kvm/lodge/internal/base/fault"

// The places that QEMU's boards and libvirt's habit fix on the root bus.
const (
	videoSlotFX  = 0x02
	videoSlot35  = 0x01
	soundSlot35  = 0x1b
	dmiSlot35    = 0x1e
	boardSlotFX  = 0x01
	boardSlot35  = 0x1f
	otherUSBSlot = 0x1a
)

// usbSlots35 are the slots of the ICH9 USB controllers on a Q35 board.
var usbSlots35 = []uint{0x1d, otherUSBSlot}

// placeRest gives every device without an address a place, in libvirt's order.
func (m *pciMap) placeRest() error {
	for _, d := range placementOrder(m.set) {
		if err := m.place(d); err != nil {
			return err
		}
	}
	return nil
}

// placementOrder is the order in which libvirt assigns addresses: controllers with buses, then interfaces, sound,
// other controllers, disks and the rest.
func placementOrder(s *Set) []Device {
	var all []Device
	var others []*Controller
	for _, c := range s.Controllers {
		if c.Type == "pci" {
			all = append(all, c)
		} else {
			others = append(others, c)
		}
	}
	all = gather(all, s.NICs)
	all = gather(all, s.Sounds)
	all = gather(all, others)
	all = gather(all, s.Disks)
	all = gather(all, s.HostDevices)
	if s.Balloon != nil {
		all = append(all, s.Balloon)
	}
	all = gather(all, s.RNGs)
	all = gather(all, s.Watchdogs)
	all = gather(all, s.Videos)
	all = gather(all, s.Inputs)
	all = gather(all, s.Serials)
	if s.VSock != nil {
		all = append(all, s.VSock)
	}
	return gather(all, s.Panics)
}

// place assigns an address to a device without one.
func (m *pciMap) place(d Device) error {
	need := slotsFor(d, m.board)
	if d.Common().Address != nil || need == 0 {
		return nil
	}
	if c, ok := d.(*Controller); ok {
		if function, isPart := ich9Functions[c.Model]; c.Type == "usb" && isPart {
			return m.placePart(c, function)
		}
	}
	at, err := m.next(need, 0)
	if err != nil {
		return err
	}
	return m.give(d, at, need)
}

// give notes a place that was chosen.
func (m *pciMap) give(d Device, at PCI, need slots) error {
	if err := m.take(d.Kind(), at, need); err != nil {
		return err
	}
	if !m.planning {
		d.Common().Address = at
		m.notePart(d, at)
	}
	return nil
}

// ich9Functions are the functions of one slot that the parts of an ICH9 USB controller have.
var ich9Functions = map[string]uint{"ich9-uhci1": 0, "ich9-uhci2": 1, "ich9-uhci3": 2, "ich9-ehci1": 7}

// placePart puts a part of an ICH9 USB controller into the slot of the others, or into a free one.
func (m *pciMap) placePart(c *Controller, function uint) (err error) {
	at, found := m.parts[c.Index]
	if found {
		at.Function, at.Multifunction = function, Unset
		err = m.check(c, at, conventional)
	} else {
		at, err = m.next(conventional, function)
	}
	if err != nil {
		return err
	}
	if function == 0 {
		at.Multifunction = On
	}
	return m.give(c, at, conventional)
}

// notePart keeps the place of a part of an ICH9 USB controller for the others.
func (m *pciMap) notePart(d Device, at PCI) {
	c, ok := d.(*Controller)
	if !ok || c.Type != "usb" {
		return
	}
	if _, isPart := ich9Functions[c.Model]; !isPart {
		return
	}
	if _, known := m.parts[c.Index]; !known {
		m.parts[c.Index] = at
	}
}

// fix gives a device a place on the root bus that is always its own, also while planning: the plan does
// not change it.
func (m *pciMap) fix(d Device, at PCI) error {
	d.Common().Address = at
	m.notePart(d, at)
	return m.take(d.Kind(), at, endpoints)
}

func (m *pciMap) isFree(slot uint) bool { return m.buses[0].used[slot] == 0 }

// reserveBoard marks the places of onboard devices that definitions do not list.
func (m *pciMap) reserveBoard() error {
	slot := uint(boardSlotFX) // 0 is the ISA bridge, 1 IDE, 2 USB, 3 power management
	if m.board == Q35 {
		slot = boardSlot35 // 0 is LPC, 2 SATA, 3 SMBus
	}
	for _, function := range []uint{0, 3} {
		if err := m.take("board's own", PCI{Slot: slot, Function: function}, endpoints); err != nil {
			return err
		}
	}
	return nil
}

// placeFixed gives devices the places that they have on their board, where these are free.
func (m *pciMap) placeFixed() error {
	for _, c := range m.set.Controllers {
		if err := m.placeFixedController(c); err != nil {
			return err
		}
	}
	if err := m.placeVideo(); err != nil || m.board != Q35 {
		return err
	}
	for _, d := range m.set.Sounds {
		if d.Model == "ich9" && d.Address == nil && m.isFree(soundSlot35) {
			return m.fix(d, PCI{Slot: soundSlot35})
		}
	}
	return nil
}

func (m *pciMap) placeFixedController(c *Controller) error {
	switch {
	case m.board == I440FX && c.Index == 0 && c.Type == "ide":
		return m.fixOnly(c, PCI{Slot: boardSlotFX, Function: 1})
	case m.board == I440FX && c.Index == 0 && c.Type == "usb" && c.Model == "piix3-uhci":
		return m.fixOnly(c, PCI{Slot: boardSlotFX, Function: 2})
	case m.board == Q35 && c.Index == 0 && c.Type == "sata":
		return m.fixOnly(c, PCI{Slot: boardSlot35, Function: 2})
	case m.board != Q35 || c.Address != nil:
		return nil
	case c.Type == "usb" && c.Model == "ich9-uhci1":
		for _, slot := range usbSlots35 {
			if m.isFree(slot) {
				return m.fix(c, PCI{Slot: slot, Multifunction: On})
			}
		}
	case c.Type == "pci" && c.Model == "dmi-to-pci-bridge" && m.isFree(dmiSlot35):
		return m.fix(c, PCI{Slot: dmiSlot35})
	}
	return nil
}

// fixOnly gives a controller the one place where its board has it.
func (m *pciMap) fixOnly(c *Controller, at PCI) error {
	if c.Address == nil {
		return m.fix(c, at)
	}
	if said, ok := c.Address.(PCI); !ok || said.Bus != at.Bus || said.Slot != at.Slot || said.Function != at.Function {
		return fault.New(fault.Invalid, fault.XML, "%s controller 0 is soldered to the machine at %s and cannot be at %s", c.Type, at, c.Address)
	}
	return nil
}

// placeVideo gives the first video device the slot that QEMU uses for it.
func (m *pciMap) placeVideo() error {
	if len(m.set.Videos) == 0 {
		return nil
	}
	d := m.set.Videos[0]
	need := slotsFor(d, m.board)
	if d.Address != nil || need == 0 {
		return nil
	}
	slot := uint(videoSlotFX)
	if m.board == Q35 {
		slot = videoSlot35
	}
	if m.isFree(slot) {
		return m.fix(d, PCI{Slot: slot})
	}
	return m.place(d)
}

// keepSlot plans one conventional slot more than is needed on a machine with conventional PCI, for a bridge
// that may have to be added later, unless the definition fills every bus.
func (m *pciMap) keepSlot() error {
	if m.board == Q35 {
		return nil
	}
	for _, bus := range m.buses {
		if !bus.isFull() {
			return m.reserveNext(conventional)
		}
	}
	return nil
}

// addBridges adds a controller for each bus that has none. Places are reserved for them, which may need
// further buses.
func (m *pciMap) addBridges() error {
	there := map[uint]bool{}
	for _, c := range m.set.Controllers {
		if c.Type == "pci" {
			there[c.Index] = true
		}
	}
	for i := 1; i < len(m.buses); i++ {
		if there[uint(i)] {
			continue
		}
		c := &Controller{Type: "pci", Index: uint(i), Model: m.buses[i].model}
		m.set.Controllers = append(m.set.Controllers, c)
		if err := m.place(c); err != nil {
			return err
		}
	}
	return nil
}
