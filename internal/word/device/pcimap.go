package device

import "github.com/lodge-kvm/lodge/internal/base/fault"

// maxBus is the highest number of a PCI bus.
const maxBus = 255

// pciMap records the taken places of each bus.
type pciMap struct {
	set   *Set
	board Board
	buses []*pciBus // by index
	said  int       // how many of the buses come from controllers that the definition has
	// planning: buses may be added, and addresses are reserved but not assigned.
	planning bool
	// running: only places that allow hot plug are used.
	running bool
	// from is where the search for a kind of slot begins: none before it is free. Places are only ever
	// taken, so all searches together pass each slot once.
	from map[slots]PCI
	// steps counts the slots that searches have looked at.
	steps int
	// parts has a place of a part of each ICH9 USB controller, by the controller's index.
	parts map[uint]PCI
}

type pciBus struct {
	busModel
	model string
	// used has a bit for each function of each slot that is taken.
	used [lastSlot + 1]uint8
	// shared has a bit for each slot that root ports share.
	shared uint32
}

func newPCIBus(model string) *pciBus { return &pciBus{busModel: busModels[model], model: model} }

func (b *pciBus) isFull() bool {
	for slot := b.first; slot <= b.last; slot++ {
		if b.used[slot] == 0 {
			return false
		}
	}
	return true
}

// newPCIMap takes note of every address that the set has.
func newPCIMap(s *Set, b Board, planning bool) (*pciMap, error) {
	m := &pciMap{set: s, board: b, planning: planning, from: map[slots]PCI{}, parts: map[uint]PCI{}}
	for _, c := range s.Controllers {
		if c.Type != "pci" {
			continue
		}
		if err := m.addBus(c); err != nil {
			return nil, err
		}
	}
	if len(m.buses) == 0 || m.buses[0] == nil {
		return nil, fault.New(fault.Invalid, fault.XML, "the machine has no PCI root controller (index 0)")
	}
	m.said = len(m.buses)
	for i, bus := range m.buses {
		if bus == nil {
			m.buses[i] = newPCIBus(m.usualModel())
		}
	}
	for _, d := range collectionOrder(s) {
		if err := m.collect(d); err != nil {
			return nil, err
		}
	}
	return m, m.reserveBoard()
}

func (m *pciMap) addBus(c *Controller) error {
	if c.Index > maxBus {
		return fault.New(fault.Invalid, fault.XML, "the index %d of a PCI controller is above %d", c.Index, maxBus)
	}
	for uint(len(m.buses)) <= c.Index {
		m.buses = append(m.buses, nil)
	}
	if m.buses[c.Index] != nil {
		return fault.New(fault.Invalid, fault.XML, "two PCI controllers have the index %d", c.Index)
	}
	root := m.rootModel()
	switch isRoot := c.Model == "pci-root" || c.Model == "pcie-root"; {
	case c.Index == 0 && c.Model != root:
		return fault.New(fault.Invalid, fault.XML, "PCI controller 0 is of model %s on this machine, not %s", root, c.Model)
	case c.Index != 0 && isRoot:
		return fault.New(fault.Invalid, fault.XML, "PCI controller %d cannot be of model %s; only index 0 is the root", c.Index, c.Model)
	case isRoot && c.Address != nil:
		return fault.New(fault.Unsupported, fault.Config, "PCI controller 0 is the root and can have no address")
	}
	bus := newPCIBus(c.Model)
	bus.hotplug = bus.hotplug && (c.PCI == nil || c.PCI.HotPlug != Off)
	m.buses[c.Index] = bus
	return nil
}

func (m *pciMap) rootModel() string {
	if m.board == Q35 {
		return "pcie-root"
	}
	return "pci-root"
}

// usualModel is the model of a bus that a definition uses and does not have.
func (m *pciMap) usualModel() string {
	if m.board == Q35 {
		return "pcie-root-port"
	}
	return "pci-bridge"
}

