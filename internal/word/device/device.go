// Package device is the model of a guest's devices: disks, NICs,
// controllers, character devices, host devices and the rest, each with its
// definition, its address (Address) and the host's resources for it (attachments).
//
// These are plain values. The package opens, allocates and decides nothing, apart from
// the pure rules of addressing. Enumerated fields are strings with libvirt's
// spelling ("virtio", "q35"); the zero value means "not given".
package device

import "slices"

// Info holds the fields that every device has.
type Info struct {
	// Alias names the device on QEMU's side ("virtio-disk0"); unique in a guest.
	Alias string
	// Address is where the device sits; nil until assigned.
	Address Address
	// BootOrder is the device's place in the boot sequence, from 1; 0 means none.
	BootOrder uint
	// ROM is the option ROM of a PCI device; nil means QEMU's default.
	ROM *ROM
	// ACPIIndex fixes the device's onboard index in the guest; 0 means none.
	ACPIIndex uint
}

// ROM is the option ROM of a PCI device.
type ROM struct {
	Bar     Switch
	Enabled Switch
	File    string
}

// Switch is a setting that is on, off or left to the host.
type Switch int

// The three positions of a switch.
const (
	Unset Switch = iota
	On
	Off
)

// Bool makes a switch position from a yes or no.
func Bool(on bool) Switch {
	if on {
		return On
	}
	return Off
}

// Or returns the switch as a yes or no, with def where it is unset.
func (s Switch) Or(def bool) bool {
	if s == Unset {
		return def
	}
	return s == On
}

func (s Switch) String() string { return [...]string{"", "on", "off"}[s] }

// Set is every device of one guest, grouped by nature. Order within a group is
// the order of definition, and is kept.
type Set struct {
	Emulator    string // path of the QEMU binary; empty: the host's choice
	Disks       []*Disk
	Controllers []*Controller
	NICs        []*NIC
	Serials     []*Char
	Parallels   []*Char
	Consoles    []*Char
	Channels    []*Char
	Inputs      []*Input
	TPMs        []*TPM
	Graphics    []*Graphics
	Sounds      []*Sound
	Audios      []*Audio
	Videos      []*Video
	HostDevices []*HostDevice
	Redirs      []*Redir
	Hubs        []*Hub
	Watchdogs   []*Watchdog
	Balloon     *Balloon
	RNGs        []*RNG
	Panics      []*Panic
	Memories    []*Memory
	VSock       *VSock
}

// Device is any device of a guest.
type Device interface {
	// Common returns the shared part, for reading and for assigning.
	Common() *Info
	// Kind names the device's XML element: "disk", "interface", "controller".
	Kind() string
}

// Common returns the shared part of a device.
func (i *Info) Common() *Info { return i }

// Kind names the XML element of a disk; the methods below do so for the others.
func (*Disk) Kind() string { return "disk" }

// Kind names the XML element.
func (*Controller) Kind() string { return "controller" }

// Kind names the XML element.
func (*NIC) Kind() string { return "interface" }

// Kind names the XML element.
func (c *Char) Kind() string { return string(c.Role) }

// Kind names the XML element.
func (*Input) Kind() string { return "input" }

// Kind names the XML element.
func (*TPM) Kind() string { return "tpm" }

// Kind names the XML element.
func (*Graphics) Kind() string { return "graphics" }

// Kind names the XML element.
func (*Sound) Kind() string { return "sound" }

// Kind names the XML element.
func (*Audio) Kind() string { return "audio" }

// Kind names the XML element.
func (*Video) Kind() string { return "video" }

// Kind names the XML element.
func (*HostDevice) Kind() string { return "hostdev" }

// Kind names the XML element.
func (*Redir) Kind() string { return "redirdev" }

// Kind names the XML element.
func (*Hub) Kind() string { return "hub" }

// Kind names the XML element.
func (*Watchdog) Kind() string { return "watchdog" }

// Kind names the XML element.
func (*Balloon) Kind() string { return "memballoon" }

// Kind names the XML element.
func (*RNG) Kind() string { return "rng" }

// Kind names the XML element.
func (*Panic) Kind() string { return "panic" }

// Kind names the XML element.
func (*VSock) Kind() string { return "vsock" }

// All returns every device in libvirt's document order. The devices are shared
// with the set, the slice is the caller's.
func (s *Set) All() []Device {
	var all []Device
	all = gather(all, s.Disks)
	all = gather(all, s.Controllers)
	all = gather(all, s.NICs)
	all = gather(all, s.Serials)
	all = gather(all, s.Parallels)
	all = gather(all, s.Consoles)
	all = gather(all, s.Channels)
	all = gather(all, s.Inputs)
	all = gather(all, s.TPMs)
	all = gather(all, s.Graphics)
	all = gather(all, s.Sounds)
	all = gather(all, s.Audios)
	all = gather(all, s.Videos)
	all = gather(all, s.HostDevices)
	all = gather(all, s.Redirs)
	all = gather(all, s.Hubs)
	all = gather(all, s.Watchdogs)
	if s.Balloon != nil {
		all = append(all, s.Balloon)
	}
	all = gather(all, s.RNGs)
	all = gather(all, s.Panics)
	all = gather(all, s.Memories)
	if s.VSock != nil {
		all = append(all, s.VSock)
	}
	return all
}

func gather[D Device](all []Device, some []D) []Device {
	all = slices.Grow(all, len(some))
	for _, d := range some {
		all = append(all, d)
	}
	return all
}

// ByAlias finds a device by its alias, or returns nil.
func (s *Set) ByAlias(alias string) Device {
	for _, d := range s.All() {
		if alias != "" && d.Common().Alias == alias {
			return d
		}
	}
	return nil
}
