package device

import "fmt"

// Address is where a device sits in its guest. The concrete types are
// comparable values: two devices clash when their addresses are equal.
type Address interface {
	address()
	String() string
}

// PCI is a slot on one of the guest's PCI buses.
type PCI struct {
	Domain, Bus, Slot, Function uint
	// Multifunction says that further functions share the slot (function 0 only).
	Multifunction Switch
}

// Drive is a place on an IDE, SATA, SCSI or floppy controller.
type Drive struct{ Controller, Bus, Target, Unit uint }

// USB is a port of a USB bus; Port is dotted behind hubs ("1.2").
type USB struct {
	Bus  uint
	Port string
}

// VirtioSerial is a port of a virtio-serial controller.
type VirtioSerial struct{ Controller, Bus, Port uint }

// ISA is a fixed port and interrupt; zero means the model's usual ones.
type ISA struct{ IOBase, IRQ uint }

func (PCI) address()          {}
func (Drive) address()        {}
func (USB) address()          {}
func (VirtioSerial) address() {}
func (ISA) address()          {}

func (a PCI) String() string {
	return fmt.Sprintf("pci %04x:%02x:%02x.%x", a.Domain, a.Bus, a.Slot, a.Function)
}

func (a Drive) String() string {
	return fmt.Sprintf("drive %d:%d:%d:%d", a.Controller, a.Bus, a.Target, a.Unit)
}
func (at USB) String() string { return fmt.Sprintf("usb %d port %s", at.Bus, at.Port) }
func (a VirtioSerial) String() string {
	return fmt.Sprintf("virtio-serial %d:%d:%d", a.Controller, a.Bus, a.Port)
}
func (a ISA) String() string { return fmt.Sprintf("isa 0x%x irq %d", a.IOBase, a.IRQ) }