// collectionOrder is the order in which libvirt records given addresses. It matters if buses are added
// for them.
func collectionOrder(s *Set) []Device {
	var all []Device
	all = gather(all, s.Disks)
	all = gather(all, s.NICs)
	all = gather(all, s.Sounds)
	all = gather(all, s.HostDevices)
	all = gather(all, s.Videos)
	all = gather(all, s.Controllers)
	all = gather(all, s.Serials)
	all = gather(all, s.Parallels)
	all = gather(all, s.Channels)
	all = gather(all, s.Consoles)
	all = gather(all, s.Inputs)
	all = gather(all, s.Watchdogs)
	if s.Balloon != nil {
		all = append(all, s.Balloon)
	}
	all = gather(all, s.RNGs)
	all = gather(all, s.Hubs)
	all = gather(all, s.TPMs)
	all = gather(all, s.Panics)
	all = gather(all, s.Redirs)
	if s.VSock != nil {
		all = append(all, s.VSock)
	}
	return all
}

// collect marks the given address of a device. It moves a conventional device one bus up where a
// bridge has to be added below a port of its own for it, as libvirt does.
func (m *pciMap) collect(d Device) error {
	info := d.Common()
	at, ok := info.Address.(PCI)
	if !ok {
		return nil
	}
	need := slotsFor(d, m.board)
	if need == 0 {
		need = conventional
	}
	if m.planning && at.Domain == 0 {
		bus, err := m.grow(at.Bus, need)
		if err != nil {
			return err
		}
		at.Bus = bus
	}
	if err := m.check(d, at, need); err != nil {
		return err
	}
	info.Address = at
	m.notePart(d, at)
	return m.take(d.Kind(), at, need)
}

// check refuses a place that is not there, or that a device does not fit into. An endpoint may be said to
// be on a bus of the other kind of PCI.
func (m *pciMap) check(d Device, at PCI, need slots) error {
	if at.Domain != 0 || at.Bus >= uint(len(m.buses)) || at.Function > 7 {
		return noPlace(d, at)
	}
	bus := m.buses[at.Bus]
	if at.Slot < bus.first || at.Slot > bus.last {
		return noPlace(d, at)
	}
	offers := bus.offers
	if offers&endpoints != 0 {
		offers |= endpoints
	}
	if need&forBridge != 0 {
		need |= conventional
	}
	if offers&need == 0 {
		return fault.New(fault.Invalid, fault.XML, "the %s cannot be at %s: a controller of model %s does not take it", d.Kind(), at, bus.model)
	}
	return nil
}

func noPlace(d Device, at PCI) error {
	return fault.New(fault.Invalid, fault.XML, "the %s cannot be at %s: there is no such place on the guest's buses", d.Kind(), at)
}

// take marks a place. The first root port of a slot opens it to further ones.
func (m *pciMap) take(kind string, at PCI, need slots) error {
	bus := m.buses[at.Bus]
	bit := uint8(1) << at.Function
	if bus.used[at.Slot]&bit != 0 {
		return fault.New(fault.Invalid, fault.XML, "two devices are at %s; the second is the %s", at, kind)
	}
	if bus.used[at.Slot] == 0 && need == forRootPort && at.Multifunction != Off {
		bus.shared |= 1 << at.Slot
	}
	bus.used[at.Slot] |= bit
	return nil
}

// next finds the next place for a device that needs a slot of a kind, at one of its functions. It adds a bus where none
// is free and adding is allowed.
func (m *pciMap) next(need slots, function uint) (PCI, error) {
	at, found := m.search(need)
	m.from[need] = at
	at.Function = function
	switch {
	case found:
		if need == forRootPort {
			at.Function = freeFunction(m.buses[at.Bus].used[at.Slot])
		}
		return at, nil
	case !m.planning:
		return PCI{}, m.full(need)
	}
	bus, err := m.grow(uint(len(m.buses)), need)
	if err != nil {
		return PCI{}, err
	}
	return PCI{Bus: bus, Slot: m.buses[bus].first, Function: function}, nil
}

// search looks for a free slot, or for one with a free function where root ports share it.
func (m *pciMap) search(need slots) (PCI, bool) {
	at := m.from[need]
	for ; at.Bus < uint(len(m.buses)); at.Bus, at.Slot = at.Bus+1, 0 {
		bus := m.buses[at.Bus]
		if !m.offers(bus, need) {
			continue
		}
		for at.Slot = max(at.Slot, bus.first); at.Slot <= bus.last; at.Slot++ {
			m.steps++
			used := bus.used[at.Slot]
			if used == 0 || need == forRootPort && bus.shared&(1<<at.Slot) != 0 && used != 0xff {
				return at, true
			}
		}
	}
	return at, false
}

