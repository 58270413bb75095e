package domainxml

import (
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// devices adds the devices that other devices need, and those that every machine has. The
// order of the steps is the order in which the new devices appear.
func (c *completion) devices() error {
	s := &c.d.Devices
	setDefault(&s.Emulator, c.host.Emulator)
	all := s.All()
	if len(all) > MaxDevices {
		return invalid("%d devices are more than the %d that a guest can have", len(all), MaxDevices)
	}
	s.SortDisks()
	for _, d := range s.Controllers {
		completeCompanion(d)
	}
	s.SortControllers()
	for _, dev := range all {
		if err := c.completeDevice(dev); err != nil {
			return err
		}
	}
	numberPorts(s.Serials)
	numberPorts(s.Parallels)
	numberPorts(s.Consoles)
	c.consoles()
	c.inputs()
	c.audio()
	c.video()
	if s.Balloon == nil && c.chipset != isapc {
		s.Balloon = &device.Balloon{Model: "virtio"}
	}
	c.numberControllers()
	c.machineControllers()
	if err := c.drives(); err != nil {
		return err
	}
	return s.AssignSerial()
}

// CompleteDevice completes a device that is plugged in alone.
// Values that depend on the guest's other devices (index, address) stay open.
func CompleteDevice(dev device.Device, machine string, h *Host) error {
	c := &completion{host: h, chipset: chipsetOf(machine)}
	return c.completeDevice(dev)
}

func (c *completion) completeDevice(dev device.Device) error {
	switch d := dev.(type) {
	case *device.Disk:
		return completeDisk(d)
	case *device.Controller:
		completeController(d)
	case *device.NIC:
		return c.completeNIC(d)
	case *device.Char:
		return completeChar(d)
	case *device.Input:
		if d.Bus == "" && d.Type != "evdev" {
			d.Bus = "usb"
			if d.Type == "mouse" || d.Type == "keyboard" {
				d.Bus = "ps2"
			}
		}
	case *device.TPM:
		setDefault(&d.Model, "tpm-tis")
		if d.Type == "emulator" {
			setDefault(&d.Version, "2.0")
		}
	case *device.Graphics:
		completeGraphics(d)
	case *device.Video:
		completeVideo(d)
	case *device.HostDevice:
		setDefault(&d.Managed, device.Off)
	case *device.Redir:
		setDefault(&d.Bus, "usb")
	case *device.Watchdog:
		setDefault(&d.Action, "reset")
	case *device.Balloon:
		setDefault(&d.Model, "virtio")
	case *device.RNG:
		return completeRNG(d)
	case *device.Panic:
		setDefault(&d.Model, "isa")
	case *device.Memory:
		d.Size = d.WholeSize()
	case *device.VSock:
		setDefault(&d.Model, "virtio")
		setDefault(&d.Auto, device.Bool(d.CID == 0))
	}
	return nil
}

// companions are the USB 1 parts of the ICH9 controller, with the ports of the
// USB 2 part at which they begin.
var companions = map[string]uint{"ich9-uhci1": 0, "ich9-uhci2": 2, "ich9-uhci3": 4}

func completeController(d *device.Controller) {
	switch d.Type {
	case "usb":
		setDefault(&d.Model, "piix3-uhci")
		completeCompanion(d)
	case "scsi":
		setDefault(&d.Model, "lsilogic")
	}
}

func completeCompanion(d *device.Controller) {
	if port, ok := companions[d.Model]; ok && d.Type == "usb" && !d.HasMaster {
		d.HasMaster, d.MasterStart = true, port
	}
}

func (c *completion) completeNIC(d *device.NIC) (err error) {
	switch {
	case d.Type == "network" && d.Network == "":
		return invalid("an interface of type network names no network")
	case d.Type == "bridge" && d.Bridge == "":
		return invalid("an interface of type bridge names no bridge")
	case d.Type == "direct" && d.HostDev == "":
		return invalid("an interface of type direct names no device")
	case d.Queues > MaxQueues:
		return invalid("%d queues are more than the %d that an interface can have", d.Queues, MaxQueues)
	}
	if d.Type == "direct" {
		setDefault(&d.DirectMode, "vepa")
	}
	setDefault(&d.Model, "rtl8139")
	if d.MAC == "" {
		d.MAC, err = c.macAddress()
	}
	return err
}

func completeChar(d *device.Char) error {
	switch d.Role {
	case device.Serial:
		setDefault(&d.TargetType, "isa-serial")
		setDefault(&d.TargetModel, d.TargetType)
	case device.Console:
		setDefault(&d.TargetType, "serial")
	case device.Channel:
		if d.TargetType == "" {
			return invalid("a channel has no target type")
		}
		if d.Backend.Type == "spicevmc" {
			setDefault(&d.Name, "com.redhat.spice.0")
		}
	case device.Parallel:
	}
	if d.Backend.Type == "tcp" {
		setDefault(&d.Backend.Protocol, "raw")
	}
	return nil
}

func completeGraphics(d *device.Graphics) {
	if d.Port == -1 {
		d.AutoPort = device.On
	}
	said := d.AutoPort == device.On || d.Port != 0 || d.TLSPort != 0
	switch {
	case d.Type == "spice" && !said && len(d.Listens) == 0:
		d.AutoPort = device.Unset
		d.Listens = []device.Listen{{Type: "none"}} // reached through the API only
		return
	case len(d.Listens) > 0 && d.Listens[0].Type != "address" && d.Listens[0].Type != "network":
		return // no ports on a socket
	}
	if d.AutoPort == device.Unset {
		d.AutoPort = device.Bool(d.Port == 0 && d.TLSPort == 0)
	}
	settleGraphics(d)
	if len(d.Listens) == 0 {
		d.Listens = []device.Listen{{Type: "address"}}
	}
}

func completeVideo(d *device.Video) {
	setDefault(&d.Model, "cirrus")
	switch d.Model {
	case "none":
		return
	case "qxl":
		setDefault(&d.RAM, 64<<10)
		setDefault(&d.VRAM, 64<<10)
		setDefault(&d.VGAMem, 16<<10)
	case "vga", "cirrus", "vmvga", "bochs":
		setDefault(&d.VRAM, 16<<10)
	}
	setDefault(&d.Heads, 1)
}

func completeRNG(d *device.RNG) error {
	if d.Model == "" || d.Backend == "" {
		return invalid("an rng needs a model and a backend")
	}
	if d.Backend == "random" {
		setDefault(&d.Path, "/dev/urandom")
	}
	return nil
}

// consoles makes the first console and the first serial port two names of one
// device, unless the console is a separate device.
func (c *completion) consoles() {
	s := &c.d.Devices
	if len(s.Consoles) > 0 && s.Consoles[0].TargetType == "serial" {
		first := s.Consoles[0]
		if len(s.Serials) == 0 {
			serial := *first
			serial.Role = device.Serial
			serial.TargetType, serial.TargetModel = "isa-serial", "isa-serial"
			serial.Port = 0
			s.Serials = []*device.Char{&serial}
		}
		first.Backend, first.Info = s.Serials[0].Backend, device.Info{Alias: first.Alias}
		first.Port, first.PortSaid = s.Serials[0].Port, true
		return
	}
	if len(s.Serials) > 0 && s.Serials[0].TargetType == "isa-serial" {
		s.Consoles = slices.Insert(s.Consoles, 0, &device.Char{
			Role: device.Console, Backend: s.Serials[0].Backend, TargetType: "serial", Port: s.Serials[0].Port, PortSaid: true,
		})
	}
}

// numberPorts gives each device that has no port the one after the highest.
func numberPorts(chars []*device.Char) {
	next := uint(0)
	for _, d := range chars {
		if d.PortSaid {
			next = max(next, d.Port+1)
		}
	}
	for _, d := range chars {
		if !d.PortSaid {
			d.Port, d.PortSaid = next, true
			next++
		}
	}
}

func (c *completion) inputs() {
	if c.chipset == microvm {
		return
	}
	for _, kind := range []string{"mouse", "keyboard"} {
		if !slices.ContainsFunc(c.d.Devices.Inputs, func(i *device.Input) bool {
			return i.Type == kind && i.Bus == "ps2"
		}) {
			c.d.Devices.Inputs = append(c.d.Devices.Inputs, &device.Input{Type: kind, Bus: "ps2"})
		}
	}
}

// audio adds the <audio> element that a spice display needs.
func (c *completion) audio() {
	s := &c.d.Devices
	if len(s.Audios) > 0 {
		next := uint(1)
		for _, a := range s.Audios {
			next = max(next, a.ID+1)
		}
		for _, a := range s.Audios {
			if a.ID == 0 {
				a.ID = next
				next++
			}
		}
		return
	}
	kind := "none"
	if slices.ContainsFunc(s.Graphics, func(g *device.Graphics) bool { return g.Type == "spice" }) {
		kind = "spice"
	}
	s.Audios = []*device.Audio{{ID: 1, Type: kind}}
}

func (c *completion) video() {
	s := &c.d.Devices
	if len(s.Videos) == 0 {
		if len(s.Graphics) == 0 {
			return
		}
		v := new(device.Video)
		completeVideo(v)
		s.Videos = []*device.Video{v}
	}
	primary := slices.IndexFunc(s.Videos, func(v *device.Video) bool { return v.Primary == device.On })
	switch {
	case primary > 0: // stands first
		v := s.Videos[primary]
		s.Videos = slices.Insert(slices.Delete(s.Videos, primary, primary+1), 0, v)
	case primary < 0 && s.Videos[0].Model != "none":
		s.Videos[0].Primary = device.On
	}
}

// controllerPlace is a controller's type and index, which addresses refer to.
type controllerPlace struct {
	kind  string
	index uint
}

// numberControllers gives each controller without an index the first free one of its type. PCI's index 0 is
// the machine's own. A part of an ICH9 USB controller joins the parts before it, unless they have one of
// its model.
func (c *completion) numberControllers() {
	type part struct {
		model string
		index uint
	}
	c.there = map[controllerPlace]bool{{"pci", 0}: true}
	parts := map[part]bool{}
	for _, d := range c.d.Devices.Controllers {
		if d.Index == NoIndex && (d.Model == "pci-root" || d.Model == "pcie-root") {
			d.Index = 0
		}
		c.there[controllerPlace{d.Type, d.Index}] = true
		parts[part{d.Model, d.Index}] = true
	}
	next := map[string]uint{}
	var before *device.Controller // the USB controller before
	for _, d := range c.d.Devices.Controllers {
		if d.Index == NoIndex {
			if isICH9(d) && before != nil && isICH9(before) && !parts[part{d.Model, before.Index}] {
				d.Index = before.Index
			} else {
				for c.there[controllerPlace{d.Type, next[d.Type]}] {
					next[d.Type]++
				}
				d.Index = next[d.Type]
			}
			c.there[controllerPlace{d.Type, d.Index}] = true
			parts[part{d.Model, d.Index}] = true
		}
		if d.Type == "usb" {
			before = d
		}
	}
	c.there = map[controllerPlace]bool{}
	for _, d := range c.d.Devices.Controllers {
		c.there[controllerPlace{d.Type, d.Index}] = true
	}
}

func isICH9(d *device.Controller) bool { return d.Type == "usb" && strings.HasPrefix(d.Model, "ich9-") }

// need adds a controller at the end unless it exists.
func (c *completion) need(kind string, index uint, model string) {
	place := controllerPlace{kind, index}
	if c.there[place] {
		return
	}
	c.there[place] = true
	d := &device.Controller{Type: kind, Index: index, Model: model}
	completeController(d)
	c.d.Devices.Controllers = append(c.d.Devices.Controllers, d)
}

// machineControllers adds the controllers that are part of the machine, and USB.
func (c *completion) machineControllers() {
	switch c.chipset {
	case q35:
		c.need("usb", 0, "qemu-xhci")
		c.need("sata", 0, "")
		c.need("pci", 0, "pcie-root")
	case i440fx:
		c.need("usb", 0, "piix3-uhci")
		c.need("pci", 0, "pci-root")
	case microvm, isapc:
	}
}
