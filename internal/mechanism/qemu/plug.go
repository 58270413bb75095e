package qemu

import (
	"os"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Step is one command for the monitor of a running guest. Its arguments may
// hold passwords and are never logged.
type Step struct {
	Command string
	Args    any
	File    *os.File // sent with the command
	Undo    *Step    // takes the step back
}

// Plug returns the steps that add a device to a running guest. The plan's Disks
// and NICs hold the host's side of it. If the device has a listening socket without
// a path, Plug chooses one and stores it in the device.
func Plug(p *Plan, dev device.Device) ([]Step, error) {
	b := newBuilder(p)
	b.running = true
	if err := b.addPluggable(dev); err != nil {
		return nil, err
	}
	steps := make([]Step, len(b.pending))
	for i, part := range b.pending {
		steps[i] = part.monitorStep()
	}
	if d, ok := dev.(*device.Disk); ok {
		steps = append(steps, removeKey(p, d)...)
	}
	return append(steps, removeFDSets(b.fdSets)...), nil
}

// TakesPCI reports whether a running guest accepts PCI hotplug: machine type pc announces devices by ACPI
// only.
func TakesPCI(d *domain.Definition) bool {
	return boardOf(d.OS.Machine) != i440fx || d.Features.ACPI
}

// addPluggable adds a device of a kind that can be plugged and unplugged.
func (b *builder) addPluggable(dev device.Device) error {
	if _, err := removeBackend(dev); err != nil {
		return err
	}
	switch d := dev.(type) {
	case *device.Disk:
		return b.disk(d)
	case *device.NIC:
		return b.nic(d)
	case *device.Controller:
		return b.controller(d)
	case *device.Char:
		return b.char(d)
	case *device.HostDevice:
		return b.hostDevice(d)
	case *device.Input:
		return b.input(d)
	case *device.RNG:
		return b.rng(d)
	case *device.Redir:
		return b.redir(d)
	case *device.Watchdog:
		return b.watchdog(d)
	case *device.Balloon:
		return b.balloonOf(d)
	case *device.VSock:
		return b.vsockOf(d)
	case *device.Memory:
		return b.memoryDevice(d)
	}
	return cannotPlug(dev)
}

// Unplug returns the command that asks the guest to release a device, and the commands to run after QEMU
// reports that it did.
func Unplug(dev device.Device) (request Step, after []Step, err error) {
	after, err = removeBackend(dev)
	return removeStep("device", dev.Common().Alias), after, err
}

// removeBackend returns the commands that remove the backend of a device, or the reason why it cannot be
// unplugged.
func removeBackend(dev device.Device) ([]Step, error) {
	alias := dev.Common().Alias
	chardev := removeStep("chardev", "char"+alias)
	switch d := dev.(type) {
	case *device.Disk:
		switch {
		case d.Device != "disk" && d.Device != "lun":
			return nil, unsupported("%s drives cannot be plugged, only their media exchanged", d.Device)
		case d.Bus != "virtio" && d.Bus != "scsi" && d.Bus != "usb":
			return nil, unsupported("disks on bus %s cannot be plugged into a running domain", d.Bus)
		case d.Source == nil:
			return nil, nil
		}
		after := removeNodes(d)
		if d.Encryption != nil {
			after = append(after, removeStep("object", keyName(d))) // if it is still there
		}
		return after, nil
	case *device.NIC:
		return []Step{removeStep("netdev", "host"+alias)}, nil
	case *device.Controller:
		if d.Type != "scsi" && d.Type != "virtio-serial" {
			return nil, unsupported("controllers of type %s cannot be plugged into a running domain", d.Type)
		}
		return nil, nil
	case *device.Char:
		if d.Role == device.Console || d.Role == device.Parallel || d.TargetType == "isa-serial" {
			return nil, unsupported("%ss of target type %s cannot be plugged into a running domain", d.Role, d.TargetType)
		}
		return append([]Step{chardev}, forgetBackend(&d.Backend)...), nil
	case *device.Input:
		if d.Bus == "ps2" || d.Type == "evdev" {
			return nil, unsupported("input devices on bus %s cannot be plugged into a running domain", d.Bus)
		}
		return nil, nil
	case *device.RNG:
		after := []Step{removeStep("object", "obj"+alias)}
		if d.Backend == "egd" {
			after = append(after, chardev)
		}
		return after, nil
	case *device.Watchdog:
		if d.Model != "i6300esb" {
			return nil, unsupported("watchdogs of model %s cannot be plugged into a running domain", d.Model)
		}
		return nil, nil
	case *device.HostDevice, *device.Balloon, *device.VSock:
		return nil, nil
	case *device.Memory:
		return []Step{removeStep("object", "mem"+alias)}, nil
	case *device.Redir: // QEMU removes its host's end with it
		return nil, nil
	}
	return nil, cannotPlug(dev)
}

func cannotPlug(dev device.Device) error {
	return unsupported("a %s cannot be plugged into a running domain, or out of it", dev.Kind())
}

// ChangeMedia returns the commands that exchange the medium in a CD or floppy drive. A medium without a
// source empties the drive. The new medium's nodes get numbers unless they have them. Only force overrides
// a tray that the guest has locked.
func ChangeMedia(p *Plan, before, medium *device.Disk, force bool) ([]Step, error) {
	if before.Device != "cdrom" && before.Device != "floppy" {
		return nil, unsupported("disk %s is a %s, whose source cannot be exchanged while the domain runs", before.Target, before.Device)
	}
	id := property{"id", backendOf(before)}
	steps := []Step{
		{Command: "blockdev-open-tray", Args: properties{id, {"force", force}}, Undo: &Step{Command: "blockdev-close-tray", Args: properties{id}}},
		{Command: "blockdev-remove-medium", Args: properties{id}},
	}
	if before.Source != nil && before.Source.Index != 0 {
		steps[1].Undo = insertMedium(before)
		steps = append(steps, removeNodes(before)...)
	}
	a, present := p.Disks[medium.Alias]
	if present && medium.Source != nil {
		b := newBuilder(p)
		b.running = true
		medium.Number(counterFrom(highestNode(&p.Definition.Devices)))
		if _, err := b.nodes(medium, a); err != nil {
			return nil, err
		}
		for _, part := range b.pending {
			steps = append(steps, part.monitorStep())
		}
		steps = append(append(steps, *insertMedium(medium)), removeFDSets(b.fdSets)...)
	}
	if medium.Tray != "open" {
		steps = append(steps, Step{Command: "blockdev-close-tray", Args: properties{id}})
	}
	return orderSteps(steps), nil
}

func insertMedium(d *device.Disk) *Step {
	return &Step{Command: "blockdev-insert-medium", Args: properties{{"id", backendOf(d)}, {"node-name", TopNode(d)}}}
}

// orderSteps moves commands that add before commands that remove: if the new medium cannot be opened, the
// old one is still there.
func orderSteps(steps []Step) []Step {
	var first, rest, last []Step
	for _, s := range steps {
		switch s.Command {
		case "add-fd", "blockdev-add":
			first = append(first, s)
		case "blockdev-del", "remove-fd":
			last = append(last, s)
		default:
			rest = append(rest, s)
		}
	}
	return append(append(first, rest...), last...)
}
