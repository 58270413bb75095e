package device

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Hubs come first, and devices that find no port on the controller sit behind
// them.
func TestAssignUSB_Ports(t *testing.T) {
	s := &Set{
		Controllers: []*Controller{{Type: "usb", Model: "piix3-uhci"}},
		Disks:       []*Disk{{Bus: "usb"}, {Bus: "virtio"}},
		Inputs:      []*Input{{Bus: "usb"}, {Bus: "usb"}, {Bus: "ps2"}},
	}
	if err := s.AssignUSB(); err != nil {
		t.Fatal(err)
	}
	if len(s.Hubs) != 1 || s.Hubs[0].Address != (USB{Port: "1"}) {
		t.Fatalf("hubs are %+v", s.Hubs)
	}
	for d, want := range map[Device]Address{
		s.Disks[0]: USB{Port: "2"}, s.Disks[1]: nil, s.Inputs[0]: USB{Port: "1.1"}, s.Inputs[1]: USB{Port: "1.2"}, s.Inputs[2]: nil,
	} {
		if got := d.Common().Address; got != want {
			t.Errorf("%s is at %v, not %v", d.Kind(), got, want)
		}
	}
}

func TestAssignUSB_Refused(t *testing.T) {
	at := func(bus uint, port string) *Input { return &Input{Bus: "usb", Info: Info{Address: USB{bus, port}}} }
	for name, c := range map[string]struct {
		inputs []*Input
		kind   fault.Kind
	}{
		"two in one port":        {[]*Input{at(0, "1"), at(0, "1")}, fault.Invalid},
		"a port too many":        {[]*Input{at(0, "5")}, fault.Invalid},
		"no such bus":            {[]*Input{at(1, "1")}, fault.Invalid},
		"behind no hub":          {[]*Input{at(0, "1.1")}, fault.Invalid},
		"no number":              {[]*Input{at(0, "x")}, fault.Invalid},
		"number zero":            {[]*Input{at(0, "0")}, fault.Invalid},
		"very deep":              {[]*Input{at(0, "1.1.1.1.1.1.1.1")}, fault.Invalid},
		"no controller to be on": {[]*Input{{Bus: "usb", Info: Info{Address: USB{Bus: 3}}}}, fault.NoCapacity},
	} {
		s := &Set{Controllers: []*Controller{{Type: "usb", Model: "qemu-xhci"}}, Inputs: c.inputs}
		if err := s.AssignUSB(); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := new(Set).PlugUSB(&Input{Type: "tablet", Bus: "usb"}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("without USB: %v", err)
	}
}

// However many USB devices there are, each has a port of its own, and asking
// again changes nothing.
func TestAssignUSB_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Set{}
		for i := range rapid.IntRange(1, 3).Draw(t, "controllers") {
			model := rapid.SampledFrom([]string{"piix3-uhci", "qemu-xhci", "ich9-ehci1"}).Draw(t, "model")
			s.Controllers = append(s.Controllers, &Controller{Type: "usb", Index: uint(i), Model: model})
		}
		for range rapid.IntRange(0, 40).Draw(t, "inputs") {
			s.Inputs = append(s.Inputs, &Input{Bus: "usb"})
		}
		if err := s.AssignUSB(); err != nil {
			t.Fatal(err)
		}
		once, taken := places(s), map[Address]bool{}
		for _, d := range usbDevices(s) {
			at := d.Common().Address
			if at == nil || taken[at] {
				t.Fatalf("%s is at %v, and so is another", d.Kind(), at)
			}
			taken[at] = true
		}
		if err := s.AssignUSB(); err != nil || len(once) != len(places(s)) {
			t.Fatal("asked again: ", err)
		}
	})
}
