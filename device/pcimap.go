package device

import (
	"cmp"
	"slices"

	"github.com/lodge-kvm/lodge/fault"
)

// pciMap is which place of which bus is taken.
type pciMap struct {
	set   *Set
	board Board
	buses map[uint]*pciBus
}

type pciBus struct {
	index uint
	model string
	// fixed says that nothing can be plugged in while the guest runs.
	fixed bool
	// used has a bit for each function of each slot that is taken.
	used [lastSlot + 1]uint8
}

// first is the lowest slot for devices of a bus, last the highest.
func (b *pciBus) first() uint {
	switch b.model {
	case "pcie-root-port", "pcie-switch-downstream-port", "pcie-switch-upstream-port", "pcie-expander-bus":
		return 0
	}
	return 1
}

func (b *pciBus) last() uint {
	switch b.model {
	case "pcie-root-port", "pcie-switch-downstream-port":
		return 0
	}
	return lastSlot
}

func (b *pciBus) isPort() bool { return b.first() == 0 && b.last() == 0 }

func (b *pciBus) isConventional() bool {
	return b.model == "pci-root" || b.model == "pci-bridge" || b.model == "pcie-to-pci-bridge" || b.model == "dmi-to-pci-bridge"
}

func newPCIMap(s *Set, b Board) (*pciMap, error) {
	m := &pciMap{set: s, board: b, buses: map[uint]*pciBus{}}
	for _, c := range s.Controllers {
		if c.Type == "pci" {
			fixed := c.PCI != nil && c.PCI.HotPlug == Off
			m.buses[c.Index] = &pciBus{index: c.Index, model: c.Model, fixed: fixed}
		}
	}
	root := m.buses[0]
	if root == nil {
		return nil, fault.New(fault.Invalid, fault.XML, "the machine has no PCI root controller (index 0)")
	}
	m.reserveBoard(root)
	for _, d := range s.All() {
		at, ok := d.Common().Address.(PCI)
		if !ok {
			continue
		}
		if err := m.take(d, at); err != nil {
			return nil, err
		}
		if c, ok := d.(*Controller); ok && m.isBelow(at.Bus, c) {
			return nil, fault.New(fault.Invalid, fault.XML, "PCI controller %d sits on a bus of its own, at %s", c.Index, at)
		}
	}
	return m, nil
}

// reserveBoard marks what is soldered on: the host bridge and the functions of
// the south bridge that no definition speaks of.
func (m *pciMap) reserveBoard(root *pciBus) {
	root.used[0] = 0xff
	if m.board == Q35 {
		root.used[bridgeSlot35] = 1<<0 | 1<<3 // LPC and SMBus; SATA is function 2
		return
	}
	root.used[1] = 1<<0 | 1<<3 // ISA and power management; IDE is 1, USB is 2
}

// take marks the place that a device says it has.
func (m *pciMap) take(d Device, at PCI) error {
	bus := m.buses[at.Bus]
	if at.Domain != 0 || bus == nil || at.Slot > bus.last() || at.Slot < bus.first() || at.Function > 7 {
		return fault.New(fault.Invalid, fault.XML, "the %s cannot be at %s: there is no such place on the guest's buses", d.Kind(), at)
	}
	bit := uint8(1) << at.Function
	if bus.used[at.Slot]&bit != 0 {
		return fault.New(fault.Invalid, fault.XML, "two devices are at %s; the second is the %s", at, d.Kind())
	}
	bus.used[at.Slot] |= bit
	return nil
}

// place gives a device without an address one.
func (m *pciMap) place(d Device, mayAdd bool) error {
	info := d.Common()
	if info.Address != nil {
		return nil
	}
	need := needOf(d, m.board)
	if need == nowhere {
		return nil
	}
	at, ok := m.habitual(d)
	if !ok {
		var err error
		if at, err = m.find(need, d, mayAdd); err != nil {
			return err
		}
	}
	info.Address = at
	return m.take(d, at)
}

