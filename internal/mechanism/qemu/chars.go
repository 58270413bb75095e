package qemu

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func (b *builder) chars() error {
	s := &b.Definition.Devices
	var err error
	if b.consolePorts, err = s.ConsolePorts(); err != nil {
		return err
	}
	for _, group := range [][]*device.Char{s.Serials, s.Parallels, s.Channels, s.Consoles} {
		for _, c := range group {
			if mirrorsSerial(s, c) {
				continue
			}
			if err := b.char(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// char makes a character device and its host's end.
func (b *builder) char(c *device.Char) error {
	driver, props, err := b.charProperties(c)
	if err != nil {
		return err
	}
	if err := b.placeSocket(c.Alias, &c.Backend); err != nil {
		return err
	}
	back, err := b.backend(c.Alias, &c.Backend, c.Role)
	if err != nil {
		return err
	}
	props = append(properties{{"chardev", back}, {"id", c.Alias}}, props...)
	if err := b.place(&props, &c.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}

func (b *builder) charProperties(c *device.Char) (driver string, props properties, err error) {
	switch {
	case c.Role == device.Serial:
		return b.serialProperties(c)
	case c.Role == device.Parallel:
		return "isa-parallel", properties{{"index", c.Port}}, nil
	case c.Role == device.Console && c.TargetType == "virtio":
		return b.portProperties(c, "virtconsole")
	case c.Role == device.Channel && c.TargetType == "virtio":
		return b.portProperties(c, "virtserialport")
	}
	return "", nil, unsupported("%ss of target type %q are not built", c.Role, c.TargetType)
}

// isaPorts is how many serial ports of the old kind a machine can have.
const isaPorts = 4

func (b *builder) serialProperties(c *device.Char) (string, properties, error) {
	switch c.TargetType {
	case "isa-serial":
		if c.Port >= isaPorts {
			err := b.unlessDryRun(unsupported("serial port %d: there are %d of target type isa-serial; use pci-serial for more", c.Port, isaPorts))
			if err != nil {
				return "", nil, err
			}
		}
		return "isa-serial", properties{{"index", c.Port}}, nil
	case "pci-serial", "usb-serial":
		return c.TargetType, nil, nil
	}
	return "", nil, unsupported("serial ports of target type %q are not built", c.TargetType)
}

// portProperties place a port of a virtio-serial controller.
func (b *builder) portProperties(c *device.Char, driver string) (string, properties, error) {
	at, ok := c.Address.(device.VirtioSerial)
	if !ok {
		at, ok = b.consolePorts[c]
	}
	if !ok {
		return "", nil, invalid("%s %s has no place on a controller", c.Role, c.Alias)
	}
	props := properties{
		{"bus", b.controllerName("virtio-serial", at.Controller) + ".0"},
		{"nr", at.Port},
	}
	if driver == "virtserialport" {
		props.text("name", c.Name)
	}
	return driver, props, nil
}

// redirs make the guest's ends of USB devices that a client has.
func (b *builder) redirs() error {
	for _, r := range b.Definition.Devices.Redirs {
		if err := b.redir(r); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) redir(r *device.Redir) error {
	if r.Bus != "usb" {
		return unsupported("redirected devices on bus %q are not built", r.Bus)
	}
	if err := b.placeSocket(r.Alias, &r.Backend); err != nil {
		return err
	}
	back, err := b.backend(r.Alias, &r.Backend, "")
	if err != nil {
		return err
	}
	props := properties{{"chardev", back}, {"id", r.Alias}}
	props.number("bootindex", b.boot.of(r))
	if err := b.place(&props, &r.Info); err != nil {
		return err
	}
	return b.addDevice("usb-redir", props)
}

// tpms make trusted platform modules; an emulated one is a program that
// listens already.
func (b *builder) tpms() error {
	for _, t := range b.Definition.Devices.TPMs {
		id := "tpm-" + t.Alias
		dev := optionList{t.Type}
		dev.add("id", id)
		switch t.Type {
		case "emulator":
			path := b.TPMSockets[t.Alias]
			if path == "" && !b.dryRun {
				return invalid("the emulator of %s does not run", t.Alias)
			}
			socket := optionList{"socket"}
			socket.add("id", "chr"+t.Alias)
			socket.add("path", path)
			b.addOption("chardev", socket)
			dev.add("chardev", "chr"+t.Alias)
		case "passthrough":
			dev.text("path", t.Path)
		default:
			return unsupported("TPMs of type %q are not built", t.Type)
		}
		if t.Model != "tpm-tis" && t.Model != "tpm-crb" {
			return unsupported("TPMs of model %q are not built", t.Model)
		}
		b.addOption("tpmdev", dev)
		if err := b.addDevice(t.Model, properties{{"tpmdev", id}, {"id", t.Alias}}); err != nil {
			return err
		}
	}
	return nil
}

// inputs make keyboards, mice and tablets; those of type ps2 are on the board.
func (b *builder) inputs() error {
	for _, in := range b.Definition.Devices.Inputs {
		if err := b.input(in); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) input(in *device.Input) error {
	if in.Bus == "ps2" {
		if b.board == microvm {
			return unsupported("machine type microvm has no ps2 bus for a %s", in.Type)
		}
		return nil
	}
	if in.Type == "evdev" {
		return b.addObject("input-linux", in.Alias, property{"evdev", in.Source})
	}
	props := properties{{"id", in.Alias}}
	driver := ""
	switch in.Bus {
	case "usb":
		driver = map[string]string{"tablet": "usb-tablet", "mouse": "usb-mouse", "keyboard": "usb-kbd"}[in.Type]
	case "virtio":
		name := map[string]string{"tablet": "virtio-tablet", "mouse": "virtio-mouse", "keyboard": "virtio-keyboard", "passthrough": "virtio-input-host"}[in.Type]
		if in.Type == "passthrough" {
			props.add("evdev", in.Source)
		}
		if name == "" || strings.Contains(in.Model, "-transitional") {
			break
		}
		var err error
		if driver, err = b.virtio(name, "", 0, 0, 0, 0, &props); err != nil {
			return err
		}
	}
	if driver == "" {
		return unsupported("input devices of type %q on bus %q are not built", in.Type, in.Bus)
	}
	if err := b.place(&props, &in.Info); err != nil {
		return err
	}
	return b.addDevice(driver, props)
}
