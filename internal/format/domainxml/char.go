package domainxml

import (
	"cmp"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func describeChar(n *node, d *device.Char) {
	if n.reading() { // a published definition is only read
		d.Role = device.CharRole(n.e.Name)
	}
	n.implied("type", "pty")
	describeBackend(n, &d.Backend, d.Role == device.Console && (n.reading() || d.Port == 0))
	describeCharTarget(n, d)
	n.info(&d.Info)
}

func describeCharTarget(n *node, d *device.Char) {
	n.in("target", func(n *node) {
		switch d.Role {
		case device.Serial:
			n.str("type", &d.TargetType, "isa-serial", "pci-serial", "usb-serial")
		case device.Console:
			n.str("type", &d.TargetType, "serial", "virtio")
		case device.Channel:
			n.str("type", &d.TargetType, "virtio")
			n.str("name", &d.Name)
			n.str("state", &d.State, "connected", "disconnected")
			return
		case device.Parallel:
		}
		var port *uint
		if d.PortSaid {
			port = &d.Port
		}
		if optional(n, "port", &port); n.reading() && port != nil {
			d.Port, d.PortSaid = *port, true
		}
		n.in("model", func(n *node) {
			n.str("name", &d.TargetModel, "isa-serial", "pci-serial", "usb-serial")
		})
	})
}

// describeBackend describes the type attribute and the elements that go with
// it. A console's terminal stands in an attribute as well.
func describeBackend(n *node, b *device.Backend, tty bool) {
	n.need("type", &b.Type, "pty", "file", "unix", "tcp", "udp", "null", "dev", "pipe", "stdio", "vc", "spicevmc", "spiceport")
	if tty && b.Type == "pty" {
		n.str("tty", &b.Path)
	}
	if n.reading() {
		n.dropKeptOwners()
	}
	describeBackendSource(n, b)
	if n.reading() && (b.Type == "tcp" || b.Type == "unix" && b.Path != "") {
		b.Mode = cmp.Or(b.Mode, defaultSocketMode(n.strict))
	}
	n.in("protocol", func(n *node) {
		if b.Type == "tcp" {
			n.str("type", &b.Protocol, "raw", "telnet")
		} else if n.e.Attr("type") == "raw" {
			n.ignore("type") // says nothing where there is no choice
		}
	})
	n.in("log", func(n *node) {
		n.str("file", &b.LogFile)
		n.on("append", &b.LogAppend)
	})
}

// defaultSocketMode is the default for a socket without a mode attribute. Earlier versions of Lodge listened then, and
// definitions that they stored still do.
func defaultSocketMode(submitted bool) string {
	if submitted {
		return "connect"
	}
	return "bind"
}

// dropKeptOwners removes labels from a submitted source that keep the file's owner and profile.
// Lodge changes neither.
func (n *node) dropKeptOwners() {
	for _, e := range n.e.Elements("source") {
		source := &node{n.pass, e, n}
		for _, label := range e.Elements("seclabel") {
			var l device.SourceLabel
			c := &node{n.pass, label, source}
			if describeSourceLabel(c, &l); l.Model != "selinux" && l.Relabel == device.Off {
				c.ignore("")
			}
		}
	}
}

func describeBackendSource(n *node, b *device.Backend) {
	if n.once("log", "protocol"); b.Type != "udp" {
		n.once("source")
	}
	switch b.Type {
	case "pty":
		if path := n.e.Child("source").Attr("path"); n.reading() && path != "" {
			b.Path = path
		}
		if n.writing {
			n.in("source", func(n *node) { n.str("path", &b.Path) })
		}
	case "dev", "pipe":
		n.in("source", func(n *node) { n.str("path", &b.Path) })
	case "file":
		n.in("source", func(n *node) {
			n.str("path", &b.Path)
			n.on("append", &b.Append)
		})
	case "unix":
		n.in("source", func(n *node) {
			n.str("mode", &b.Mode, "bind", "connect")
			n.str("path", &b.Path)
			describeReconnect(n, b)
			if n.reading() && b.Path == "" && b.Mode == "bind" && len(n.e.Children) == 0 {
				b.Mode = "" // a path will be made at start, which says the same
				n.ignore("")
			}
		})
	case "tcp":
		n.in("source", func(n *node) {
			n.str("mode", &b.Mode, "bind", "connect")
			n.str("host", &b.Host)
			n.str("service", &b.Service)
			describeReconnect(n, b)
		})
	case "spiceport":
		n.in("source", func(n *node) { n.str("channel", &b.Channel) })
	case "udp":
		describeUDP(n, b)
	}
}

func describeReconnect(n *node, b *device.Backend) {
	n.in("reconnect", func(n *node) {
		if n.strict && n.e.Attr("enabled") == "yes" {
			n.present("timeout")
		}
		n.yes("enabled", &b.Reconnect)
		num(n, "timeout", &b.ReconnectSec)
	})
}

// describeUDP maps the two <source> elements to the two ends.
func describeUDP(n *node, b *device.Backend) {
	type end struct{ mode, host, service string }
	var ends []end
	if b.BindHost != "" || b.BindService != "" {
		ends = append(ends, end{"bind", b.BindHost, b.BindService})
	}
	if b.Host != "" || b.Service != "" {
		ends = append(ends, end{"connect", b.Host, b.Service})
	}
	each(n, "source", &ends, func(n *node, e *end) {
		n.str("mode", &e.mode, "bind", "connect")
		n.str("host", &e.host)
		n.str("service", &e.service)
	})
	if n.writing {
		return
	}
	for _, e := range ends {
		if e.mode == "bind" {
			b.BindHost, b.BindService = e.host, e.service
		} else {
			b.Host, b.Service = e.host, e.service
		}
	}
}