// habitual gives the place where libvirt and QEMU's boards have a device, as
// long as it is free.
func (m *pciMap) habitual(d Device) (PCI, bool) {
	at := PCI{}
	switch d := d.(type) {
	case *Video:
		if d.Primary != On {
			return at, false
		}
		at.Slot = videoSlotFX
		if m.board == Q35 {
			at.Slot = videoSlot35
		}
	case *Sound:
		if d.Model != "ich9" || m.board != Q35 {
			return at, false
		}
		at.Slot = soundSlot35
	case *Controller:
		var ok bool
		if at, ok = m.habitualController(d); !ok {
			return at, false
		}
	default:
		return at, false
	}
	free := m.buses[0].used[at.Slot]&(1<<at.Function) == 0
	return at, free
}

func (m *pciMap) habitualController(c *Controller) (PCI, bool) {
	switch {
	case c.Type == "sata" && c.Index == 0 && m.board == Q35:
		return PCI{Slot: bridgeSlot35, Function: 2}, true
	case c.Type == "ide" && c.Index == 0:
		return PCI{Slot: 1, Function: 1}, true
	case c.Type == "usb" && c.Model == "piix3-uhci" && c.Index == 0 && m.board == I440FX:
		return PCI{Slot: 1, Function: 2}, true
	}
	function, part := map[string]uint{"ich9-uhci1": 0, "ich9-uhci2": 1, "ich9-uhci3": 2, "ich9-ehci1": 7}[c.Model]
	if !part {
		return PCI{}, false
	}
	at := PCI{Slot: usbSlot35, Function: function}
	if m.board != Q35 {
		slot, ok := m.companionSlot(c)
		if !ok {
			return PCI{}, false
		}
		at.Slot = slot
	}
	if function == 0 {
		at.Multifunction = On
	}
	return at, true
}

// companionSlot is the slot of the other parts of an ICH9 USB controller, or a
// free one.
func (m *pciMap) companionSlot(c *Controller) (uint, bool) {
	for _, other := range m.set.Controllers {
		if at, ok := other.Address.(PCI); ok && other.Type == "usb" && other.Index == c.Index && at.Bus == 0 {
			return at.Slot, true
		}
	}
	for slot := uint(videoSlotFX); slot <= lastSlot; slot++ {
		if m.buses[0].used[slot] == 0 {
			return slot, true
		}
	}
	return 0, false
}

// find gives a free place of a kind, adding a bridge or port where that is
// allowed and none is free.
func (m *pciMap) find(need slotKind, d Device, mayAdd bool) (PCI, error) {
	if need == onRoot {
		return m.findOnRoot(d)
	}
	for _, bus := range m.sorted() {
		if !bus.takes(need) || bus.fixed && !mayAdd || m.isBelow(bus.index, d) {
			continue
		}
		for slot := bus.first(); slot <= bus.last(); slot++ {
			if bus.used[slot] == 0 {
				return PCI{Bus: bus.index, Slot: slot}, nil
			}
		}
	}
	if !mayAdd {
		return PCI{}, fault.New(fault.NoCapacity, fault.Device,
			"no free PCI slot that can take this %s while the guest runs; add controllers of model pcie-root-port to its config", d.Kind())
	}
	if need != express && need != conventional {
		return PCI{}, fault.New(fault.Invalid, fault.XML, "a %s has no place: its kind of bus is missing or full", d.Kind())
	}
	if err := m.add(need); err != nil {
		return PCI{}, err
	}
	return m.find(need, d, true)
}

// isBelow reports whether a bus hangs from a device, which then cannot sit on it.
func (m *pciMap) isBelow(index uint, d Device) bool {
	for range maxBus {
		c := m.set.Controller("pci", index)
		if c == nil {
			return false
		}
		if Device(c) == d {
			return true
		}
		at, placed := c.Address.(PCI)
		if !placed {
			return false
		}
		index = at.Bus
	}
	return true // in a circle
}

