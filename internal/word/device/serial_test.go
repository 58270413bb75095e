package device

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func port(controller, number uint) Info {
	return Info{Address: VirtioSerial{Controller: controller, Port: number}}
}

func channel(name string, info Info) *Char {
	return &Char{Info: info, Role: Channel, TargetType: "virtio", Name: name}
}

func ports(s *Set) string {
	var words []string
	for _, c := range s.Channels {
		words = append(words, fmt.Sprintf("%s=%v", c.Name, c.Address))
	}
	return strings.ReplaceAll(strings.Join(words, " "), "virtio-serial ", "")
}

// These are the ports that libvirt 9.0 gives.
func TestAssignSerial_LibvirtPorts(t *testing.T) {
	var many []*Char
	for i := range 31 {
		many = append(many, channel(fmt.Sprint(i), Info{}))
	}
	for name, c := range map[string]struct {
		set  *Set
		want string
	}{
		"port 0 is the next free one": {
			&Set{Channels: []*Char{channel("a", port(0, 0)), channel("b", Info{}), channel("c", port(0, 2))}}, "a=0:0:1 b=0:0:3 c=0:0:2",
		},
		"port 0 stays on its controller": {
			&Set{
				Channels:    []*Char{channel("a", Info{}), channel("b", port(2, 0)), channel("c", Info{})},
				Controllers: []*Controller{{Type: "virtio-serial", Ports: 2}},
			}, "a=0:0:1 b=2:0:1 c=2:0:2",
		},
		"a console takes no channel's port": {
			&Set{Channels: []*Char{channel("a", Info{})}, Consoles: []*Char{{Role: Console, TargetType: "virtio"}}}, "a=0:0:1",
		},
		"the last of the first controller": {&Set{Channels: many[:30]}, "29=0:0:30"},
		"one more than a controller has":   {&Set{Channels: many}, "30=1:0:1"},
	} {
		if err := c.set.AssignSerial(); err != nil || !strings.HasSuffix(ports(c.set), c.want) {
			t.Errorf("%s: %s, not %s, %v", name, ports(c.set), c.want, err)
		}
		for _, d := range c.set.Channels {
			if c.set.Controller("virtio-serial", d.Address.(VirtioSerial).Controller) == nil {
				t.Errorf("%s: %s has no controller", name, d.Address)
			}
			d.Address = nil
		}
	}
}

func TestAssignSerial_ImpossiblePorts(t *testing.T) {
	few := []*Controller{{Type: "virtio-serial", Ports: 2}}
	for name, s := range map[string]*Set{
		"twice":            {Channels: []*Char{channel("a", port(0, 1)), channel("b", port(0, 1))}},
		"beyond the last":  {Channels: []*Char{channel("a", port(0, 31))}},
		"its own are full": {Channels: []*Char{channel("a", port(0, 1)), channel("b", port(0, 0))}, Controllers: few},
	} {
		if err := s.AssignSerial(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Consoles without a port get the first one, and then those that the channels leave.
func TestConsolePorts_BesideChannels(t *testing.T) {
	s := &Set{Channels: []*Char{channel("a", Info{}), channel("b", Info{})}}
	for range 3 {
		s.Consoles = append(s.Consoles, &Char{Role: Console, TargetType: "virtio"})
	}
	if err := s.AssignSerial(); err != nil {
		t.Fatal(err)
	}
	at, err := s.ConsolePorts()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint{0, 3, 4} {
		if got := at[s.Consoles[i]]; got != (VirtioSerial{Port: want}) {
			t.Errorf("console %d is at %s, not port %d", i, got, want)
		}
	}
	s.Controllers[0].Ports = 3
	if _, err := s.ConsolePorts(); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("with three ports: %v", err)
	}
}

// A channel that is plugged in does not get a port that QEMU gave to a console.
func TestSeat_ChannelAvoidsConsoles(t *testing.T) {
	s := &Set{Channels: []*Char{channel("a", port(0, 1))}, Controllers: []*Controller{{Type: "virtio-serial", Ports: 4}}}
	s.Consoles = []*Char{{Role: Console, TargetType: "virtio"}, {Role: Console, TargetType: "virtio"}}
	b := channel("b", port(0, 0))
	if err := s.Seat(b, false); err != nil || b.Address != (VirtioSerial{Port: 3}) {
		t.Errorf("%v, %v", b.Address, err)
	}
	s.Channels = append(s.Channels, b)
	c := channel("c", Info{})
	if err := s.Seat(c, false); !fault.Is(err, fault.WrongState) || c.Address != nil || len(s.Controllers) != 1 {
		t.Errorf("%v at %v with %d controllers", err, c.Address, len(s.Controllers))
	}
	if err := s.Seat(c, true); err != nil || c.Address != (VirtioSerial{Port: 2}) {
		t.Errorf("in the config: %v at %v", err, c.Address)
	}
}
