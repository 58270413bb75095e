package device

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// root returns a set with the root controller of a board.
func root(b Board) *Set {
	model := map[Board]string{I440FX: "pci-root", Q35: "pcie-root"}[b]
	return &Set{Controllers: []*Controller{{Type: "pci", Model: model}}}
}

// These are the addresses that libvirt 9.0 gives in such a guest.
func TestAssignPCI_Q35(t *testing.T) {
	s := root(Q35)
	s.Controllers = append(s.Controllers, &Controller{Type: "sata"}, &Controller{Type: "usb", Model: "qemu-xhci"})
	s.Videos = []*Video{{Model: "vga", Primary: On}, {Model: "virtio"}}
	s.NICs = []*NIC{{Model: "virtio"}, {Model: "rtl8139"}}
	s.Sounds = []*Sound{{Model: "ich9"}}
	s.Disks = []*Disk{{Bus: "virtio"}, {Bus: "sata"}}
	s.Balloon = &Balloon{Model: "virtio"}
	if err := s.AssignPCI(Q35); err != nil {
		t.Fatal(err)
	}
	want := map[Device]string{
		s.Videos[0]:             "pci 0000:00:01.0",
		s.Sounds[0]:             "pci 0000:00:1b.0",
		s.Controller("sata", 0): "pci 0000:00:1f.2",
		s.Controller("pci", 1):  "pci 0000:00:02.0",
		s.Controller("pci", 2):  "pci 0000:00:02.1",
		s.Controller("pci", 3):  "pci 0000:01:00.0", // the bridge for the conventional NIC
		s.NICs[0]:               "pci 0000:02:00.0",
		s.NICs[1]:               "pci 0000:03:01.0",
		s.Controller("usb", 0):  "pci 0000:04:00.0",
		s.Disks[0]:              "pci 0000:05:00.0",
		s.Balloon:               "pci 0000:06:00.0",
		s.Videos[1]:             "pci 0000:07:00.0",
		s.Controller("pci", 8):  "pci 0000:00:02.6", // free
	}
	for d, at := range want {
		if got := d.Common().Address; got == nil || got.String() != at {
			t.Errorf("%s is at %v, not %s", d.Kind(), got, at)
		}
	}
	if s.Disks[1].Address != nil {
		t.Errorf("a SATA disk is at %s", s.Disks[1].Address)
	}
}

// These are the addresses that libvirt 9.0 gives in such a guest.
func TestAssignPCI_I440FX(t *testing.T) {
	s := root(I440FX)
	s.Controllers = append(s.Controllers,
		&Controller{Type: "usb", Model: "ich9-ehci1"}, &Controller{Type: "usb", Model: "ich9-uhci1"},
		&Controller{Type: "usb", Model: "ich9-uhci2"}, &Controller{Type: "usb", Model: "ich9-uhci3"},
		&Controller{Type: "scsi", Model: "lsilogic"}, &Controller{Type: "ide"}, &Controller{Type: "sata"})
	s.NICs = []*NIC{{Model: "e1000"}}
	s.Sounds = []*Sound{{Model: "ich6"}, {Model: "ac97"}}
	s.Videos = []*Video{{Model: "cirrus", Primary: On}}
	s.Balloon = &Balloon{Model: "virtio"}
	if err := s.AssignPCI(I440FX); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range s.All() {
		if at, ok := d.Common().Address.(PCI); ok {
			got = append(got, fmt.Sprintf("%s %x.%x", d.Kind(), at.Slot, at.Function))
		}
	}
	want := []string{
		"controller 6.7", "controller 6.0", "controller 6.1", "controller 6.2", "controller 7.0", "controller 1.1", "controller 8.0",
		"interface 3.0", "sound 4.0", "sound 5.0", "video 2.0", "memballoon 9.0",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("places are %q, not %q", got, want)
	}
}