// takes reports whether what has that need can sit on the bus.
func (b *pciBus) takes(need slotKind) bool {
	switch need {
	case express:
		return b.isPort()
	case conventional:
		return b.isConventional()
	case onSwitch:
		return b.model == "pcie-switch-upstream-port"
	default:
		return false
	}
}

// findOnRoot gives the next place for a bridge of the root bus. Eight root ports
// share a slot; other bridges have one of their own.
func (m *pciMap) findOnRoot(d Device) (PCI, error) {
	root := m.buses[0]
	c, _ := d.(*Controller)
	shares := c != nil && c.Model == "pcie-root-port"
	for slot := uint(firstPortSlot); slot < soundSlot35; slot++ {
		if slot == videoSlot35 && len(m.set.Videos) > 0 && m.board == Q35 {
			continue
		}
		if root.used[slot] == 0 && !shares {
			return PCI{Slot: slot}, nil
		}
		if root.used[slot] != 0 && (!shares || !m.isPortSlot(slot)) {
			continue
		}
		for function := range uint(8) {
			if root.used[slot]&(1<<function) != 0 {
				continue
			}
			at := PCI{Slot: slot, Function: function}
			if function == 0 {
				at.Multifunction = On
			}
			return at, nil
		}
	}
	return PCI{}, fault.New(fault.NoCapacity, fault.Device, "the guest's root bus is full")
}

// isPortSlot reports whether a slot of the root bus holds root ports only, the
// first of them open to further functions.
func (m *pciMap) isPortSlot(slot uint) bool {
	found := false
	for _, d := range m.set.All() {
		at, ok := d.Common().Address.(PCI)
		if !ok || at.Bus != 0 || at.Slot != slot {
			continue
		}
		c, isController := d.(*Controller)
		if !isController || c.Model != "pcie-root-port" || at.Function == 0 && at.Multifunction != On {
			return false
		}
		found = true
	}
	return found
}

// maxBus is the highest number of a PCI bus.
const maxBus = 255

// add puts in a bridge or port that offers places of a kind.
func (m *pciMap) add(need slotKind) error {
	if need == conventional && m.board == Q35 && !m.hasFreePort() {
		// The bridge itself needs a port, which must have a lower number.
		if err := m.add(express); err != nil {
			return err
		}
	}
	index := uint(0)
	for i := range m.buses {
		index = max(index, i+1)
	}
	if index > maxBus {
		return fault.New(fault.NoCapacity, fault.Device, "the guest has no PCI bus left")
	}
	model := "pcie-root-port"
	if need == conventional {
		model = "pci-bridge"
		if m.board == Q35 {
			model = "pcie-to-pci-bridge"
		}
	}
	c := &Controller{Type: "pci", Index: index, Model: model}
	m.buses[index] = &pciBus{index: index, model: model}
	if err := m.place(c, true); err != nil {
		return err
	}
	m.set.insertPCI(c)
	return nil
}

func (m *pciMap) hasFreePort() bool {
	for _, bus := range m.buses {
		if bus.isPort() && bus.used[0] == 0 {
			return true
		}
	}
	return false
}

// insertPCI puts a new bridge behind the PCI controllers of lower index.
func (s *Set) insertPCI(c *Controller) {
	list := s.Controllers
	at := len(list)
	for i, other := range list {
		if other.Type == "pci" && other.Index < c.Index {
			at = i + 1
		}
	}
	s.Controllers = slices.Insert(list, at, c)
}

// keepSpare adds root ports until Spare are free.
func (m *pciMap) keepSpare() error {
	free := 0
	for _, bus := range m.buses {
		if bus.isPort() && bus.used[0] == 0 {
			free++
		}
	}
	for ; free < Spare; free++ {
		if err := m.add(express); err != nil {
			return err
		}
	}
	return nil
}

func (m *pciMap) sorted() []*pciBus {
	all := make([]*pciBus, 0, len(m.buses))
	for _, b := range m.buses {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b *pciBus) int { return cmp.Compare(a.index, b.index) })
	return all
}
