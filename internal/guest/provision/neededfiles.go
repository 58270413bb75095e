package provision

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// shownFiles returns the paths that QEMU opens later, on its own, in addition to those that it reads at its
// start.
func shownFiles(def *domain.Definition) []string {
	var paths []string
	for _, b := range Backends(def) {
		if b.Type == "pipe" {
			paths = append(paths, b.Path, b.Path+".in", b.Path+".out")
		}
	}
	if needsNetwork(def) {
		paths = append(paths, resolverFiles...)
	}
	for _, rng := range def.Devices.RNGs {
		if rng.Backend == "random" && !strings.HasPrefix(rng.Path, "/dev/") {
			paths = append(paths, rng.Path)
		}
	}
	for _, h := range def.Devices.HostDevices {
		paths = append(paths, "/sys") // the device's description and resources
		if h.Type == "usb" {
			paths = append(paths, "/run/udev")
		}
	}
	for _, arg := range def.QEMUArgs { // the user's own arguments: only paths can be recognized
		for word := range strings.FieldsFuncSeq(arg, func(c rune) bool { return c == '=' || c == ',' }) {
			if filepath.IsAbs(word) && !strings.HasPrefix(word, "/dev/") {
				paths = append(paths, word)
			}
		}
	}
	slices.Sort(paths)
	read := ReadFiles(def)
	return slices.DeleteFunc(slices.Compact(paths), func(p string) bool { return p == "" || filelabel.IsHostFile(p) || slices.Contains(read, p) })
}

// ReadFiles returns the files that QEMU only reads, to the end, while it makes the machine. Files of the
// host's programs are left out: every guest may read them.
func ReadFiles(def *domain.Definition) []string {
	return slices.DeleteFunc(bootFiles(def), filelabel.IsHostFile)
}

// bootFiles returns all files that QEMU reads for a definition while it makes the machine.
func bootFiles(def *domain.Definition) []string {
	paths := []string{def.OS.Kernel, def.OS.Initrd, def.OS.DTB}
	if def.OS.Loader.Type != "pflash" {
		paths = append(paths, def.OS.Loader.Path)
	}
	if s := def.SysInfo; s != nil {
		for _, e := range s.FWCfg {
			paths = append(paths, e.File)
		}
	}
	for _, dev := range def.Devices.All() {
		if rom := dev.Common().ROM; rom != nil && filepath.IsAbs(rom.File) { // other names are QEMU's own files
			paths = append(paths, rom.File)
		}
	}
	return slices.DeleteFunc(paths, func(p string) bool { return p == "" })
}

// Backends returns the host's ends of all character devices.
func Backends(def *domain.Definition) []*device.Backend {
	var all []*device.Backend
	for _, dev := range def.Devices.All() {
		if b := BackendOf(dev); b != nil {
			all = append(all, b)
		}
	}
	return all
}

// BackendOf returns the host's end of a character device. Nil: the device has none.
func BackendOf(dev device.Device) *device.Backend {
	switch d := dev.(type) {
	case *device.Char:
		return &d.Backend
	case *device.Redir:
		return &d.Backend
	case *device.RNG:
		return d.Char
	}
	return nil
}

// HostNodes returns the device nodes of the host that a guest's QEMU opens on its own.
func HostNodes(r *machine.Registry, def *domain.Definition) []string {
	var nodes []string
	if def.Virt == "kvm" {
		nodes = append(nodes, "/dev/kvm")
	}
	for _, dev := range def.Devices.All() {
		nodes = append(nodes, nodesOf(r, dev)...)
	}
	return nodes
}

// nodesOf returns the device nodes behind one device.
func nodesOf(r *machine.Registry, dev device.Device) []string {
	if b := BackendOf(dev); b != nil && b.Type == "dev" {
		return []string{b.Path}
	}
	switch d := dev.(type) {
	case *device.RNG:
		if d.Backend == "random" && strings.HasPrefix(d.Path, "/dev/") {
			return []string{d.Path}
		}
	case *device.Input:
		if d.Source != "" {
			return []string{d.Source}
		}
	case *device.TPM:
		if d.Type == "passthrough" {
			return []string{cmp.Or(d.Path, "/dev/tpm0")}
		}
	case *device.Graphics:
		if d.GL == device.On {
			return renderNode(r, d)
		}
	case *device.HostDevice:
		return passedNodes(r, d)
	}
	return nil
}

// renderNode returns the graphics adapter that a display renders with: the one in the definition, or the
// host's first. On a host without one, QEMU reports the error.
func renderNode(r *machine.Registry, d *device.Graphics) []string {
	if d.RenderNode != "" {
		return []string{d.RenderNode}
	}
	for _, adapter := range r.Kernel.DRMDevices() {
		if adapter.Kind == "render" {
			return []string{adapter.Node}
		}
	}
	return nil
}

func hasTerminals(def *domain.Definition) bool {
	return slices.ContainsFunc(Backends(def), func(b *device.Backend) bool { return b.Type == "pty" })
}

// needsNetwork reports whether a guest's QEMU uses the host's network itself. Interfaces on taps and VNC
// displays do not need it: QEMU is passed their descriptors.
func needsNetwork(def *domain.Definition) bool {
	return len(def.QEMUArgs) > 0 ||
		slices.ContainsFunc(def.Devices.NICs, func(n *device.NIC) bool { return n.Type == "user" }) ||
		slices.ContainsFunc(Backends(def), func(b *device.Backend) bool { return b.Type == "tcp" || b.Type == "udp" }) ||
		slices.ContainsFunc(def.Devices.Graphics, func(g *device.Graphics) bool {
			return g.WebSocket != 0 || qemu.DisplayHasPort(g) && !qemu.DaemonListens(g)
		})
}

// needsRings reports whether a guest's QEMU uses io_uring.
func needsRings(def *domain.Definition) bool {
	return len(def.QEMUArgs) > 0 || slices.ContainsFunc(def.Devices.Disks, func(d *device.Disk) bool { return d.IO == "io_uring" })
}

// passedNodes returns the device nodes of a host device that is passed through.
func passedNodes(r *machine.Registry, d *device.HostDevice) []string {
	if d.Type == "pci" {
		found, ok := r.Kernel.PCIDevice(HostAddress(d))
		if !ok {
			return nil // the start reports it
		}
		return []string{"/dev/vfio/vfio", fmt.Sprintf("/dev/vfio/%d", found.IOMMUGroup)}
	}
	var nodes []string
	for _, u := range r.Kernel.USBDevices() {
		byPlace := d.USBBus != 0 && uint(u.Bus) == d.USBBus && uint(u.Device) == d.USBDevice
		byName := d.USBBus == 0 && uint(u.Vendor) == d.USBVendor && uint(u.Product) == d.USBProduct
		if byPlace || byName {
			nodes = append(nodes, fmt.Sprintf("/dev/bus/usb/%03d/%03d", u.Bus, u.Device))
		}
	}
	return nodes
}