// offers reports whether places of a kind are chosen on a bus.
func (m *pciMap) offers(bus *pciBus, need slots) bool {
	switch {
	case need&endpoints != 0 && !bus.automatic, m.running && !bus.hotplug:
		return false
	}
	return bus.offers&need != 0
}

func freeFunction(used uint8) uint {
	for function := range uint(8) {
		if used&(1<<function) == 0 {
			return function
		}
	}
	return 0 // the slot is not full
}

// reserveNext takes the next place of a kind and leaves it empty.
func (m *pciMap) reserveNext(need slots) error {
	at, err := m.next(need, 0)
	if err != nil {
		return err
	}
	return m.take("spare slot", at, need)
}

// grow adds buses up to the wanted one, for a device that needs a slot of a kind. It returns that
// bus. A conventional device of a machine that has PCI Express only gets two: a port, and a bridge on it.
func (m *pciMap) grow(bus uint, need slots) (uint, error) {
	missing := int(bus) - len(m.buses) + 1
	if missing <= 0 {
		return bus, nil
	}
	model, first := "pcie-root-port", false
	switch {
	case need&conventional != 0:
		model, first = "pci-bridge", !m.hasConventional()
	case need&(express|forUpstream|forExpressBridge) == 0:
		return 0, m.full(need)
	}
	if first && missing == 1 {
		missing, bus = 2, bus+1
	}
	if bus > maxBus {
		return 0, fault.New(fault.NoCapacity, fault.Device, "the guest needs more than %d PCI buses; put disks on a SCSI controller, or take devices out", maxBus+1)
	}
	if first {
		port := newPCIBus("pcie-root-port")
		port.offers = forExpressBridge // kept for the bridge while it is planned
		m.buses = append(m.buses, port, newPCIBus("pcie-to-pci-bridge"))
		missing -= 2
	}
	for range missing {
		m.buses = append(m.buses, newPCIBus(model))
	}
	return bus, nil
}

// hasConventional reports whether there is a bus that takes a pci-bridge.
func (m *pciMap) hasConventional() bool {
	for _, bus := range m.buses {
		if bus.offers&forBridge != 0 {
			return true
		}
	}
	return false
}

// full is the error that no place of a kind is left, with the remedy.
func (m *pciMap) full(need slots) error {
	what, model, instead := "device", "", ""
	switch {
	case need&conventional != 0 && m.board == Q35:
		what, model, instead = "conventional PCI device", "pcie-to-pci-bridge", "use a virtio model where there is one, or "
	case need&conventional != 0:
		model = "pci-bridge"
	case need&express != 0:
		model = "pcie-root-port"
	}
	switch {
	case need&forBridge != 0:
		return fault.New(fault.NoCapacity, fault.Device,
			"the guest's PCI buses have no slot for one more pci-bridge; add controllers of that model to the definition, or take devices out")
	case need&forRootPort != 0:
		return fault.New(fault.NoCapacity, fault.Device,
			"the root bus has no place for one more pcie-root-port; put disks on a SCSI controller, or take devices out")
	case model == "":
		return fault.New(fault.NoCapacity, fault.Device, "no PCI slot is free that takes this kind of controller, and none can be added for it")
	case m.running:
		return fault.New(fault.NoCapacity, fault.Device,
			"no PCI slot is free that takes a %s while the guest runs; %sadd a controller of model %s to its config, and start it again", what, instead, model)
	}
	return fault.New(fault.NoCapacity, fault.Device, "no PCI slot is free for a %s; add a controller of model %s", what, model)
}

// checkPlug refuses a place where a device cannot be plugged while the guest runs.
func (m *pciMap) checkPlug(d Device, at PCI) error {
	if err := m.check(d, at, slotsFor(d, m.board)); err != nil {
		return err
	}
	if bus := m.buses[at.Bus]; !bus.hotplug || at.Function != 0 {
		return fault.New(fault.Invalid, fault.XML,
			"the %s cannot be plugged in at %s: while a guest runs, function 0 of a slot can be filled that a controller with hot-plug has, and a %s has none",
			d.Kind(), at, bus.model)
	}
	return nil
}