func TestAssignPCI_Refused(t *testing.T) {
	at := func(bus, slot uint) Info { return Info{Address: PCI{Bus: bus, Slot: slot}} }
	for name, change := range map[string]func(*Set){
		"two devices in one place": func(s *Set) {
			s.NICs = []*NIC{{Info: at(0, 5), Model: "virtio"}, {Info: at(0, 5), Model: "virtio"}}
		},
		"a slot that is soldered":  func(s *Set) { s.NICs = []*NIC{{Info: at(0, 0), Model: "virtio"}} },
		"a slot that is not there": func(s *Set) { s.NICs = []*NIC{{Info: at(0, 32), Model: "virtio"}} },
		"a second slot of a port":  func(s *Set) { s.NICs = []*NIC{{Info: at(1, 1), Model: "virtio"}} },
		"another domain":           func(s *Set) { s.NICs = []*NIC{{Info: Info{Address: PCI{Domain: 1, Slot: 3}}, Model: "virtio"}} },
		"a bridge on itself":       func(s *Set) { s.Controllers[1].Address = PCI{Bus: 1} },
		"bridges in a circle": func(s *Set) {
			s.Controllers[1].Address = PCI{Bus: 2}
			s.Controllers = append(s.Controllers, &Controller{Type: "pci", Index: 2, Model: "pcie-root-port", Info: at(1, 0)})
		},
	} {
		s := root(Q35)
		s.Controllers = append(s.Controllers, &Controller{Type: "pci", Index: 1, Model: "pcie-root-port"})
		change(s)
		if err := s.AssignPCI(Q35); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Set){
		"a bus that cannot be": func(s *Set) { s.NICs = []*NIC{{Info: at(256, 1), Model: "virtio"}} },
		"a switch's lower port alone": func(s *Set) {
			s.Controllers = append(s.Controllers, &Controller{Type: "pci", Index: 1, Model: "pcie-switch-downstream-port"})
		},
	} {
		s := root(Q35)
		change(s)
		if err := s.AssignPCI(Q35); !fault.Is(err, fault.NoCapacity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := new(Set).AssignPCI(Q35); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a root: %v", err)
	}
	s := &Set{NICs: []*NIC{{Model: "e1000"}}}
	if err := s.AssignPCI(NoPCI); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a PCI card on a machine without PCI: %v", err)
	}
}

// A bus that a device's address names is added, with the lower buses.
func TestAssignPCI_AddsBuses(t *testing.T) {
	s := root(Q35)
	s.NICs = []*NIC{{Model: "e1000", Info: Info{Address: PCI{Bus: 2, Slot: 4}}}, {Model: "virtio", Info: Info{Address: PCI{Bus: 3}}}}
	if err := s.AssignPCI(Q35); err != nil {
		t.Fatal(err)
	}
	for index, model := range []string{"pcie-root", "pcie-root-port", "pcie-to-pci-bridge", "pcie-root-port"} {
		if c := s.Controller("pci", uint(index)); c == nil || c.Model != model {
			t.Errorf("bus %d is %+v, not a %s", index, c, model)
		}
	}
}

// A switch sits on a port, and its lower ports on it.
func TestSwitch(t *testing.T) {
	s := root(Q35)
	for i, model := range []string{"pcie-root-port", "pcie-switch-upstream-port", "pcie-switch-downstream-port", "pcie-switch-downstream-port"} {
		s.Controllers = append(s.Controllers, &Controller{Type: "pci", Index: uint(i + 1), Model: model})
	}
	if err := s.AssignPCI(Q35); err != nil {
		t.Fatal(err)
	}
	for i, want := range []PCI{{Slot: 1}, {Bus: 1}, {Bus: 2}, {Bus: 2, Slot: 1}} {
		if got := s.Controller("pci", uint(i+1)).Address; got != want {
			t.Errorf("%d is at %s, not %s", i+1, got, want)
		}
	}
}

// Ports that the definition closes to plugging are left alone while it runs.
func TestPlug_FixedPorts(t *testing.T) {
	s := root(Q35)
	s.Controllers = append(s.Controllers,
		&Controller{Type: "pci", Index: 1, Model: "pcie-root-port", PCI: &PCIController{HotPlug: Off}},
		&Controller{Type: "pci", Index: 2, Model: "pcie-root-port"})
	if err := s.AssignPCI(Q35); err != nil {
		t.Fatal(err)
	}
	n := &NIC{Model: "virtio"}
	if err := s.PlugPCI(n, Q35); err != nil || n.Address != (PCI{Bus: 2}) {
		t.Errorf("plugged at %v, %v", n.Address, err)
	}
	for _, at := range []PCI{{Bus: 1}, {Slot: 5}} {
		if err := s.PlugPCI(&NIC{Model: "virtio", Info: Info{Address: at}}, Q35); !fault.Is(err, fault.Invalid) {
			t.Errorf("plugged at %s, %v", at, err)
		}
	}
}

// The device that the refusal names does help.
func TestPlugPCI_Full(t *testing.T) {
	for _, c := range []struct {
		board Board
		model string
		want  string
	}{
		{Q35, "virtio", "model pcie-root-port"},
		{Q35, "rtl8139", "model pcie-to-pci-bridge"},
		{I440FX, "virtio", "model pci-bridge"},
	} {
		s := root(c.board)
		for c.board == I440FX && len(s.NICs) < 30 {
			s.NICs = append(s.NICs, &NIC{Model: "virtio", Info: Info{Address: PCI{Slot: uint(len(s.NICs)) + 2}}})
		}
		err := s.PlugPCI(&NIC{Model: c.model}, c.board)
		if !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on board %d: %v", c.model, c.board, err)
		}
	}
}

