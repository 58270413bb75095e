package qemu

import (
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Preparable returns the reason why a guest's QEMU cannot be started before the guest; nil: it can, and waits with
// its vCPUs stopped. Such a QEMU has exactly the arguments of the start, so its hardware cannot differ. It is
// refused if something that a start reads may change meanwhile (images, the host's devices, a clock not
// based on UTC), or if its presence is visible (ports, sockets, interfaces, memory).
func Preparable(d *domain.Definition) error {
	for _, check := range []func(*domain.Definition) error{checkMemory, checkClock, checkFirmware} {
		if err := check(d); err != nil {
			return err
		}
	}
	if d.Virt != "qemu" {
		return unsupported("domain type %s cannot be prepared: its time stamp counter would count from the preparation", d.Virt)
	}
	if len(d.QEMUArgs) > 0 || len(d.QEMUEnv) > 0 {
		return unsupported("nobody knows what arguments of the user's own do while QEMU waits")
	}
	if d.GenID == "auto" {
		return unsupported("each start has a generation of its own")
	}
	for _, dev := range d.Devices.All() {
		if !isQEMUOnly(dev) {
			return unsupported("the %s cannot be prepared: it is part of the host, or can be seen there", dev.Kind())
		}
	}
	return nil
}

// checkMemory requires memory that is allocated only when the guest touches it.
func checkMemory(d *domain.Definition) error {
	b := d.Backing
	anonymous := b.Source == "" || b.Source == "anonymous"
	switch {
	case b.HasHugePages || b.Locked || b.Allocation == "immediate" || !anonymous:
		return unsupported("the memory of this guest is taken when QEMU starts")
	case d.NUMA.Mode != "" || len(d.NUMA.Cells) > 0:
		return unsupported("the memory of this guest is bound to nodes of the host when QEMU starts")
	}
	return nil
}

// checkClock requires a clock that is right at any start: QEMU's clock follows the host's from the time
// when the machine was made.
func checkClock(d *domain.Definition) error {
	if o := d.Clock.Offset; o != "" && o != "utc" {
		return unsupported("a clock of offset %s is set when QEMU starts", o)
	}
	for _, t := range d.Clock.Timers {
		if t.Name == "rtc" && t.Track != "" && t.Track != "boot" && t.Track != "wall" {
			return unsupported("a clock that tracks %s stands while QEMU waits", t.Track)
		}
	}
	return nil
}

// checkFirmware refuses firmware with variables in a file that others may write.
func checkFirmware(d *domain.Definition) error {
	if l := d.OS.Loader; l.Type == "pflash" || d.OS.Firmware == "efi" || d.OS.NVRAM.Path != "" {
		return unsupported("the variables of UEFI firmware are read when QEMU starts")
	}
	return nil
}

// isQEMUOnly reports whether a device uses nothing of the host that can change or be seen.
func isQEMUOnly(dev device.Device) bool {
	switch d := dev.(type) {
	case *device.Controller, *device.Sound, *device.Watchdog, *device.Panic, *device.Balloon, *device.Hub:
		return true
	case *device.Disk:
		return d.Source == nil
	case *device.NIC:
		return d.Type == "user"
	case *device.Char:
		return d.Backend.Type == "pty" || d.Backend.Type == "null"
	case *device.Input:
		return d.Type == "mouse" || d.Type == "keyboard" || d.Type == "tablet"
	case *device.Audio:
		return d.Type == "none"
	case *device.Video:
		return d.Accel3D != device.On && d.Blob != device.On
	case *device.RNG:
		return d.Backend == "builtin" || d.Backend == "random" && slices.Contains([]string{"", "/dev/urandom", "/dev/random"}, d.Path)
	}
	return false
}

// ReadAtStart lists the files that QEMU reads while it makes a machine, except its own binary and
// modules. It also lists the directories of firmware and option ROMs, where an update
// replaces files.
func ReadAtStart(d *domain.Definition, binary string) []string {
	files := []string{d.OS.Kernel, d.OS.Initrd, d.OS.DTB, d.OS.Loader.Path}
	if s := d.SysInfo; s != nil {
		for _, e := range s.FWCfg {
			files = append(files, e.File)
		}
	}
	for _, dev := range d.Devices.All() {
		if rom := dev.Common().ROM; rom != nil {
			files = append(files, rom.File)
		}
	}
	prefix := filepath.Dir(filepath.Dir(binary))
	for _, dir := range []string{"share/qemu", "share/seabios", "lib/ipxe/qemu", "share/qemu-firmware", "share/ipxe"} {
		files = append(files, filepath.Join(prefix, dir))
	}
	return slices.DeleteFunc(files, func(path string) bool { return path == "" })
}

// SameMachine reports whether two commands make the same machine and refer to no file that only one
// process got, except for the monitor's.
func (c *Command) SameMachine(other *Command) bool {
	return slices.Equal(c.Args, other.Args) && slices.Equal(c.Env, other.Env) && max(len(c.Files), len(other.Files)) <= 1
}
