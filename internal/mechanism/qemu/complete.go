package qemu

import (
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Complete fills in, in place, what depends on the QEMU that will run the definition: the machine's full
// name, the processor, and the address of every device. Firmware must be chosen before. A device that this
// QEMU cannot make is refused by name. Existing values stay, so a second call changes nothing.
func Complete(d *domain.Definition, c *qemucaps.Capabilities) error {
	for _, step := range []func(*domain.Definition, *qemucaps.Capabilities) error{
		completeMachine, completeCPU, completePlaces, dryRun,
	} {
		if err := step(d, c); err != nil {
			return err
		}
	}
	return nil
}

func completeMachine(d *domain.Definition, c *qemucaps.Capabilities) error {
	if !c.Runs(d.OS.Arch) {
		return unsupported("%s runs guests of architecture %s, not %s", c.Binary.Path, c.GuestArch(), d.OS.Arch)
	}
	d.OS.Machine = c.Canonical(d.OS.Machine)
	if _, ok := c.Machine(d.OS.Machine); !ok || boardOf(d.OS.Machine) == otherBoard {
		return unsupported("machine type %q cannot be used; there are pc, q35, microvm and isapc in the versions that %s has", d.OS.Machine, c.Binary.Path)
	}
	if d.Devices.Emulator == "" {
		d.Devices.Emulator = c.Binary.Path
	}
	return nil
}

// completeCPU names the processor that QEMU gives a guest that asks for none,
// so that a later QEMU gives the same.
func completeCPU(d *domain.Definition, c *qemucaps.Capabilities) error {
	m, ok := c.Machine(d.OS.Machine)
	model, isModel := strings.CutSuffix(m.DefaultCPUType, "-"+c.Arch+"-cpu")
	if cpu := &d.CPU; ok && isModel && cpu.Mode == "" && cpu.Model == "" {
		cpu.Mode, cpu.Match, cpu.Check, cpu.Model, cpu.Fallback = "custom", "exact", "none", model, "forbid"
	}
	return nil
}

// completePlaces gives every device its place.
func completePlaces(d *domain.Definition, _ *qemucaps.Capabilities) error {
	s := &d.Devices
	if err := s.AssignPCI(boardOf(d.OS.Machine).pci()); err != nil {
		return err
	}
	s.NumberPorts()
	if err := s.AssignDIMMs(); err != nil {
		return err
	}
	return s.AssignUSB()
}

// PlaceAdded gives addresses to devices that were added to a complete definition. It adds a root port
// unless one is free, so that a device can still be plugged into the running guest.
func PlaceAdded(d *domain.Definition) error {
	if err := completePlaces(d, nil); err != nil {
		return err
	}
	if err := d.Devices.KeepPort(boardOf(d.OS.Machine).pci()); err != nil {
		return err
	}
	d.Devices.NumberPorts()
	return nil
}

// dryRun checks that arguments can be made, so that a definition is refused when it is defined and not
// when it is started.
func dryRun(d *domain.Definition, c *qemucaps.Capabilities) error {
	d = d.Clone()
	if err := CheckAliases(&d.Devices); err != nil {
		return err
	}
	AssignAliases(d)
	b := newBuilder(&Plan{Definition: d, Capabilities: c})
	b.dryRun = true
	return b.addAll()
}

// unlessDryRun ignores an error in a dry run that libvirt reports at the start only: the definition may be for
// another host, or unfinished.
func (b *builder) unlessDryRun(err error) error {
	if b.dryRun {
		return nil
	}
	return err
}

// CheckAliases refuses aliases that QEMU does not accept, or that two devices share.
func CheckAliases(s *device.Set) error {
	seen := map[string]bool{}
	for _, dev := range s.All() {
		name := dev.Common().Alias
		if name == "" {
			continue
		}
		if !isWord(name) || len(name) > maxAlias {
			return invalid("%q cannot be the alias of a %s: aliases are of letters, digits, - and _, and at most %d long", name, dev.Kind(), maxAlias)
		}
		if c, ok := dev.(*device.Char); ok && mirrorsSerial(s, c) {
			continue
		}
		if seen[name] {
			return invalid("two devices have the alias %s", name)
		}
		seen[name] = true
	}
	return nil
}

// maxAlias bounds an alias, from which the names of sockets are made.
const maxAlias = 64

// CompleteDevice gives a device that will join a complete definition its address, without adding it. For a
// running guest the address must be free for hotplug, the device gets its alias too, and its controller
// must exist. Otherwise missing controllers are added to d.
func CompleteDevice(d *domain.Definition, dev device.Device, c *qemucaps.Capabilities, live bool) error {
	if err := d.Devices.Seat(dev, !live); err != nil {
		return err
	}
	with := *d // the device joins the groups of this one only
	with.Devices.Controllers = slices.Clone(d.Devices.Controllers)
	if err := with.Add(dev); err != nil {
		return err
	}
	if !live {
		if err := Complete(&with, c); err != nil {
			return err
		}
		d.Devices.Controllers, d.Devices.Hubs = with.Devices.Controllers, with.Devices.Hubs
		d.Devices.Remove(dev) // in case it is a controller or hub itself
		return nil
	}
	if err := with.Devices.PlugPCI(dev, boardOf(d.OS.Machine).pci()); err != nil {
		return err
	}
	if err := with.Devices.PlugUSB(dev); err != nil {
		return err
	}
	if err := with.Devices.AssignDIMMs(); err != nil {
		return err
	}
	if err := with.CheckMemory(); err != nil {
		return err
	}
	if err := CheckAliases(&with.Devices); err != nil {
		return err
	}
	AssignAliases(&with)
	return nil
}
