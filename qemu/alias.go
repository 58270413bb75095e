package qemu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
)

// AssignAliases gives every device the name that QEMU knows it by, as libvirt
// does, and every disk the number of its block node. What is there is kept, so
// it may be called again.
func AssignAliases(d *domain.Definition) {
	s := &d.Devices
	taken := map[string]bool{}
	for _, dev := range s.All() {
		taken[dev.Common().Alias] = true
	}
	for _, dev := range s.All() {
		if info := dev.Common(); info.Alias == "" {
			info.Alias = alias(s, dev, taken)
			taken[info.Alias] = true
		}
	}
	if len(s.Consoles) > 0 && mirrorsSerial(s, s.Consoles[0]) {
		s.Consoles[0].Alias = s.Serials[0].Alias
	}
	for _, disk := range slices.Backward(s.Disks) {
		numberNode(s, disk)
	}
}

// numberNode gives a disk's source the next number that no other disk has.
func numberNode(s *device.Set, disk *device.Disk) {
	if disk.Source == nil || disk.Source.Index != 0 {
		return
	}
	disk.Source.Index = highestNode(s) + 1
}

func highestNode(s *device.Set) uint {
	highest := uint(0)
	for _, other := range s.Disks {
		if other.Source != nil {
			highest = max(highest, other.Source.Index)
		}
	}
	return highest
}

// mirrorsSerial reports whether a console is only another name of the first
// serial port.
func mirrorsSerial(s *device.Set, c *device.Char) bool {
	return len(s.Consoles) > 0 && c == s.Consoles[0] && c.TargetType == "serial" && len(s.Serials) > 0
}

// alias makes the name of a device; names that end in a number of their own
// choice get the one after the highest.
func alias(s *device.Set, dev device.Device, taken map[string]bool) string {
	switch d := dev.(type) {
	case *device.Disk:
		return diskAlias(d)
	case *device.Controller:
		return controllerAlias(s, d)
	case *device.Audio:
		return "" // goes by its id
	case *device.Memory:
		at, _ := d.Address.(device.DIMM)
		return fmt.Sprintf("%s%d", d.Model, at.Slot)
	case *device.Graphics:
		return d.Type // no device of QEMU's; there is one of each type
	}
	prefix := prefixes[dev.Kind()]
	next := 0
	for name := range taken {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			if n, err := strconv.Atoi(rest); err == nil && n >= next {
				next = n + 1
			}
		}
	}
	return prefix + strconv.Itoa(next)
}

// prefixes of aliases, where they differ from the name of the XML element.
var prefixes = map[string]string{
	"interface": "net", "serial": "serial", "parallel": "parallel", "console": "console", "channel": "channel",
	"input": "input", "tpm": "tpm", "sound": "sound", "video": "video", "hostdev": "hostdev", "redirdev": "redir",
	"hub": "hub", "watchdog": "watchdog", "memballoon": "balloon", "rng": "rng", "panic": "panic", "vsock": "vsock",
}

func diskAlias(d *device.Disk) string {
	at, ok := d.Address.(device.Drive)
	switch {
	case !ok:
		return fmt.Sprintf("%s-disk%d", d.Bus, targetNumber(d.Target))
	case d.Bus == "scsi":
		return fmt.Sprintf("scsi%d-%d-%d-%d", at.Controller, at.Bus, at.Target, at.Unit)
	}
	return fmt.Sprintf("%s%d-%d-%d", d.Bus, at.Controller, at.Bus, at.Unit)
}

// targetNumber counts the letters of a target: vda is 0, vdz 25, vdaa 26.
func targetNumber(target string) uint {
	n := uint(0)
	for _, r := range strings.TrimRight(target, "0123456789")[min(2, len(target)):] {
		n = n*26 + uint(r-'a') + 1
	}
	return n - 1
}

func controllerAlias(s *device.Set, c *device.Controller) string {
	switch {
	case c.Type == "pci" && c.Model == "pcie-root":
		return "pcie.0"
	case c.Type == "pci":
		return fmt.Sprintf("pci.%d", c.Index)
	case isBoardDrives(s, c):
		return "ide"
	case c.Type == "usb" && c.Index == 0:
		return "usb"
	}
	return fmt.Sprintf("%s%d", c.Type, c.Index)
}

// isBoardDrives reports whether a controller is the one for drives that the
// machine has on its board.
func isBoardDrives(s *device.Set, c *device.Controller) bool {
	if c.Index != 0 {
		return false
	}
	return c.Type == "ide" || c.Type == "sata" && hasRoot(s, "pcie-root")
}

func hasRoot(s *device.Set, model string) bool {
	for _, c := range s.Controllers {
		if c.Type == "pci" && c.Index == 0 {
			return c.Model == model
		}
	}
	return false
}
