package domainxml

import (
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Settle removes the values from a definition that only a running guest has. The
// result is the definition for the next start.
func Settle(d *domain.Definition) {
	for _, dev := range d.Devices.All() {
		settleDevice(dev)
	}
	d.SecLabels = slices.DeleteFunc(d.SecLabels, isRunLabel)
	for i := range d.SecLabels {
		l := &d.SecLabels[i]
		if l.ImageLabel = ""; l.Type != "static" { // else it was made for a run
			l.Label = ""
		}
	}
}

// isRunLabel reports whether a label names the user of one run of a guest, which differs at
// each start. No definition can ask for such a label.
func isRunLabel(l domain.SecLabel) bool {
	return l.Type == "dynamic" && l.Model == "dac" && l.Relabel == device.Off && l.Label != ""
}

func settleDevice(dev device.Device) {
	if info := dev.Common(); !strings.HasPrefix(info.Alias, "ua-") {
		info.Alias = "" // the user's own aliases have that prefix
	}
	switch d := dev.(type) {
	case *device.Disk:
		if !d.BackingSaid { // it was found when the guest was started
			d.Backing = nil
		}
		d.Mirror = nil
		if d.Source != nil {
			d.Source.Index = 0
		}
		for _, layer := range d.Backing {
			if layer.Source != nil {
				layer.Source.Index = 0
			}
		}
	case *device.NIC:
		settleNIC(d)
	case *device.Char:
		d.State = ""
		settleBackend(&d.Backend)
		settleSocket(&d.Backend, d.Name)
	case *device.HostDevice:
		if d.USBFound == device.On {
			d.USBBus, d.USBDevice, d.USBFound = 0, 0, device.Unset
		}
	case *device.Redir:
		settleBackend(&d.Backend)
	case *device.Graphics:
		settleGraphics(d)
	case *device.VSock:
		if d.Auto == device.On {
			d.CID = 0
		}
	}
}

// generated are the prefixes of the names that are given to links at start.
var generated = []string{"vnet", "macvtap", "macvlan"}

func settleNIC(d *device.NIC) {
	if d.Type == "network" {
		d.Bridge = ""
	}
	for _, prefix := range generated {
		if d.Managed != device.Off && strings.HasPrefix(d.Target, prefix) {
			d.Target = ""
		}
	}
}

func settleBackend(b *device.Backend) {
	if b.Type == "pty" {
		b.Path = ""
	}
}

func settleGraphics(d *device.Graphics) {
	if d.AutoPort == device.On {
		d.Port, d.TLSPort = -1, 0
		if d.Type == "spice" {
			d.Port = 0
		}
	}
	for i := range d.Listens {
		if d.Listens[i].Type == "network" {
			d.Listens[i].Address = ""
		}
		settleListen(d.Type, &d.Listens[i])
	}
}