// someSet draws a set of devices; some have an address.
func someSet(t *rapid.T, b Board) *Set {
	s := root(b)
	index := uint(0)
	for range rapid.IntRange(0, 20).Draw(t, "devices") {
		var d Device
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			d = &Disk{Bus: "virtio"}
		case 1:
			d = &NIC{Model: rapid.SampledFrom([]string{"virtio", "e1000", "e1000e", "rtl8139", "virtio-transitional"}).Draw(t, "model")}
		case 2:
			d = &RNG{Model: "virtio"}
		case 3:
			d = &Sound{Model: rapid.SampledFrom([]string{"ich6", "ich9", "usb", "ac97"}).Draw(t, "model")}
		case 4:
			d = &Controller{Type: "scsi", Index: index, Model: rapid.SampledFrom([]string{"virtio-scsi", "lsilogic"}).Draw(t, "model")}
		case 5:
			model := rapid.SampledFrom([]string{"piix3-uhci", "qemu-xhci", "ich9-ehci1", "ich9-uhci1", "ehci"}).Draw(t, "model")
			d = &Controller{Type: "usb", Index: index, Model: model}
		case 6:
			d = &Video{Model: "virtio", Primary: Bool(len(s.Videos) == 0)}
		case 7:
			d = &HostDevice{Type: "pci"}
		case 8:
			d = &Watchdog{Model: "i6300esb"}
		case 9:
			model := "pci-bridge"
			if b == Q35 {
				model = rapid.SampledFrom([]string{"pcie-root-port", "pcie-to-pci-bridge", "dmi-to-pci-bridge"}).Draw(t, "model")
			}
			index++
			d = &Controller{Type: "pci", Index: index, Model: model}
		}
		if rapid.IntRange(0, 5).Draw(t, "said") == 0 {
			d.Common().Address = PCI{Bus: rapid.UintRange(0, 3).Draw(t, "bus"), Slot: rapid.UintRange(0, 31).Draw(t, "slot")}
		}
		if err := s.Add(d); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func places(s *Set) map[Device]Address {
	all := map[Device]Address{}
	for _, d := range s.All() {
		all[d] = d.Common().Address
	}
	return all
}

// In any guest every device that needs a place gets one of its own on
// a bus that exists, given addresses stay, and a second call changes nothing.
func TestAssignPCI_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SampledFrom([]Board{I440FX, Q35}).Draw(t, "board")
		s := someSet(t, b)
		said := places(s)
		if err := s.AssignPCI(b); err != nil {
			return // the given addresses are not possible
		}
		once := places(s)
		for d, at := range said {
			was, _ := at.(PCI)
			is, _ := once[d].(PCI)
			if at != nil && (is.Slot != was.Slot || is.Function != was.Function || is.Bus != was.Bus && is.Bus != was.Bus+1) {
				t.Fatalf("%s was at %s and is at %s", d.Kind(), at, once[d])
			}
		}
		checkPlaces(t, s, b)
		if err := s.AssignPCI(b); err != nil || !reflect.DeepEqual(once, places(s)) {
			t.Fatalf("asked again: %v", err)
		}
		if s.KeepPort(b) != nil || b != Q35 {
			return // all places are taken
		}
		n := &NIC{Model: "virtio"}
		if err := s.PlugPCI(n, b); err != nil {
			t.Fatal(err)
		}
		if err := s.Add(n); err != nil {
			t.Fatal(err)
		}
		checkPlaces(t, s, b)
	})
}

func checkPlaces(t *rapid.T, s *Set, b Board) {
	t.Helper()
	taken := map[PCI]Device{}
	for _, d := range s.All() {
		at, ok := d.Common().Address.(PCI)
		if !ok {
			if slotsFor(d, b) != 0 {
				t.Fatalf("a %s has no place", d.Kind())
			}
			continue
		}
		at.Multifunction = Unset
		if other := taken[at]; other != nil {
			t.Fatalf("a %s and a %s are at %s", other.Kind(), d.Kind(), at)
		}
		taken[at] = d
		if s.Controller("pci", at.Bus) == nil {
			t.Fatalf("a %s is at %s, and there is no such bus", d.Kind(), at)
		}
		if c, ok := d.(*Controller); ok && c.Type == "pci" && at.Bus == c.Index {
			t.Fatalf("bridge %d is on its own bus", c.Index)
		}
	}
}

// However many devices there are, all searches together look at each slot once, and once more for each device.
// Promise: G11
func TestPCIMap_StepsGrowWithDevices(t *testing.T) {
	for _, b := range []Board{I440FX, Q35} {
		for _, models := range [][]string{{"virtio"}, {"e1000"}, {"virtio", "e1000"}} {
			s := root(b)
			for i := range 4000 {
				s.NICs = append(s.NICs, &NIC{Model: models[i%len(models)]})
			}
			m, err := newPCIMap(s, b, true)
			if err != nil {
				t.Fatal(err)
			}
			err = m.placeRest() // refused where a machine has no bus for the next one
			if most := len(s.NICs) + len(models)*(len(m.buses)+1)*(lastSlot+1); m.steps > most {
				t.Errorf("%d NICs of %v on board %d take %d steps, more than %d (%v)", len(s.NICs), models, b, m.steps, most, err)
			}
		}
	}
}
