package qemu

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// The addresses of devices are an ABI: guests see them, and migration and saved images need them. They must be
// libvirt's.
// Promise: G9
func TestAddressing(t *testing.T) {
	c := testCapabilities(t)
	datadriven.RunTest(t, "testdata/addressing", func(t *testing.T, d *datadriven.TestData) string {
		var name, machine, got string
		d.ScanArgs(t, "name", &name)
		d.ScanArgs(t, "machine", &machine)
		t.Run(name, func(t *testing.T) {
			def, err := understand(fmt.Sprintf(shell, "qemu", "", machine, repeated(t, d.Input)), c)
			if err != nil {
				t.Fatal(err)
			}
			got = layout(&def.Devices)
			// The definition that is shown can be given back, and every device keeps its address.
			again := def.Clone()
			if err := Complete(again, c); err != nil || layout(&again.Devices) != got {
				t.Errorf("places change when they are asked for again: %v\n%s", err, layout(&again.Devices))
			}
		})
		return got
	})
}

// repeated writes lines such as "3 × <hub type='usb'/>" out.
func repeated(t *testing.T, input string) string {
	t.Helper()
	var all strings.Builder
	for line := range strings.SplitSeq(input, "\n") {
		count, what, many := strings.Cut(line, " × ")
		if !many {
			all.WriteString(line)
			continue
		}
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(strings.Repeat(what, n))
	}
	return all.String()
}

// layout has a line for each disk, controller and other device with an address.
func layout(s *device.Set) string {
	var all strings.Builder
	for _, dev := range s.All() {
		words := []string{dev.Kind()}
		at := dev.Common().Address
		switch d := dev.(type) {
		case *device.Disk:
			words = append(words, d.Target)
		case *device.Controller:
			words = append(words, d.Type, fmt.Sprint(d.Index))
			if d.Model != "" {
				words = append(words, d.Model)
			}
		case *device.Char:
			if d.Role == device.Channel {
				words = append(words, d.Name)
			}
		}
		if at != nil {
			words = append(words, at.String())
		} else if len(words) == 1 || dev.Kind() == "channel" {
			continue
		}
		if pci, ok := at.(device.PCI); ok && pci.Multifunction == device.On {
			words = append(words, "multifunction")
		}
		if c, ok := dev.(*device.Controller); ok && c.PCI != nil {
			words = append(words, numbers(c.PCI)...)
		}
		all.WriteString(strings.Join(words, " ") + "\n")
	}
	return all.String()
}

func numbers(p *device.PCIController) []string {
	var words []string
	add := func(name string, n *uint) {
		if n != nil {
			words = append(words, name, fmt.Sprint(*n))
		}
	}
	add("chassis", p.ChassisNr)
	add("chassis", p.Chassis)
	add("port", p.Port)
	return words
}
