package qemu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// AssignAliases gives every device its QEMU id, as libvirt does, and every disk the number of its block
// node. Existing aliases stay, so it can be called again.
func AssignAliases(d *domain.Definition) {
	s := &d.Devices
	all := s.All()
	n := aliasing{next: map[string]int{}, controllers: controllersByKey(s)}
	root := n.controllers[controllerKey{"pci", 0}]
	n.express = root != nil && root.Model == "pcie-root"
	for _, dev := range all {
		n.reserve(dev.Common().Alias)
	}
	for _, dev := range all {
		if info := dev.Common(); info.Alias == "" {
			info.Alias = n.alias(dev)
		}
	}
	if len(s.Consoles) > 0 && mirrorsSerial(s, s.Consoles[0]) {
		s.Consoles[0].Alias = s.Serials[0].Alias
	}
	next := counterFrom(highestNode(s))
	for _, d := range slices.Backward(s.Disks) {
		d.Number(next)
	}
}

// SetChains gives the disks of a starting guest their backing chains, and numbers all images as libvirt
// does: from the last disk to the first, and in each from the top down. An empty drive uses a number too.
func SetChains(s *device.Set, found map[string]device.DiskAttachment) {
	next := counterFrom(0)
	for _, d := range slices.Backward(s.Disks) {
		if d.Source == nil {
			next()
		}
		d.SetChain(found[d.Alias])
		for _, image := range d.Images() {
			image.Index = next()
		}
	}
}

// counterFrom counts on from a number.
func counterFrom(last uint) (next func() uint) {
	return func() uint { last++; return last }
}

func highestNode(s *device.Set) uint {
	highest := uint(0)
	for _, d := range s.Disks {
		highest = max(highest, slices.Max(append(d.Nodes(), 0)))
	}
	return highest
}

// mirrorsSerial reports whether a console is only another name of the first
// serial port.
func mirrorsSerial(s *device.Set, c *device.Char) bool {
	return len(s.Consoles) > 0 && c == s.Consoles[0] && c.TargetType == "serial" && len(s.Serials) > 0
}

// aliasing is the state of the aliases assigned so far.
type aliasing struct {
	next        map[string]int // by prefix: the number after the highest
	controllers map[controllerKey]*device.Controller
	express     bool // the machine's root bus is of PCI Express
}

// reserve records the alias of a device.
func (n *aliasing) reserve(name string) {
	prefix := strings.TrimRight(name, "0123456789")
	if number, err := strconv.Atoi(name[len(prefix):]); err == nil {
		n.next[prefix] = max(n.next[prefix], number+1)
	}
}

// alias returns the name of a device. A name that ends in a free number gets the one
// after the highest.
func (n *aliasing) alias(dev device.Device) string {
	switch d := dev.(type) {
	case *device.Disk:
		return n.diskAlias(d)
	case *device.Controller:
		return n.controllerAlias(d)
	case *device.Audio:
		return "" // goes by its id
	case *device.Memory:
		at, _ := d.Address.(device.DIMM)
		return fmt.Sprintf("%s%d", d.Model, at.Slot)
	case *device.Graphics:
		return d.Type // no device of QEMU's; there is one of each type
	}
	prefix := prefixes[dev.Kind()]
	number := n.next[prefix]
	n.next[prefix]++
	return prefix + strconv.Itoa(number)
}

// prefixes of aliases, where they differ from the name of the XML element.
var prefixes = map[string]string{
	"interface": "net", "serial": "serial", "parallel": "parallel", "console": "console", "channel": "channel",
	"input": "input", "tpm": "tpm", "sound": "sound", "video": "video", "hostdev": "hostdev", "redirdev": "redir",
	"hub": "hub", "watchdog": "watchdog", "memballoon": "balloon", "rng": "rng", "panic": "panic", "vsock": "vsock",
}

func (n *aliasing) diskAlias(d *device.Disk) string {
	at, ok := d.Address.(device.Drive)
	switch {
	case !ok:
		return fmt.Sprintf("%s-disk%d", d.Bus, targetNumber(d.Target))
	case d.Bus == "scsi" && !n.isLSI(at.Controller):
		return fmt.Sprintf("scsi%d-%d-%d-%d", at.Controller, at.Bus, at.Target, at.Unit)
	}
	return fmt.Sprintf("%s%d-%d-%d", d.Bus, at.Controller, at.Bus, at.Unit)
}

// isLSI reports whether a SCSI controller is of the model that has no targets.
func (n *aliasing) isLSI(index uint) bool {
	c := n.controllers[controllerKey{"scsi", index}]
	return c != nil && c.Model == "lsilogic"
}

// targetNumber counts the letters of a target: vda is 0, vdz 25, vdaa 26.
func targetNumber(target string) uint {
	n, _ := device.TargetIndex(target)
	return n
}

func (n *aliasing) controllerAlias(c *device.Controller) string {
	switch {
	case c.Type == "pci" && c.Model == "pcie-root":
		return "pcie.0"
	case c.Type == "pci":
		return fmt.Sprintf("pci.%d", c.Index)
	case isBoardDrives(c, n.express):
		return "ide"
	case c.Type == "usb" && c.Index == 0:
		return "usb"
	}
	return fmt.Sprintf("%s%d", c.Type, c.Index)
}

// isBoardDrives reports whether a controller is the one for drives that the
// machine has on its board; express says that its root bus is of PCI Express.
func isBoardDrives(c *device.Controller, express bool) bool {
	return c.Index == 0 && (c.Type == "ide" || c.Type == "sata" && express)
}
