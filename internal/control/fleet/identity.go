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

// renew makes the definition of a guest that of another one: whatever tells the
// two apart, or is one's alone on this host, is new. Disks are left as they are.
func renew(d *domain.Definition, name, id string, mac func() (string, error)) error {
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
		n.Target = "" // the name of the host's end
	}
	if v := d.Devices.VSock; v != nil {
		v.CID, v.Auto = 0, device.On
	}
	for _, g := range d.Devices.Graphics {
		renewDisplay(g)
	}
	var err error
	d.Metadata, err = unmarked(d.Metadata)
	return err
}

// renewSMBIOS gives what names the machine itself its new name.
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

// renewDisplay has the host choose where a display is served.
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

// unmarked takes out of a guest's <metadata> that it is part of a tile.
func unmarked(metadata string) (string, error) {
	m, err := ReadMarks(metadata)
	if err != nil || m == noMarks {
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

// uncloneable says, by name, what of a guest no second one can have.
func uncloneable(d *domain.Definition) error {
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
				claims(dev.Kind(), &c.Backend, say)
			}
		case *device.Redir:
			claims(dev.Kind(), &c.Backend, say)
		case *device.RNG:
			if c.Char != nil {
				claims(dev.Kind(), c.Char, say)
			}
		}
	}
	if len(d.QEMUArgs) > 0 {
		say("it has arguments of its own for QEMU, of which Lodge does not know what they share")
	}
	if len(why) > 0 {
		return fault.New(fault.Unsupported, fault.Domain, "domain %q cannot be cloned: %s; take that out of its definition first (virsh edit %s)",
			d.Name, strings.Join(why, ", and "), fault.Word(d.Name))
	}
	return nil
}

// claims says what a character device has of the host that only one can have.
func claims(kind string, b *device.Backend, say func(string, ...any)) {
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

// maxMACTries is how often an address is drawn that no guest has. With a thousand
// guests of four interfaces one in 4,000 is taken.
const maxMACTries = 16

// newMAC draws a MAC address, of those that are QEMU's to give, that no guest has.
// Two that are drawn at once may be the same, once in 16 million; the message that
// tells of shared addresses does so then, too.
func (f *Fleet) newMAC() (string, error) {
	for range maxMACTries {
		if mac := network.RandomMAC(); !f.guests.MACTaken(mac) {
			return mac, nil
		}
	}
	return "", fault.New(fault.NoCapacity, fault.Interface, "no MAC address of those that QEMU may give was found free in %d tries", maxMACTries)
}
