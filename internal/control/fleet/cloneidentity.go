package fleet

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// newIdentity gives a definition a new identity: name, UUID, MAC addresses and everything that only one guest of
// this host can have. It leaves the disks.
func newIdentity(d *domain.Definition, name, id string, mac func() (string, error)) error {
	d.Name, d.UUID = name, id
	if d.GenID != "" {
		d.GenID = uuid.NewString()
	}
	renewSMBIOS(d.SysInfo, id)
	for _, n := range d.Devices.NICs {
		var err error
		if n.MAC, err = mac(); err != nil {
			return err
		}
		n.Target = "" // the host's name of the tap device
	}
	if v := d.Devices.VSock; v != nil {
		v.CID, v.Auto = 0, device.On
	}
	for _, g := range d.Devices.Graphics {
		renewDisplay(g)
	}
	var err error
	d.Metadata, err = withoutTile(d.Metadata)
	return err
}

// renewSMBIOS replaces the machine's identifiers in SMBIOS.
func renewSMBIOS(s *domain.SysInfo, id string) {
	if s == nil {
		return
	}
	for _, group := range append([][]domain.SysInfoEntry{s.System, s.Chassis}, s.BaseBoards...) {
		for i := range group {
			if group[i].Name == "serial" || group[i].Name == "uuid" {
				group[i].Value = id
			}
		}
	}
}

// renewDisplay lets the host choose a display's port or socket.
func renewDisplay(g *device.Graphics) {
	if g.Port > 0 || g.TLSPort > 0 {
		g.Port, g.TLSPort, g.AutoPort = 0, 0, device.On
		if g.Type == "vnc" {
			g.Port = -1
		}
	}
	if g.WebSocket > 0 {
		g.WebSocket = -1
	}
	for i := range g.Listens {
		g.Listens[i].Socket = ""
	}
}

// withoutTile removes the tile from a guest's <metadata>.
func withoutTile(metadata string) (string, error) {
	m, err := ReadMarks(metadata)
	if err != nil || m == emptyMarks {
		return metadata, err
	}
	m = m.clone()
	delete(m.Labels, tileLabel)
	m.Volumes = nil
	doc, err := m.document()
	if err != nil {
		return "", err
	}
	return xmltree.SetMetadataElement(metadata, Namespace, prefix, doc)
}

// checkCloneable names the parts of a definition that two guests cannot share.
func checkCloneable(d *domain.Definition) error {
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	for _, h := range d.Devices.HostDevices {
		say("it has a %s device of the host", h.Type)
	}
	for _, t := range d.Devices.TPMs {
		if t.Type == "passthrough" {
			say("it has the host's TPM")
		}
	}
	for _, i := range d.Devices.Inputs {
		if i.Source != "" {
			say("it has the host's input device %s", i.Source)
		}
	}
	for _, dev := range d.Devices.All() {
		switch c := dev.(type) {
		case *device.Char:
			if mirror := c.Role == device.Console && c.TargetType == "serial"; !mirror {
				reportExclusive(dev.Kind(), &c.Backend, say)
			}
		case *device.Redir:
			reportExclusive(dev.Kind(), &c.Backend, say)
		case *device.RNG:
			if c.Char != nil {
				reportExclusive(dev.Kind(), c.Char, say)
			}
		}
	}
	if len(d.QEMUArgs) > 0 {
		say("it has its own QEMU arguments, and Lodge cannot know what they share")
	}
	if len(why) > 0 {
		return fault.New(fault.Unsupported, fault.Domain, "domain %q cannot be cloned: %s; take that out of its definition first (virsh edit %s)",
			d.Name, strings.Join(why, ", and "), fault.Word(d.Name))
	}
	return nil
}

// reportExclusive names the resources of the host that a character device needs for itself.
func reportExclusive(kind string, b *device.Backend, say func(string, ...any)) {
	switch {
	case b.Type == "file" || b.Type == "dev" || b.Type == "pipe":
		say("its %s uses %s", kind, b.Path)
	case b.Listens():
		say("its %s listens on %s", kind, b.Path)
	case b.Type == "tcp" && b.Mode == "bind":
		say("its %s listens on port %s", kind, b.Service)
	case b.Type == "udp" && b.BindService != "":
		say("its %s listens on port %s", kind, b.BindService)
	}
	if b.LogFile != "" {
		say("its %s is logged to %s", kind, b.LogFile)
	}
}

// maxMACTries is how often an address is drawn. With a thousand guests of four interfaces, one in 4,000
// addresses of QEMU's range is used.
const maxMACTries = 16

// newMAC draws a MAC address in QEMU's range (52:54:00) that no guest has. Two concurrent draws are equal once
// in 16 million; the warning about shared addresses then appears.
func (f *Fleet) newMAC() (string, error) {
	for range maxMACTries {
		if mac := network.RandomMAC(); !f.guests.MACTaken(mac) {
			return mac, nil
		}
	}
	return "", fault.New(fault.NoCapacity, fault.Interface, "no MAC address of those that QEMU may give was found free in %d tries", maxMACTries)
}
